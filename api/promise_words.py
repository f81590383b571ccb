"""What is promised of reserved capacity, in the same words on pages, in the terminal and in sentences.

Capacity is *held* (*bought now*, before its plan is reserved), *holding* (held before it is needed), or
*ordered at its start*, which nobody has promised. The API names the same with ``promise``. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from api.figures import percent, plural
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.money import price_words, usd_words
from broker.domain.holding.capacity_promise import CapacityPromise, promise_of
from broker.domain.holding.cost_of_keeping import IN_DOUBT
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState
from broker.domain.market.offer import StockLevel
from broker.domain.spend.order_quote import PlacementQuote

PART_HELD, REFUSED, NOT_TRIED = "part held", "refused", "not tried"
WORDS = (
    PART_HELD,
    REFUSED,
    *dict.fromkeys((*(p.words for p in CapacityPromise), *ReservationState)),
    NOT_TRIED,
)
"""All states for readers, in the order in which they are counted."""
_STOCK: Mapping[StockLevel, str] = {StockLevel.NONE: "no stock now", StockLevel.LOW: "low stock"}

Row = Reservation | ReservationForm
Moment = Callable[[datetime], str]


def promise_told(row: Row, now: datetime) -> CapacityPromise | None:
    """What is promised of ``row`` at ``now``, or as the server told it."""
    return promise_of(row, now) if isinstance(row, Reservation) else row.promise


def state_word(row: Row, promise: CapacityPromise | None) -> str:
    """What is promised; ``part held`` or ``refused`` if its seller refuses a part or all of it, ``not tried``
    for what failed without an order, and else the state.
    """
    if lacks_nodes(row):
        return PART_HELD if row.nodes_held else REFUSED
    if row.not_tried:
        return NOT_TRIED
    return str(row.state) if promise is None else promise.words


def lacks_nodes(row: Row) -> bool:
    """Whether its seller refused nodes of it, and it still waits for these."""
    waits = row.state in OPEN_STATES and row.state not in IN_DOUBT
    return waits and bool(row.tries) and row.nodes_held < row.nodes


def state_note(row: Row, promise: CapacityPromise | None, moment: Moment, chance: str = "") -> str:
    """What stands beneath ``state_word``: from when it is needed, whether it is usable, or the ``chance``."""
    if promise is CapacityPromise.AT_START:
        return chance
    needed = row.wish if isinstance(row, Reservation) else row.requested
    if promise is CapacityPromise.HOLDING and needed is not None:
        return f"{row.state}, needed from {moment(needed.start)}"
    return (
        str(row.state) if promise is CapacityPromise.HELD and row.state is not ReservationState.HELD else ""
    )


def promises_words(promises: Iterable[CapacityPromise | None]) -> str:
    """How many are held, holding and ordered at their start: ``1 held, 60 ordered at their start``; of a
    single one the word alone.
    """
    known = [one for one in promises if one is not None]
    if len(known) == 1:
        return known[0].words
    counts = Counter(known)
    told = ((one.words, counts[one]) for one in CapacityPromise)
    return ", ".join(f"{count:,} {many_words(words, count)}" for words, count in told if count)


def many_words(word: str, count: int) -> str:
    """A state as ``count`` of them have it: ``ordered at their start``."""
    return word if count == 1 else word.replace("its", "their")


def states_words(rows: Iterable[Row], now: datetime, moment: Moment) -> str:
    """In which states ``rows`` are, and when the first of those that are ordered later is: ``1 held, 60
    ordered at their start, the first on 3 Dec 00:00``.
    """
    told = [(row, promise_told(row, now)) for row in rows]
    parts = [counted_words(state_word(row, promise) for row, promise in told)]
    later = [row.start for row, promise in told if promise is CapacityPromise.AT_START]
    if later:
        parts.append(f"{'the first ' if len(later) > 1 else ''}on {moment(min(later))}")
    return ", ".join(filter(None, parts))


def counted_words(states: Iterable[str]) -> str:
    """How many there are in each of ``states``: ``2 held, 3 ordered at their start``."""
    counts = Counter(states)
    return ", ".join(f"{counts[word]:,} {many_words(word, counts[word])}" for word in WORDS if counts[word])


def chance_words(stock: StockLevel | None, launch_chance: float | None) -> str:
    """What is known of the chance that an order succeeds: ``low stock, 92 % of launches succeeded``."""
    launched = "" if launch_chance is None else f"{percent(launch_chance)} of launches there succeeded"
    return ", ".join(filter(None, (_STOCK.get(stock) if stock is not None else None, launched)))


def order_promise_words(quote: PlacementQuote) -> str:
    """How a placement would be ordered: ``bought now``, or ``ordered at its start, low stock``."""
    if not quote.later:
        return "bought now"
    chance = chance_words(quote.stock, quote.launch_chance)
    now = quote.orders - quote.later
    later = many_words(quote.promise.words, quote.later)
    if quote.orders > 1:
        later = f"{quote.later:,} {later}"
    return ", ".join(filter(None, (f"{now:,} bought now" if now else "", later, chance)))


def at_start_words(first_later: datetime, moment: Moment) -> str:
    """What an order at its start promises."""
    return (
        "Nothing is paid before. Nobody has promised it: the first of it is ordered on "
        f"{moment(first_later)}, and its seller may then have none."
    )


def hold_now_words(hold_usd: Decimal) -> str:
    """What holding now costs and promises."""
    return (
        f"It adds {usd_words(hold_usd)}: each node is bought now, kept until it is last needed, and charged "
        "all that time. Nobody else can take it."
    )


def extension_words(added_usd: Decimal, usd_per_hour: Decimal, before: str, until: str) -> str:
    """What holding a reservation ``until`` a later end adds, and how long it was held ``before``."""
    if not added_usd:
        return f"It adds nothing to hold it until {until}: that time is owed in any case."
    return (
        f"It adds {usd_words(added_usd)} to hold it until {until}, and not until {before}; "
        f"an hour costs {price_words(usd_per_hour)}."
    )


def accepted_words(rows: Iterable[Row], moment: Moment, now: datetime) -> str:
    """What a reserved plan has bought, is buying and will order, each counted in orders; ``moment`` writes a
    time.
    """
    current = [row for row in rows if row.state in OPEN_STATES]
    told = [(row, promise_told(row, now)) for row in current]
    later = [row for row, promise in told if promise is CapacityPromise.AT_START]
    early = [row for row, promise in told if promise is CapacityPromise.HOLDING]
    under_way = sum(row.state in (ReservationState.PENDING, ReservationState.UNKNOWN) for row in current)
    bought = len(current) - len(later) - len(early) - under_way
    if later and len(later) == len(current):
        first = moment(min(row.start for row in later))
        return f"Accepted. Nothing is bought yet: {_orders(len(later))} {_at_their_time(len(later), first)}."
    parts = []
    if bought:
        parts.append(f"{_orders(bought)} {'is' if bought == 1 else 'are'} bought")
    if early:
        parts.append(f"{_orders(len(early))} {'is' if len(early) == 1 else 'are'} holding until needed")
    if under_way:
        parts.append(f"{_orders(under_way)} {'waits' if under_way == 1 else 'wait'} for the seller's answer")
    if later:
        first = moment(min(row.start for row in later))
        parts.append(f"{_orders(len(later))} {_at_their_time(len(later), first)}")
    return f"Accepted: {'; '.join(parts)}." if parts else "Accepted."


def _orders(count: int) -> str:
    return plural(count, "order")


def _at_their_time(count: int, first: str) -> str:
    when = f"at its start, {first}" if count == 1 else f"each at its start, the first on {first}"
    return f"{'is' if count == 1 else 'are'} placed {when}, and the seller may then have none"
