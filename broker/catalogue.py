"""Reads ``config/`` into typed objects; the only reader of each file that it names.

``config/gpus.csv`` accelerators · ``config/models.csv`` model shapes · ``config/market.toml`` price gate ·
``config/exchange_rates.csv`` dated rates · ``config/countries.csv``, ``config/geography.toml`` countries and
their sets · ``config/compliance.toml`` tags · ``config/energy.toml``, ``config/grid.csv`` power and carbon ·
``config/events.toml``, ``config/settings.toml`` what events and settings mean ·
``config/operators.toml`` who runs data centres · ``config/cold_starts.toml`` how long nodes take to run.
``broker/provider_facts.py`` reads ``config/providers``.
"""

from __future__ import annotations

import csv
import difflib
import json
import logging
import re
import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from broker.data_folder import data_folder
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.node_launch import LaunchBasis
from broker.domain.holding.launch_times import FetchTerms, LaunchTable
from broker.domain.holding.spot import SpotPrior
from broker.domain.market.exchange import ExchangeRate
from broker.domain.market.offer import HostKind
from broker.domain.market.operators import Operator, Operators
from broker.domain.market.price_gate import GateRules
from broker.domain.market.sku import Form
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.spend.energy import EnergyFacts, GridFigure
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from broker.models.config import model_from_hf_config
from broker.models.rows import model_of
from broker.models.weight_formats import TUNED, without_format

log = logging.getLogger(__name__)
CONFIG = data_folder("config")
SAME_FAMILY = 0.7
OTHER_MODELS: Mapping[str, re.Pattern[str]] = {
    "speech": re.compile(
        r"whisper|\bdistil-(large|medium|small)|wav2vec|speech|audio|music|\b(asr|x?tts)\b|parakeet|canary"
        r"|voxtral|kokoro|bark\b"
    ),
    "images": re.compile(
        r"diffusion|\bsdxl?\b|flux|\bvae\b|\b(clip|vit|deit|siglip)\b|\bwan2|hunyuanvideo|cogvideo|-image\b"
        r"|resne[tx]|efficientnet|convnext|mobilenet|densenet|\bvgg|inception-?v\d|\bswin|\bdino|yolo|detr\b"
        r"|\bu-?net\b|\bsam\d?\b|segment-anything"
    ),
    "images and text": re.compile(r"-vl\b|-vl-|vision|llava|internvl|pixtral|-omni\b"),
    "embeddings": re.compile(
        r"embed|\b(bge|gte|e5|minilm|mpnet|electra)\b|rerank|colbert|sentence"
        r"|\b(al|bio|de|distil|fin|modern|ro|sci|xlm-ro)?berta?\b"
    ),
    "text-to-text tasks": re.compile(r"\b(flan-|by|m|u)?t5\b"),
    "proteins": re.compile(r"(alpha|open|esm)fold|\besm(\d|c\b)|\bboltz|rosettafold|proteinmpnn"),
    "weather": re.compile(r"graphcast|gencast|fourcastnet|weather"),
}
"""Models that are no language models, by words of their names."""
DATED = re.compile(r"-\d{4}$")
"""The date of a later version of the same shape: ``DeepSeek-R1-0528``."""


def _rows(name: str) -> list[dict[str, str]]:
    with (CONFIG / name).open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def load_gpus() -> Mapping[str, GpuSpec]:
    """Accelerators by canonical name."""
    return MappingProxyType({row["gpu"]: _gpu(row) for row in _rows("gpus.csv")})


def _gpu(row: Mapping[str, str]) -> GpuSpec:
    cells = {name: text or None for name, text in row.items()}
    return msgspec.convert({**cells, "source": row["source"]}, GpuSpec, strict=False)


@cache
def load_gate_rules() -> GateRules:
    """Rules of the price gate. A GPU's price floor is its rated power times a tariff below any market's."""
    rules = tomllib.loads((CONFIG / "market.toml").read_text())
    jump, outlier = rules["jump"], rules["outlier"]
    return GateRules(
        floors_usd_per_gpu_hour=_price_floors(Decimal(rules["price_floor"]["electricity_usd_per_kwh"])),
        least_of_before=Decimal(jump["least_of_before"]),
        most_of_before=Decimal(jump["most_of_before"]),
        believed_after=timedelta(hours=jump["believed_after_hours"]),
        least_of_peers=Decimal(outlier["least_of_peers"]),
        most_of_peers=Decimal(outlier["most_of_peers"]),
        peers_least=int(outlier["sellers_least"]),
        most_age=timedelta(days=rules["age"]["most_days"]),
    )


