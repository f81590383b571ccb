"""Constants of the performance core, read from ``config/performance.toml``.

Every entry of the file is ``name = { value = …, source = "…" }``; a value is a number or a table of
numbers by architecture, link or fabric. ``constants.py`` and ``serving_constants.py`` name what must be
there: a missing or an unknown name fails the load.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from optimizer.performance.constants.groups import (
    Chosen,
    Compute,
    Goodput,
    Host,
    Intervals,
    Memory,
    Network,
    Software,
    Table,
)
from optimizer.performance.constants.serving import (
    Before,
    Benchmark,
    ColdStart,
    EarlyReleases,
    Engine,
    Harness,
    OlderEngine,
    Queueing,
    ServingRates,
)

CONFIG = Path(__file__).resolve().parents[3] / "config" / "performance.toml"
FITTED = CONFIG.with_name("performance_fitted.toml")

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class Calibration:
    """All constants. ``software`` and ``engines`` by class name; words of rows map to classes. ``kin``:
    classes that are like another one, by the other's path, with what they say themselves."""

    compute: Compute
    network: Network
    memory: Memory
    goodput: Goodput
    host: Host
    serving: ServingRates
    queueing: Queueing
    coldstart: ColdStart
    intervals: Intervals
    software: Mapping[str, Software]
    kin: Mapping[str, Mapping[str, frozenset[str]]]
    software_by_framework: Mapping[str, str]
    default_software: str
    engines: Mapping[str, Engine]
    engine_by_name: Mapping[str, str]
    engine_before: Mapping[str, OlderEngine]
    latent_before: Mapping[str, EarlyReleases]
    unbuffered_before: Mapping[str, Before]
    default_engine: str
    harnesses: Mapping[str, Harness]
    harness_by_name: Mapping[str, str]
    default_harness: str
    benchmarks: Mapping[str, Benchmark]
    chosen: Chosen
    calibrated_gpus: frozenset[str]

    def software_of(self, framework: str) -> str:
        """The class of a framework's name; the default one when no word of it is known."""
        return _first_word(framework.lower(), self.software_by_framework, self.default_software)

    def engine_of(self, source: str, name: str, release: str = "", regime: str = "") -> str:
        """The class of a serving engine and its release (a version, or a year and month where it begins with
        one; the newest where it is blank); tuned benchmark submissions are told by their source."""
        found = self._newest_class(source, name)
        while (older := self.engine_before.get(found)) and older.is_one(name, release, regime):
            found = older.engine
        return found

    def early_latent(self, source: str, name: str, release: str) -> EarlyReleases | None:
        """What a model with a latent cache (MLA) takes longer in a release of an engine; None where the
        release is blank or new enough."""
        early = self.latent_before.get(self._newest_class(source, name))
        return early if early is not None and early.holds(release) else None

    def buffers_states(self, source: str, name: str, release: str) -> bool:
        """Whether an engine's release keeps its buffers of states; blank ones do."""
        early = self.unbuffered_before.get(self._newest_class(source, name))
        return early is None or not early.holds(release)

    def _newest_class(self, source: str, name: str) -> str:
        """The class of an engine's newest release."""
        return _first_word(f"{source} {name}".lower(), self.engine_by_name, self.default_engine)

    def is_old(self, engine: str) -> bool:
        """Whether a class of engines is that of older releases, whose rows are judged apart."""
        return any(older.engine == engine and older.apart for older in self.engine_before.values())

    def harness_of(self, source: str) -> Harness:
        """The harness of a published table, told by its source; fixed lengths where it is not known."""
        return self.harnesses[_first_word(source.lower(), self.harness_by_name, self.default_harness)]

    def value(self, path: str) -> float:
        """One number by its path, such as ``serving.step_s`` or ``software.fsdp.slowdown``."""
        part: Any = self
        for name in path.split("."):
            part = part[name] if isinstance(part, Mapping) else getattr(part, name)
        return float(part)

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """A copy with the numbers at ``values``' paths changed; classes that are like another one follow it
        in what they do not say themselves. Raises AttributeError or KeyError."""
        changed: Any = self
        for path, number in values.items():
            for place in (path, *self._followers(path)):
                if place == path or place not in values:
                    changed = _replaced(changed, place.split("."), number)
        return cast("Calibration", changed)

    def _followers(self, path: str) -> list[str]:
        """Paths of the same constant in the classes that take it from the one of ``path``."""
        of_class, _, name = path.rpartition(".")
        group = of_class.partition(".")[0]
        kin = self.kin.get(of_class, {})
        return [f"{group}.{like}.{name}" for like, own in kin.items() if name not in own]


