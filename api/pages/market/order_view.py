"""Pure functions for the order form on an offer's page: what was typed, and what may be had instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from urllib.parse import quote, urlencode

from api.pages.parts.words import moment
from api.schemas.base.times import parse_time
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.holding.holding_orders import in_ordered_size
from broker.domain.market.offer import Offer, WindowKind, WindowTerms
from broker.domain.market.offer_words import in_stock
from broker.domain.market.window_grid import hours_words
from broker.services.holding.reserving_requests import OfferOrder

FIELDS = ("nodes", "start", "end", "window", "disk_gb", "memory_gb")
MOST_OTHERS = 3
MOST_GB = 1_000_000
EXPECTED_TIME = "a date, or a date with a time (UTC), such as 2026-12-01 18:00"


@dataclass(frozen=True, slots=True)
class TypedOrder:
    """The fields of the order form as they were typed; ``window`` is a listed window in place of times."""

    nodes: str = ""
    start: str = ""
    end: str = ""
    window: str = ""
    disk_gb: str = ""
    memory_gb: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> TypedOrder:
        """The fields that the form has."""
        return cls(*(fields.get(name, "").strip() for name in FIELDS))

    def address_of(self, offer: Offer) -> str:
        """The page of ``offer`` with the same order filled in."""
        times = {"start": self.start, "end": self.end} if not offer.is_sold_whole else {}
        asked = {name: word for name, word in {"nodes": self.nodes, **times}.items() if word}
        return f"/market/offers/{quote(offer.offer_id, safe='')}?{urlencode(asked)}#reserve"


def windows_of(offer: Offer) -> tuple[tuple[str, str], ...]:
    """The listed windows that can be chosen, with their words; empty for offers with free times."""
    if offer.window is None or not offer.is_sold_whole:
        return ()
    return tuple(
        (
            f"{part.start.isoformat()}/{part.end.isoformat()}",
            f"{moment(part.start)} to {moment(part.end)}, {part.nodes} left",
        )
        for part in offer.window.segments
    )


def read_order(typed: TypedOrder, offer: Offer, most_usd_per_node_hour: Decimal | None = None) -> OfferOrder:
    """The order that was typed, at most at the offer's price in its size unless another limit is given.

    Raises InputError that names every wrong field.
    """
    problems: list[FieldProblem] = []
    start_text, end_text = typed.start, typed.end
    if typed.window:
        start_text, _, end_text = typed.window.partition("/")
    times = {name: _time(name, text, problems) for name, text in (("start", start_text), ("end", end_text))}
    if not (typed.nodes.isascii() and typed.nodes.isdigit() and 0 < int(typed.nodes[:7]) < 1_000_000):
        problems.append(FieldProblem("/nodes", repr(typed.nodes), "a whole number from 1 on"))
    disk, memory = _gb("disk_gb", typed.disk_gb, problems), _gb("memory_gb", typed.memory_gb, problems)
    if problems:
        raise InputError("form", tuple(problems))
    most = most_usd_per_node_hour
    if most is None:
        most = in_ordered_size(offer, disk, memory).price_usd_per_node_hour
    return OfferOrder(
        offer.offer_id,
        int(typed.nodes),
        times["start"],
        times["end"],
        outward=offer.window is not None,
        most_usd_per_node_hour=most,
        disk_gb=disk,
        memory_gb=memory,
    )


def _gb(name: str, text: str, problems: list[FieldProblem]) -> float | None:
    try:
        gb = float(text) if text else None
    except ValueError:
        gb = 0.0
    if gb is None or 0 < gb < MOST_GB:
        return gb
    problems.append(FieldProblem(f"/{name}", repr(text), "GB, such as 300"))
    return None


def _time(name: str, text: str, problems: list[FieldProblem]) -> datetime | None:
    if not text:
        return None
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
        return parse_time(text) if has_zone or len(text) <= len("2026-12-01") else parse_time(f"{text}Z")
    except ValueError:
        problems.append(FieldProblem(f"/{name}", repr(text), EXPECTED_TIME))
        return None


def read_price(text: str) -> Decimal:
    """The price that the page showed. Raises InputError."""
    try:
        return Decimal(text)
    except InvalidOperation:
        problem = FieldProblem("/seen_usd_per_node_hour", repr(text), "the price that the page showed")
        raise InputError("form", (problem,)) from None


def why_not(offer: Offer, caller: Caller, *, takes_orders: bool, missing: Iterable[str]) -> str:
    """Why the visitor cannot order the offer; empty if nothing forbids it."""
    if not takes_orders:
        variables = " or ".join(missing)
        if variables:
            return f"This broker cannot order it, because the setting {variables} is missing."
        return "It cannot be ordered here: it is an entry of a price list."
    if not in_stock(offer):
        return "The seller states that no node is left."
    if caller.team == ALL_TEAMS:
        return "A key of all teams reads and decides. An order belongs to a team: sign in with a key of it."
    if not caller.may(Scope.RESERVATIONS_WRITE):
        return f"This key cannot reserve: it lacks the scope {Scope.RESERVATIONS_WRITE}."
    return ""


def others_of(offer: Offer, nodes: str, found: Iterable[Offer]) -> tuple[Offer, ...]:
    """At most MOST_OTHERS of ``found`` that have as many nodes of the same kind, the same tier first.

    ``found`` is ordered by price.
    """
    wanted = int(nodes) if nodes.isascii() and nodes.isdigit() else 1
    able = [
        one
        for one in found
        if one.offer_id != offer.offer_id and (one.stock.nodes is None or one.stock.nodes >= wanted)
    ]
    return tuple(sorted(able, key=lambda one: one.tier is not offer.tier)[:MOST_OTHERS])


def window_hint(terms: WindowTerms | None) -> str:
    """How the seller cuts time, for who types times; empty where any time is sold."""
    if terms is None or terms.kind is WindowKind.LISTED:
        return ""
    hints = []
    if terms.segments:
        hints.append(f"from {moment(terms.segments[0].start)} to {moment(terms.segments[-1].end)}")
    if terms.durations_hours is not None:
        hints.append(f"for {hours_words(terms.durations_hours)}")
    elif terms.step_hours:
        hints.append(f"in steps of {terms.step_hours:g} h")
    cut = f"Sold {', '.join(hints)}. " if hints else ""
    return f"{cut}Other times are extended to the shortest window on sale that covers them."
