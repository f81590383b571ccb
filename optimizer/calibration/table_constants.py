"""Constants that only published tables need: classes by their words, and how benchmarks send requests.

They are in ``config/performance.toml`` beside the constants that plans use; no fit changes them. What a fit
needs to know of the tables is in ``config/performance_fit.toml``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from optimizer.performance.constants.calibrated import CONFIG, read_group, whole_classes
from optimizer.performance.constants.groups import Table

PARAMETERS = CONFIG.with_name("performance_fit.toml")
RELEASE = re.compile(r"(\d+)[.-](\d+)(?:\.(\d+))?")
FIRST_YEAR = 2000


@dataclass(frozen=True, slots=True)
class Before:
    """Releases before ``version`` (major.minor, or with a patch) or before ``month`` (year-month)."""

    version: str
    month: str
    source: str

    def holds(self, release: str) -> bool:
        """Whether ``release`` is one of them; a blank or unreadable one is not."""
        told = _release(release)
        if told is None:
            return False
        limit = _release(self.month if told[0] >= FIRST_YEAR else self.version)
        return limit is not None and told < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderEngine(Before):
    """Older releases that are the class ``engine``, of engines whose name contains one of ``words``.

    ``apart``: their rows have intervals of their own. ``never``: regimes in which they are not of that class,
    because other code of theirs ran.
    """

    engine: str
    words: Sequence[str]
    apart: bool
    never: Sequence[str] = ()

    def matches(self, name: str, release: str, regime: str) -> bool:
        """Whether the engine of that name and release belongs to the class in ``regime``."""
        named = any(word in name.lower() for word in self.words)
        return named and regime not in self.never and self.holds(release)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyReleases(Before):
    """The first releases with a kind of model: prefill takes ``prompts`` times as long, and a layer of a
    decode step ``layer_s`` more, because its kernels are launched one by one."""

    prompts: float
    layer_s: float


def _release(text: str) -> tuple[int, int, int] | None:
    """Major, minor and patch of a version, or year and month; None if the text has neither."""
    found = RELEASE.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


@dataclass(frozen=True, slots=True)
class BenchmarkClient:
    """How a benchmark sends requests.

    In the order of the fields: the spread of lengths; their mean in relation to the stated one
    (``mean_share``); the share of prompt tokens in the prefix cache; the prompt tokens above which lengths
    are padded to one; the requests of each client of a closed loop; 1 if times are means over the whole run;
    by architecture, 1 if engines look at the queue only every few steps; 1 if clients run inside the engine's
    process; the share of ``Engine.burst_s`` (what engines compile in a run) that models without experts wait
    for; and the longest answer in multiples of the mean one.
    """

    input_cv: float
    output_cv: float
    mean_share: float
    cached_share: float
    varied_up_to: float
    rounds: float
    of_means: float
    polled: Table
    inside: float
    burst_dense: float
    longest_output: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Mean input and output tokens of a benchmark's requests by the model's name."""

    input_tokens: Table
    output_tokens: Table


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tables whose rate is the highest that met an objective.

    It has the 99th percentiles of the time between tokens and of the first token by model and scenario, how
    far medians of the former are below it, and the errors of that and of the model's rates (standard
    deviations in log).
    """

    server_itl_p99_s: Table
    interactive_itl_p99_s: Table
    server_ttft_p99_s: Table
    interactive_ttft_p99_s: Table
    usual_share: float
    share_sd: float
    rate_sd: float


@dataclass(frozen=True, slots=True)
class TableConstants:
    """Classes by the words of tables, older releases of engines, and benchmark clients."""

    software_by_framework: Mapping[str, str]
    default_software: str
    engine_by_name: Mapping[str, str]
    default_engine: str
    engine_before: Mapping[str, OlderEngine]
    latent_before: Mapping[str, EarlyReleases]
    unbuffered_before: Mapping[str, Before]
    clients: Mapping[str, BenchmarkClient]
    client_by_name: Mapping[str, str]
    default_client: str
    benchmarks: Mapping[str, Benchmark]
    chosen: Chosen

    def software_of(self, framework: str) -> str:
        """The class of a framework's name; the default class if no word of it is known."""
        return _first_word(framework.lower(), self.software_by_framework, self.default_software)

    def engine_of(self, source: str, name: str, release: str = "", regime: str = "") -> str:
        """The class of a serving engine and its release: a version, or a year and month if it begins with
        one; the newest if it is blank. Tuned benchmark submissions are recognized by their source."""
        found = self._newest_class(source, name)
        while (older := self.engine_before.get(found)) and older.matches(name, release, regime):
            found = older.engine
        return found

    def early_latent(self, source: str, name: str, release: str) -> EarlyReleases | None:
        """The extra time of a model with a latent cache (MLA) in a release of an engine; None if the release
        is blank or recent enough."""
        early = self.latent_before.get(self._newest_class(source, name))
        return early if early is not None and early.holds(release) else None

    def buffers_states(self, source: str, name: str, release: str) -> bool:
        """Whether an engine's release keeps buffers of states; blank ones do."""
        early = self.unbuffered_before.get(self._newest_class(source, name))
        return early is None or not early.holds(release)

    def _newest_class(self, source: str, name: str) -> str:
        """The class of an engine's newest release."""
        return _first_word(f"{source} {name}".lower(), self.engine_by_name, self.default_engine)

    def is_old(self, engine: str) -> bool:
        """Whether a class of engines is that of older releases, whose rows are judged separately."""
        return any(older.engine == engine and older.apart for older in self.engine_before.values())

    def client_of(self, source: str) -> BenchmarkClient:
        """The client of a published table, by its source; one with fixed lengths if the source is unknown."""
        return self.clients[_first_word(source.lower(), self.client_by_name, self.default_client)]


def _first_word(text: str, classes: Mapping[str, str], default: str) -> str:
    return next((name for word, name in classes.items() if word in text), default)


def parse_table_constants(data: Mapping[str, Any]) -> TableConstants:
    """The constants of a parsed TOML document. Raises ValueError naming group and constant."""
    clients = whole_classes(data, "clients")
    return TableConstants(
        software_by_framework=dict(data["software_by_framework"]),
        default_software=str(data["default_software"]),
        engine_by_name=dict(data["engine_by_name"]),
        default_engine=str(data["default_engine"]),
        engine_before={name: OlderEngine(**entry) for name, entry in data["engine_before"].items()},
        latent_before={name: EarlyReleases(**entry) for name, entry in data["latent_before"].items()},
        unbuffered_before={name: Before(**entry) for name, entry in data["unbuffered_before"].items()},
        clients={name: read_group(BenchmarkClient, clients, name) for name in clients},
        client_by_name=dict(data["client_by_name"]),
        default_client=str(data["default_client"]),
        benchmarks={name: read_group(Benchmark, data["benchmarks"], name) for name in data["benchmarks"]},
        chosen=read_group(Chosen, data, "chosen_rates"),
    )


@cache
def load_table_constants() -> TableConstants:
    """The constants of ``config/performance.toml``."""
    return parse_table_constants(tomllib.loads(CONFIG.read_text()))


@cache
def fit_settings() -> Mapping[str, Any]:
    """``config/performance_fit.toml``: parameters, tables that are not fitted, noise floors."""
    return tomllib.loads(PARAMETERS.read_text())


def other_sources() -> frozenset[str]:
    """Sources that measured something other than what is predicted; they count for no error and no
    interval.
    """
    return frozenset(fit_settings()["not_in_intervals"])
