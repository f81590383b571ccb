"""What an estimate of energy and carbon emissions says, and what it leaves out, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.spend.energy import EnergyUse

METHOD = (
    "Energy and carbon are estimated, not measured: the rated power of each GPU, less while it is idle, with "
    "the overhead of its node and the PUE of its site, times the yearly average of the grid of its region "
    "(config/energy.toml and grid.csv, with sources). Making the hardware is not counted."
)


def carbon_words(use: EnergyUse) -> str:
    """The emissions with their unit; that they are not known where no grid is."""
    if use.kwh and use.kwh_without_grid >= use.kwh:
        return "no grid is known"
    return f"{use.kg_co2e:,.0f} kg CO₂e"


def energy_words(use: EnergyUse) -> Iterator[str]:
    """How the figures came about, and what is in none of them; nothing where no energy is used."""
    if use.kwh or use.gpu_hours_without_power:
        yield METHOD
    if use.kwh_without_grid:
        yield (
            f"The carbon figure leaves out {use.kwh_without_grid:,.0f} of {use.kwh:,.0f} kWh, in regions "
            "whose grid is not known."
        )
    if use.gpu_hours_without_power:
        hours = f"{use.gpu_hours_without_power:,.0f} GPU-hours"
        yield f"Both leave out {hours} of GPUs whose rated power is not known."
