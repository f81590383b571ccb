"""Projected spend as a data set of its own, apart from actual charges.

Columns with the same meaning as in FOCUS have the same name. Cost columns have other names, so that nobody
adds projected to actual costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.focus.columns import Cell
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import Charge, ChargeBasis

PROJECTION_COLUMNS = (
    "BillingCurrency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ProjectedBilledCost",
    "ProjectedEffectiveCost",
    "ServiceProviderName",
    "SkuId",
    "SubAccountId",
    "x_AsOf",
    "x_CommitState",
    "x_Driver",
    "x_PlanId",
    "x_RecordType",
    "x_ReservationId",
    "x_Scenario",
    "x_Taxes",
    "x_Tier",
    "x_Workload",
    "x_WorkloadKind",
)
_DRIVERS = {Tier.SPOT: "Price", Tier.WINDOW: "Commitment", Tier.COMMITTED: "Commitment"}


def projection_rows(charges: Iterable[Charge], as_of: datetime) -> Iterator[dict[str, Cell]]:
    """One row per projected charge, in the order of ``charges``.

    ``ProjectedEffectiveCost`` is the amortized cost. ``ProjectedBilledCost`` is the billed cost: the bill of
    capacity that is bought in advance is on its first row. Both columns sum to all projected charges.
    """
    projected = [charge for charge in charges if charge.basis is ChargeBasis.PROJECTED]
    whole: defaultdict[tuple[object, ...], Decimal] = defaultdict(lambda: ZERO)
    for charge in projected:
        whole[_purchase(charge)] += charge.usd
    for charge in projected:
        billed = charge.usd if charge.paid_at is None else whole.pop(_purchase(charge), ZERO)
        yield {
            "BillingCurrency": "USD",
            "ChargePeriodEnd": charge.window.end,
            "ChargePeriodStart": charge.window.start,
            "ProjectedBilledCost": billed,
            "ProjectedEffectiveCost": charge.usd,
            "ServiceProviderName": charge.provider,
            "SkuId": f"{charge.provider}/{charge.sku}",
            "SubAccountId": charge.team,
            "x_AsOf": as_of,
            "x_CommitState": _commit_state(charge),
            "x_Driver": _driver(charge),
            "x_PlanId": charge.plan_id,
            "x_RecordType": "Projected",
            "x_ReservationId": charge.reservation_id,
            "x_Scenario": "Expected",
            "x_Taxes": "Excluded",
            "x_Tier": str(charge.tier),
            "x_Workload": charge.workload,
            "x_WorkloadKind": None if charge.kind is None else str(charge.kind),
        }


def _purchase(charge: Charge) -> tuple[object, ...]:
    names = (charge.plan_id, charge.reservation_id, charge.workload, charge.provider, charge.sku)
    return (*names, charge.paid_at)


def _commit_state(charge: Charge) -> str:
    if charge.reservation_id is None:
        return "Planned"
    if charge.is_open_ended:
        return "Until Released"
    return "Contracted" if charge.tier is Tier.COMMITTED else "Reserved"


def _driver(charge: Charge) -> str:
    """The main cause of uncertainty of the charge."""
    if charge.is_egress:
        return "Data"
    by_kind = "Traffic" if charge.kind is WorkloadKind.SERVING else "Duration"
    return _DRIVERS.get(charge.tier, by_kind)
