"""Hosts have enough disk and memory for what runs on them, if the offer states how much they have."""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Training, Workload
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import HostNeeds, serving_needs, training_needs
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """A sentence for each placement whose hosts are too small."""
    for where, placement, workload, offer in case.known():
        short = _needs(workload, placement, offer.sku.gpus_per_node).shortage(offer.sku)
        if short is not None:
            yield f"{where}: a node has {short}"


def _needs(workload: Workload, placement: Placement, gpus: int) -> HostNeeds:
    if isinstance(workload, Training):
        return training_needs(workload, max(placement.nodes, 1), gpus, load_calibration())
    return serving_needs(workload.model, placement.precision, gpus, load_calibration())
