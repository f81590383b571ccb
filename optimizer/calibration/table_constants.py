"""Constants that only published tables need: whose words name which class, and how their makers asked.

They stand in ``config/performance.toml`` beside the constants that plans use; no fit moves them.
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

RELEASE = re.compile(r"(\d+)[.-](\d+)(?:\.(\d+))?")
FIRST_YEAR = 2000


@dataclass(frozen=True, slots=True)
class Before:
    """Releases before ``version`` (major.minor, or with a patch) or before ``month`` (year-month)."""

    version: str
    month: str
    source: str

    def holds(self, release: str) -> bool:
        """Whether ``release`` is one of them; blank or unreadable ones are not."""
        told = _release(release)
        if told is None:
            return False
        limit = _release(self.month if told[0] >= FIRST_YEAR else self.version)
        return limit is not None and told < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderEngine(Before):
    """Releases that are the class ``engine``, of engines whose name has one of ``words``; ``apart``: rows of
    it have intervals of their own; not in the regimes ``never``, in which other code of theirs ran."""

    engine: str
    words: Sequence[str]
    apart: bool
    never: Sequence[str] = ()

    def is_one(self, name: str, release: str, regime: str) -> bool:
        """Whether the engine of that name and release is one of them in ``regime``."""
        named = any(word in name.lower() for word in self.words)
        return named and regime not in self.never and self.holds(release)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyReleases(Before):
    """The first releases with a kind of model: prompts take ``prompts`` times as long, and a layer of a
    decode step ``layer_s`` more, since its kernels are launched one by one."""

    prompts: float
    layer_s: float


def _release(text: str) -> tuple[int, int, int] | None:
    """Major, minor and patch of a version, or year and month; None where there is neither."""
    found = RELEASE.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


@dataclass(frozen=True, slots=True)
class BenchmarkClient:
    """How the makers of a table asked for it: spread of lengths, their mean over what the table says
    (``mean_share``), share of prompts' tokens in the prefix cache, prompt tokens above which tables pad to
    one length, requests of each client of a closed loop, 1 where times are means over the whole run, by
    architecture 1 where it sets engines to look at the queue every few steps only, 1 where its clients run
    inside the engine's process, the share of what engines compile in a run (``Engine.burst_s``) that
    models without experts wait for, and the longest answer over the mean one at most."""

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
    """What a benchmark asks of each model, mean tokens in and out of a request by the model's name."""

    input_tokens: Table
    output_tokens: Table


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tables whose rate is the most that met an objective: 99th percentiles of the time between tokens and to
    the first one by model and scenario, where medians of the former lie below it, and how far that and the
    model's rates may be off (standard deviations in log)."""

    server_itl_p99_s: Table
    interactive_itl_p99_s: Table
    server_ttft_p99_s: Table
    interactive_ttft_p99_s: Table
    usual_share: float
    share_sd: float
    rate_sd: float


@dataclass(frozen=True, slots=True)
class TableConstants:
    """Classes by the words of tables, older releases of engines, how tables were asked for."""

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

    def client_of(self, source: str) -> BenchmarkClient:
        """The client that asked for a published table, told by its source; fixed lengths where it is not
        known."""
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
    """Those of ``config/performance.toml``."""
    return parse_table_constants(tomllib.loads(CONFIG.read_text()))