@cache
def load_provider_classes() -> Mapping[str, str]:
    """Provider classes of ``config/market.toml`` by provider; all others are GPU clouds."""
    table = tomllib.loads((CONFIG / "market.toml").read_text())["provider_classes"]
    named = {kind: providers for kind, providers in table.items() if kind != "source"}
    return MappingProxyType({name: kind for kind, providers in named.items() for name in providers})


@cache
def load_moving_terms() -> MovingTerms:
    """Assumed costs of moves."""
    said = tomllib.loads((CONFIG / "moving.toml").read_text())
    egress = said["egress"]
    between = {name: usd for name, usd in egress["between_regions"].items() if name != "source"}
    return MovingTerms(
        egress_usd_per_gb={name: Decimal(usd) for name, usd in egress["usd_per_gb"].items()},
        other_egress_usd_per_gb=Decimal(egress["other_usd_per_gb"]),
        between_regions_usd_per_gb={name: Decimal(usd) for name, usd in between.items()},
        staging_gbit_s=float(said["staging"]["gbit_s"]),
        handover=timedelta(seconds=said["handover"]["settle_seconds"]),
        checkpoint_every=timedelta(minutes=said["checkpoint"]["every_minutes"]),
        resale_share=Decimal(said["resale"]["share"]),
    )


@cache
def load_spot_prior() -> SpotPrior:
    """The prior of the interruption rate of spot offers."""
    said = tomllib.loads((CONFIG / "moving.toml").read_text())["spot"]
    return SpotPrior(float(said["interruptions_per_node_hour"]), float(said["prior_node_hours"]))


@cache
def load_launch_table() -> LaunchTable:
    """Assumed times of nodes, images and weights at a launch, for what was not measured."""
    said = tomllib.loads((CONFIG / "cold_starts.toml").read_text())
    image, weights = said["image"], said["weights"]
    fetch = FetchTerms(float(image["gb"]) / float(image["pull_gbyte_s"]), float(weights["gbyte_s"]))
    forms: dict[Form | None, float] = {form: float(said["forms"][form]["launch_s"]) for form in Form}
    return LaunchTable(
        sellers=MappingProxyType(
            {
                (seller, Form(form)): (float(row["launch_s"]), LaunchBasis(row["basis"]))
                for seller, rows in said["sellers"].items()
                for form, row in rows.items()
            }
        ),
        forms=MappingProxyType({**forms, None: forms[Form.VM]}),
        fetch=fetch,
    )


def _price_floors(usd_per_kwh: Decimal) -> Mapping[str, Decimal]:
    return MappingProxyType(
        {
            name: Decimal(str(spec.tdp_w)) / 1000 * usd_per_kwh
            for name, spec in load_gpus().items()
            if spec.tdp_w is not None
        }
    )


