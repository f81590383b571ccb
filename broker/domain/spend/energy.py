"""Estimates of energy use and carbon emissions, from rated power and grid averages.

    kWh = (used GPU-hours + idle share x idle GPU-hours) x rated power x (1 + node overhead) x PUE
    kg CO2e = kWh x grid intensity of the region, where one is known

Rated power is an upper limit of what busy GPUs draw. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from broker.domain.spend.spend import Charge

SECONDS_PER_HOUR = 3600
WATTS_PER_KW = 1000


@dataclass(frozen=True, slots=True)
class GridFigure:
    """Grid intensity in grams of CO2e per kWh for regions of a provider (a pattern such as ``eu-*``)."""

    provider: str
    region: str
    grams_per_kwh: float
    location: str
    source: str


@dataclass(frozen=True, slots=True)
class EnergyFacts:
    """Inputs of the estimate.

    ``watts`` is the rated power by GPU; ``node_overhead_share`` is added for the rest of the node;
    ``idle_share`` is the share of its rated power that an idle GPU draws. ``pue_of`` is the power usage
    effectiveness by provider, ``pue`` that of all others. Of ``grid`` the first matching figure applies.
    """

    watts: Mapping[str, float]
    node_overhead_share: float
    idle_share: float
    pue: float
    pue_of: Mapping[str, float] = field(default_factory=dict)
    grid: tuple[GridFigure, ...] = ()

    def grid_of(self, provider: str, region: str) -> GridFigure | None:
        """The grid figure of a region; None if it is unknown."""
        for figure in self.grid:
            if figure.provider == provider and fnmatchcase(region.lower(), figure.region.lower()):
                return figure
        return None


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """An estimate of energy and emissions.

    ``kwh_without_grid`` is the part of ``kwh`` whose grid intensity is unknown; it is missing in ``kg_co2e``.
    ``gpu_hours_without_power`` are GPU-hours of GPUs with unknown power; they are missing in both.
    """

    kwh: float
    kg_co2e: float
    kwh_without_grid: float
    gpu_hours_without_power: float


def energy_of(charges: Iterable[Charge], facts: EnergyFacts) -> EnergyUse:
    """Energy use and emissions of the capacity that ``charges`` pay for."""
    kwh = kg = unplaced = unknown = 0.0
    for charge in charges:
        idle = charge.idle_gpu_seconds
        watts = facts.watts.get(charge.gpu)
        if watts is None:
            unknown += charge.gpu_seconds / SECONDS_PER_HOUR
            continue
        drawn_s = charge.gpu_seconds - idle + facts.idle_share * idle
        node_kw = watts * (1 + facts.node_overhead_share) / WATTS_PER_KW
        part = drawn_s / SECONDS_PER_HOUR * node_kw * facts.pue_of.get(charge.provider, facts.pue)
        figure = facts.grid_of(charge.provider, charge.region)
        kwh += part
        if figure is None:
            unplaced += part
        else:
            kg += part * figure.grams_per_kwh / WATTS_PER_KW
    return EnergyUse(kwh, kg, unplaced, unknown)
