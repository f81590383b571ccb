"""What the market billed against what is booked, by reservation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.identity import is_ours
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import Reservation
from broker.domain.market.billing import holding_cost_usd
from broker.domain.spend.spend import ChargeBasis
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.spend.spend import SpendService
from tests.fakes.examples import ADMIN

Line = Mapping[str, Any]
SHORTEST = timedelta(seconds=1)


async def compared_bills(
    units: UnitOfWorkFactory, spend: SpendService, rows: Sequence[Reservation], ledger: Iterable[Line]
) -> dict[str, list[str]]:
    """Differences, by kind.

    ``money``: reservations, and tags that led to none, that are booked otherwise than billed. ``assumed``:
    whose times agree, at a seller that nobody says the increment of: the market bills it by the second, the
    broker books whole hours. ``unknowable``: what an unknown reservation's tag is on, at a seller whose list
    does not say what it is; and what a seller showed as usable that it then had never made. ``total_usd``:
    what was billed in all, each reservation rounded to the cent as in spend.
    """
    async with units(EVERY_TEAM) as uow:
        install_id = await uow.accounts.install_id()
        trail = (await uow.accounts.find_audit(1000, None)).items
    unpriced = [entry.detail for entry in trail if "its price is not known" in entry.detail]
    owners = {u.reference: row.reservation_id for row in rows for u in row.units if u.reference is not None}
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    for line in ledger:
        owner = next((owners[name] for name in names(line) if name in owners), None)
        if owner is not None or is_ours(line["tag"], install_id):
            lines[owner or line["tag"]].append(line)
    booked: defaultdict[str, Decimal] = defaultdict(lambda: ZERO)
    for charge in await spend.charges(ADMIN):
        if charge.basis is ChargeBasis.ACTUAL:
            booked[str(charge.reservation_id)] += charge.usd
    by_id = {row.reservation_id: row for row in rows}
    found: dict[str, list[str]] = {"money": [], "assumed": [], "unknowable": list(unpriced)}
    total = ZERO
    for key in {**lines, **booked}:
        billed = to_cents(sum((Decimal(line["billed_usd"]) for line in lines[key]), ZERO))
        total += billed
        if billed != booked[key] and not any(key in detail for detail in unpriced):
            kind = _kind(by_id.get(key), lines[key], billed, booked[key])
            found[kind].append(f"{key}: billed {billed}, booked {booked[key]}")
    return {**found, "total_usd": [str(total)]}


def _kind(row: Reservation | None, lines: Sequence[Line], billed: Decimal, booked: Decimal) -> str:
    if row is None or booked < billed:
        return "money"
    if row.active_at is not None and all(line["failed"] for line in lines):
        return "unknowable"
    if row.offer.window is not None or any(line["released_at"] is None for line in lines):
        return "money"
    by_its_offer = sum((holding_cost_usd(row.offer, (_held(line),)) for line in lines), ZERO)
    return "assumed" if to_cents(by_its_offer) == booked else "money"


def _held(line: Line) -> Segment:
    begun, ended = (datetime.fromisoformat(line[name]) for name in ("starts_at", "released_at"))
    return Segment(begun, max(ended, begun + SHORTEST), line["nodes"])


def names(line: Line) -> set[str]:
    """What a line of the ledger is called."""
    return {line["instance_id"], *line["also_known_as"]}