class _RateFile:
    """The file of exchange rates, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed_at_ns: int | None = None
        self._rates: tuple[ExchangeRate, ...] = ()

    def read(self) -> tuple[ExchangeRate, ...]:
        """The rates; those of before if the file was changed to one that cannot be read."""
        try:
            changed_at_ns = self.path.stat().st_mtime_ns
            if changed_at_ns != self._changed_at_ns:
                self._rates, self._changed_at_ns = _rates_of(self.path), changed_at_ns
        except (OSError, UnicodeDecodeError, InputError) as error:
            if self._changed_at_ns is None:
                raise
            log.warning(
                "the exchange rates of %s cannot be read, those of before are kept: %s", self.path, error
            )
        return self._rates


def _rates_of(path: Path) -> tuple[ExchangeRate, ...]:
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                usd = Decimal(row["usd_per_unit"])
                rate = ExchangeRate(
                    row["currency"], usd, date.fromisoformat(row["on"]), row.get("source") or ""
                )
                if not re.fullmatch("[A-Z]{3}", rate.currency) or not usd.is_finite() or usd <= 0:
                    raise ValueError
            except (KeyError, TypeError, ValueError, ArithmeticError):
                expected = "the columns currency (EUR), usd_per_unit (above 0), on (2026-11-27) and source"
                raise InputError(str(path), (FieldProblem(f"line {number}", repr(row), expected),)) from None
            found.append(rate)
    return tuple(found)


_rate_file = _RateFile(CONFIG / "exchange_rates.csv")


def use_exchange_rates(path: Path | None) -> None:
    """Takes the exchange rates of this process from ``path`` (None: those that come with the product).

    Raises InputError for a file that cannot be used.
    """
    global _rate_file
    chosen = _RateFile(path or CONFIG / "exchange_rates.csv")
    try:
        chosen.read()
    except (OSError, UnicodeDecodeError) as error:
        problem = FieldProblem("BROKER_EXCHANGE_RATES", f"{str(path)!r} ({error})", "a readable CSV file")
        raise InputError("settings", (problem,)) from error
    _rate_file = chosen


def load_exchange_rates() -> tuple[ExchangeRate, ...]:
    """Dated exchange rates of the currencies in which providers quote."""
    return _rate_file.read()


@cache
def load_energy_facts() -> EnergyFacts:
    """Inputs of the energy estimate."""
    facts = tomllib.loads((CONFIG / "energy.toml").read_text())
    grid = msgspec.convert(_rows("grid.csv"), tuple[GridFigure, ...], strict=False)
    return EnergyFacts(
        watts=MappingProxyType(
            {name: spec.tdp_w for name, spec in load_gpus().items() if spec.tdp_w is not None}
        ),
        node_overhead_share=facts["node"]["overhead_share"],
        idle_share=facts["node"]["idle_share"],
        pue=facts["pue"]["default"],
        pue_of=MappingProxyType({name: one["value"] for name, one in facts["pue"]["of"].items()}),
        grid=grid,
    )


@cache
def load_models() -> Mapping[str, ModelShape]:
    """Named model shapes."""
    return MappingProxyType({row["model"]: model_of(row) for row in _rows("models.csv")})


@cache
def load_hugging_face_names() -> Mapping[str, str]:
    """Hugging Face names by model name, for models that have one."""
    return MappingProxyType({row["model"]: row["hf_id"] for row in _rows("models.csv") if row["hf_id"]})


@cache
def load_events() -> Mapping[str, str]:
    """What each event means, by its name."""
    return MappingProxyType(tomllib.loads((CONFIG / "events.toml").read_text(encoding="utf-8")))


@cache
def load_setting_meanings() -> Mapping[str, Mapping[str, str]]:
    """What each setting means: ``settings`` of the broker, and ``provider_settings`` of every provider."""
    return MappingProxyType(tomllib.loads((CONFIG / "settings.toml").read_text(encoding="utf-8")))


@cache
def load_countries() -> Mapping[str, str]:
    """Names of countries by ISO 3166-1 alpha-2 code."""
    return MappingProxyType({row["code"]: row["name"] for row in _rows("countries.csv")})


@cache
def load_geographies() -> Mapping[str, frozenset[str]]:
    """Sets of country codes by their name in a policy's ``geography``."""
    told = tomllib.loads((CONFIG / "geography.toml").read_text())
    regions: dict[str, set[str]] = {}
    for row in _rows("countries.csv"):
        regions.setdefault(row["m49_region"], set()).add(row["code"])
    found: dict[str, frozenset[str]] = {}
    for name, said in told.items():
        codes = set(said.get("countries", ())).union(*(regions[region] for region in said.get("m49", ())))
        codes = codes.union(*(found[other] for other in said.get("includes", ())))
        found[name] = frozenset(codes - set(said.get("without", ())))
    return MappingProxyType(found)


@cache
def load_compliance_tags() -> Mapping[str, str]:
    """Meanings of the compliance tags."""
    return MappingProxyType(tomllib.loads((CONFIG / "compliance.toml").read_text())["tags"])


def known_model(name: str) -> str:
    """The name of a model here, from its name here or at Hugging Face; other names stay as they are.

    Case and spaces do not matter. A model that was tuned for instructions, a later version with a date, and
    weights in another number format (``named_format``) have the shape of the one that they were made of.
    """
    folded = _models_by_name()
    name = "-".join(name.split()).rstrip("/")
    last = name.rpartition("/")[2]
    stem = without_format(last)[0]
    tries = (name, last, stem, *(cut.sub("", word) for word in (last, stem) for cut in (TUNED, DATED)))
    found = (folded.get(one.lower()) or folded.get(one.lower().removeprefix("meta-")) for one in tries)
    return next(filter(None, found), name)


@cache
def _models_by_name() -> Mapping[str, str]:
    """Models by their names here and at Hugging Face in small letters, the latter also without a format."""
    found = {known.lower(): known for known in load_models()}
    for model, hub in load_hugging_face_names().items():
        stem = without_format(hub.rpartition("/")[2])[0]
        found |= {hub.lower(): model, stem.lower(): found.get(stem.lower(), model)}
    return MappingProxyType(found)


def named_format(name: str) -> str | None:
    """The number format that the name of a model states: ``fp8`` of ``Qwen3-32B-FP8``; None if there is none.

    It may be one that no plan has, such as ``int8``.
    """
    return without_format("-".join(name.split()).rstrip("/").rpartition("/")[2])[1]


