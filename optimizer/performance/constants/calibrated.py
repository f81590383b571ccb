"""Constants of the performance core, read from ``config/performance.toml``.

Every entry of the file is ``name = { value = …, source = "…" }``; a value is a number or a table of numbers
by architecture, link or fabric. ``groups`` and ``serving`` define the names: a missing or unknown name raises
an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeVar, cast

from broker.data_folder import data_folder
from optimizer.performance.constants.groups import (
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
    ColdStart,
    Engine,
    Queueing,
    ServingRates,
)

CONFIG = data_folder("config") / "performance.toml"
FITTED = CONFIG.with_name("performance_fitted.toml")

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class Calibration:
    """All constants. ``software`` and ``engines`` map class names to their constants.

    ``subclasses``: for the path of each class, the classes that inherit from it, with the names that these
    define themselves.
    """

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
    subclasses: Mapping[str, Mapping[str, frozenset[str]]]
    default_software: str
    engines: Mapping[str, Engine]
    default_engine: str
    calibrated_gpus: frozenset[str]

    def value(self, path: str) -> float:
        """The number at a path such as ``serving.step_s`` or ``software.fsdp.slowdown``."""
        part: Any = self
        for name in path.split("."):
            part = part[name] if isinstance(part, Mapping) else getattr(part, name)
        return float(part)

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """A copy with other numbers at the paths of ``values``; classes inherit the changes of their base
        class.

        Raises AttributeError or KeyError for an unknown path.
        """
        changed: Any = self
        for path, number in values.items():
            for place in (path, *self._followers(path)):
                if place == path or place not in values:
                    changed = _replaced(changed, place.split("."), number)
        return cast("Calibration", changed)

    def _followers(self, path: str) -> list[str]:
        """The paths at which subclasses inherit the constant at ``path``."""
        of_class, _, name = path.rpartition(".")
        group = of_class.partition(".")[0]
        subclasses = self.subclasses.get(of_class, {})
        return [f"{group}.{like}.{name}" for like, own in subclasses.items() if name not in own]


def _replaced(part: Any, path: Sequence[str], number: float) -> Any:
    if not path:
        return number
    head, rest = path[0], path[1:]
    if isinstance(part, Mapping):
        return {**part, head: _replaced(part[head], rest, number)}
    return replace(part, **{head: _replaced(getattr(part, head), rest, number)})


def parse_calibration(data: Mapping[str, Any]) -> Calibration:
    """The constants of a parsed TOML document. Raises ValueError that names group and constant."""
    software, engines = whole_classes(data, "software"), whole_classes(data, "engines")
    return Calibration(
        compute=read_group(Compute, data, "compute"),
        network=read_group(Network, data, "network"),
        memory=read_group(Memory, data, "memory"),
        goodput=read_group(Goodput, data, "goodput"),
        host=read_group(Host, data, "host"),
        serving=read_group(ServingRates, data, "serving"),
        queueing=read_group(Queueing, data, "queueing"),
        coldstart=read_group(ColdStart, data, "coldstart"),
        intervals=read_group(Intervals, data, "intervals"),
        software={name: read_group(Software, software, name) for name in software},
        subclasses={**_subclasses(data, "software"), **_subclasses(data, "engines")},
        default_software=str(data["default_software"]),
        engines={name: read_group(Engine, engines, name) for name in engines},
        default_engine=str(data["default_engine"]),
        calibrated_gpus=frozenset(data["calibrated_gpus"]),
    )


def whole_classes(data: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The classes of a kind (``software``, ``engines`` or ``clients``) with all their entries.

    An entry is the class's own, else that of the class from which it inherits, else the usual one of its
    kind.
    """
    usual, classes = data["usual"][kind], data[kind]
    whole: dict[str, Any] = {}
    for name, table in classes.items():
        own = {key: entry for key, entry in table.items() if key != "inherits"}
        base = classes[table["inherits"]["value"]] if "inherits" in table else {}
        whole[name] = {**usual, **base, **own}
    return whole


def _subclasses(data: Mapping[str, Any], group: str) -> dict[str, dict[str, frozenset[str]]]:
    subclasses: dict[str, dict[str, frozenset[str]]] = {}
    for name, table in data[group].items():
        if "inherits" in table:
            base = f"{group}.{table['inherits']['value']}"
            subclasses.setdefault(base, {})[name] = frozenset(table) - {"inherits"}
    return subclasses


def read_group(kind: type[G], data: Mapping[str, Any], name: str) -> G:
    """The table ``name`` as a group of constants. Raises ValueError that names what is missing, unknown or
    unsourced.
    """
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
    return priors.with_values(tomllib.loads(FITTED.read_text())["values"])


@cache
def load_priors() -> Calibration:
    """The constants of ``config/performance.toml`` alone, from literature and vendors."""
    return parse_calibration(tomllib.loads(CONFIG.read_text()))
