"""Hosts have enough disk and memory for what runs on them, if the offer states how much they have; and what
is ordered of them is on sale.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.market.sku import SoldAmount
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Training, Workload
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import HostNeeds, serving_needs, training_needs
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """A sentence for each placement whose hosts are too small."""
    for where, placement, workload, offer in case.with_recourses():
        short = _needs(workload, placement, offer.sku.gpus_per_node).shortage(offer.sku)
        if short is not None:
            yield f"{where}: a node has {short}"
        yield from _not_sold(where, "disk_gb", placement.disk_gb, offer.disk)
        yield from _not_sold(where, "memory_gb", placement.memory_gb, offer.memory)


def _not_sold(where: str, name: str, ordered: float | None, sold: SoldAmount | None) -> Iterator[str]:
    """An ordered amount that the seller does not sell."""
    if ordered is None:
        return
    if sold is None:
        yield f"{where}: {name} is {ordered:g}, but the offer's is fixed"
    elif ordered < sold.min_gb or (sold.max_gb is not None and ordered > sold.max_gb):
        most = "any amount" if sold.max_gb is None else f"{sold.max_gb:g}"
        yield f"{where}: {name} is {ordered:g}, sold are {sold.min_gb:g} to {most}"
    elif abs(ordered / sold.step_gb - round(ordered / sold.step_gb)) > 1e-6:
        yield f"{where}: {name} is {ordered:g}, sold are whole multiples of {sold.step_gb:g}"


def _needs(workload: Workload, placement: Placement, gpus: int) -> HostNeeds:
    if isinstance(workload, Training):
        return training_needs(workload, max(placement.nodes, 1), gpus, load_calibration())
    return serving_needs(workload.model, placement.precision, gpus, load_calibration())