def _first_word(text: str, classes: Mapping[str, str], default: str) -> str:
    return next((name for word, name in classes.items() if word in text), default)


def _replaced(part: Any, path: Sequence[str], number: float) -> Any:
    if not path:
        return number
    head, rest = path[0], path[1:]
    if isinstance(part, Mapping):
        return {**part, head: _replaced(part[head], rest, number)}
    return replace(part, **{head: _replaced(getattr(part, head), rest, number)})


def parse_calibration(data: Mapping[str, Any]) -> Calibration:
    """The constants of a parsed TOML document. Raises ValueError naming group and constant."""
    return Calibration(
        compute=_group(Compute, data, "compute"),
        network=_group(Network, data, "network"),
        memory=_group(Memory, data, "memory"),
        goodput=_group(Goodput, data, "goodput"),
        host=_group(Host, data, "host"),
        serving=_group(ServingRates, data, "serving"),
        queueing=_group(Queueing, data, "queueing"),
        coldstart=_group(ColdStart, data, "coldstart"),
        intervals=_group(Intervals, data, "intervals"),
        software={name: _group(Software, _inherited(data["software"]), name) for name in data["software"]},
        kin={**_kin(data, "software"), **_kin(data, "engines")},
        software_by_framework=dict(data["software_by_framework"]),
        default_software=str(data["default_software"]),
        engines={name: _group(Engine, _inherited(data["engines"]), name) for name in data["engines"]},
        engine_by_name=dict(data["engine_by_name"]),
        engine_before={name: OlderEngine(**entry) for name, entry in data["engine_before"].items()},
        latent_before={name: EarlyReleases(**entry) for name, entry in data["latent_before"].items()},
        unbuffered_before={name: Before(**entry) for name, entry in data["unbuffered_before"].items()},
        default_engine=str(data["default_engine"]),
        harnesses={name: _group(Harness, data["harnesses"], name) for name in data["harnesses"]},
        harness_by_name=dict(data["harness_by_name"]),
        default_harness=str(data["default_harness"]),
        benchmarks={name: _group(Benchmark, data["benchmarks"], name) for name in data["benchmarks"]},
        chosen=_group(Chosen, data, "chosen_rates"),
        calibrated_gpus=frozenset(data["calibrated_gpus"]),
    )


def _inherited(classes: Mapping[str, Any]) -> dict[str, Any]:
    """Classes with the entries of the one that they name as ``like``, where they have none of their own."""
    whole: dict[str, Any] = {}
    for name, table in classes.items():
        own = {key: entry for key, entry in table.items() if key != "like"}
        whole[name] = {**classes[table["like"]["value"]], **own} if "like" in table else own
    return whole


def _kin(data: Mapping[str, Any], group: str) -> dict[str, dict[str, frozenset[str]]]:
    kin: dict[str, dict[str, frozenset[str]]] = {}
    for name, table in data[group].items():
        if "like" in table:
            base = f"{group}.{table['like']['value']}"
            kin.setdefault(base, {})[name] = frozenset(table) - {"like"}
    return kin


def _group(kind: type[G], data: Mapping[str, Any], name: str) -> G:
    table = data.get(name, {})
    wanted = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    odd = wanted.symmetric_difference(table)
    if odd:
        raise ValueError(f"performance constants [{name}]: missing or unknown {', '.join(sorted(odd))}")
    return kind(**{key: _value(name, key, entry) for key, entry in table.items()})


def _value(group: str, key: str, entry: Mapping[str, Any]) -> float | Table:
    if not str(entry.get("source", "")).strip():
        raise ValueError(f"performance constants [{group}] {key}: no source")
    value = entry["value"]
    if isinstance(value, Mapping):
        return {name: float(number) for name, number in value.items()}
    return float(value)


@cache
def load_calibration() -> Calibration:
    """The constants of ``config/performance.toml`` with the fitted ones of ``performance_fitted.toml``."""
    priors = load_priors()
    if not FITTED.exists():
        return priors
    fitted = tomllib.loads(FITTED.read_text())
    return priors.with_values({**fitted["values"], **fitted["intervals"]})


@cache
def load_priors() -> Calibration:
    """The constants of ``config/performance.toml`` alone: what literature and vendors say."""
    return parse_calibration(tomllib.loads(CONFIG.read_text()))
