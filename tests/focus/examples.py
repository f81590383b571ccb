"""A bill with every kind of purchase, as FOCUS rows of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from api.export.focus_csv import cell_text
from broker.domain.basics.window import Wish
from broker.domain.focus.columns import FocusRow, FocusVersion, focus_columns
from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, ContractTerms, Offer, Tier
from broker.domain.market.sku import Form
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, slot_terms

TextRow = dict[str, str]


def bought(
    name: str,
    offer: Offer,
    hours: float | None = None,
    *,
    nodes: int = 1,
    gone: float | None = None,
    start: datetime = NOON,
) -> Reservation:
    """One unit, bought at ``start`` for ``hours`` (None: until released), gone after ``gone`` hours."""
    gone_at = None if gone is None else start + timedelta(hours=gone)
    state = UnitState.HELD if gone_at is None else UnitState.GONE
    return Reservation(
        reservation_id=name,
        team="research",
        state=ReservationState.ACTIVE if gone_at is None else ReservationState.RELEASED,
        offer=offer,
        nodes=nodes,
        start=start,
        end=None if hours is None else start + timedelta(hours=hours),
        units=(Unit(0, f"tag-{name}", nodes, state, f"i-{name}", start, gone_at),),
        created_at=start,
        workload="train",
        released_at=gone_at,
    )


def a_bill() -> list[Reservation]:
    """On demand, spot, by contract, by an aggregator, windows (left early, sold back, wound down), a term."""
    window = an_offer("win", "10.5", window=slot_terms(NOON, 400, cancel=CancelRule.NEVER))
    vm = replace(an_offer("agg", "20.333333"), seller="lambdalabs", provider="shadeform")
    spot = replace(an_offer("spot", "7.77", increment_s=1), tier=Tier.SPOT)
    framed = replace(an_offer("frame", "16"), contract=ContractTerms("frame", Decimal(20)))
    term = replace(an_offer("term", "9.1", min_hours=720), tier=Tier.COMMITTED)
    sold = bought("sold", replace(window, offer_id="win-3"), 48, gone=10.5)
    charged = bought("charged", replace(window, offer_id="win-4"), 48, gone=12)
    wish = Wish(NOON + timedelta(hours=1.5), NOON + timedelta(hours=30))
    return [
        bought("od", replace(an_offer("od", "24.5"), zone="us-1a"), nodes=2, gone=9.5),
        bought("spot", spot, gone=3.25),
        bought("agg", replace(vm, sku=replace(vm.sku, form=Form.VM, vcpus=96, memory_gb=1024)), gone=4),
        bought("frame", framed),
        bought("early", window, 48, gone=20),
        replace(bought("running", replace(window, offer_id="win-2"), 400), requested=wish),
        bought("term", term, 800),
        bought("month", replace(an_offer("month", "1", min_hours=730, increment_s=730 * 3600))),
        replace(sold, units=(replace(sold.units[0], credit_usd=Decimal("120.55")),)),
        replace(charged, units=(replace(charged.units[0], credit_usd=Decimal("-7.50")),)),
    ]


def text_rows(
    reservations: list[Reservation], hours: float = 240.5, version: FocusVersion = FocusVersion.V1_2
) -> tuple[tuple[str, ...], list[TextRow]]:
    """Header and rows, as CSV carries them, ``hours`` after noon."""
    columns = focus_columns(version)
    rows = focus_rows(reservations, NOON + timedelta(hours=hours), "1a2b3c4d")
    return columns, written(rows, columns)


def written(rows: Iterable[FocusRow], columns: Iterable[str]) -> list[TextRow]:
    """``rows`` as CSV carries them."""
    return [{name: cell_text(row.get(name)) for name in columns} for row in rows]