def resolve_model(name: str, base: Path, pointer: str, source: str) -> ModelShape:
    """The shape of a named model, or of a Hugging Face ``config.json`` (a path relative to ``base``).

    Raises InputError at ``pointer`` of ``source``, with the closest known names.
    """
    models = load_models()
    if name in models:
        return models[name]
    path = base / name
    if name.endswith(".json") and path.is_file():
        try:
            return model_from_hf_config(json.loads(path.read_text()), name)
        except (ValueError, RecursionError) as error:
            problem = FieldProblem(pointer, f"{name!r} ({error})", "a Hugging Face config.json")
            raise InputError(source, (problem,)) from error
    called = known_model(name)
    if called in models:
        return models[called]
    raise InputError(source, (FieldProblem(pointer, repr(name), _model_expected(name)),))


def _model_expected(name: str) -> str:
    """What is expected in the place of an unknown name: a near one, a language model, or the base model."""
    last = re.split(r"-(?:instruct|chat|it)\b", without_format(name.rpartition("/")[2].lower())[0])[0]
    other = next((kind for kind, words in OTHER_MODELS.items() if words.search(last)), None)
    if other is not None:
        return f"a language model that writes text: a model of {other} cannot be planned yet"
    folded = {known.lower(): known for known in load_models()}
    family = _family(last)
    alike = [
        key for key in folded if difflib.SequenceMatcher(None, family, _family(key)).ratio() >= SAME_FAMILY
    ]
    near = difflib.get_close_matches(last, alike, n=3, cutoff=0.5)
    if near:
        listed = ", ".join(folded[match] for match in near)
        return f"a model that the broker knows (`GET /v1/models`), or its config.json (nearest: {listed})"
    return (
        "a model that the broker knows (`GET /v1/models`); for a model of your own the one that it was made "
        "of, or its config.json: its path on the command line, its text under 'Add its workload' on the page"
    )


def _family(name: str) -> str:
    """The letters at the beginning of a name: ``llama`` of ``llama-3.1-8b``."""
    found = re.match(r"(meta-)?([a-z]+)", name)
    return found[2] if found is not None else name


def resolve_gpu(name: str, pointer: str, source: str) -> str:
    """The canonical name of a GPU; a redundant memory suffix (``A10G-24GB``) is removed.

    Raises InputError at ``pointer`` of ``source``, with the closest known names.
    """
    gpus = load_gpus()
    if name in gpus:
        return name
    stem, _, size = name.rpartition("-")
    if stem in gpus and size == f"{gpus[stem].memory_gb:g}GB":
        return stem
    folded = {known.lower(): known for known in gpus}
    near = [key for key in folded if key.startswith(f"{name.lower()}-")]
    close = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    near += [key for key in close if key not in near]
    expected = "a GPU of config/gpus.csv"
    if near:
        expected += f" (nearest: {', '.join(folded[key] for key in near[:3])})"
    raise InputError(source, (FieldProblem(pointer, repr(name), expected),))


def resolve_gpus(name: str, pointer: str, source: str) -> str:
    """The GPUs that a rule names: one canonical name, or a beginning of names with ``*`` at the end.

    Case does not matter. A family stands for its variants: ``H100`` for ``H100-*``, but ``L40`` for itself.
    Raises InputError at ``pointer`` of ``source``, with the closest known names.
    """
    gpus = load_gpus()
    written = name.strip().lower()
    start = written.removesuffix("*")
    if written != start:
        begun = next((gpu for gpu in gpus if gpu.lower().startswith(start)), None)
        return f"{begun[: len(start)]}*" if begun is not None else resolve_gpu(name.strip(), pointer, source)
    exact = next((gpu for gpu in gpus if gpu.lower() == written), None)
    family = next((gpu for gpu in gpus if gpu.lower().startswith(f"{written}-")), None)
    if exact is not None or not written or family is None:
        return exact or resolve_gpu(name.strip(), pointer, source)
    return f"{family[: len(written)]}-*"


def other_names(gpu: str) -> tuple[str, ...]:
    """Names other than the canonical one that ``resolve_gpu`` reads."""
    size = f"-{load_gpus()[gpu].memory_gb:g}GB"
    return () if gpu.endswith(size) else (f"{gpu}{size}",)


@cache
def load_operators() -> Operators:
    """All known operators, and the marketplaces whose hosts are separate operators."""
    said = tomllib.loads((CONFIG / "operators.toml").read_text())
    hosts = {key: row.get("host") for key, row in said["marketplaces"].items()}
    return Operators(
        tuple(msgspec.convert({"key": key, **row}, Operator) for key, row in said["operators"].items()),
        msgspec.convert(hosts, dict[str, HostKind | None]),
    )
