"""Orders and contracts read as leases, and the bodies of buy and sell orders; pure functions.

An order has no name. Its id is the lease's reference, and the tag is sent as ``Idempotency-Key`` only; an
answer that repeats it is read. A filled order becomes a contract, which does not name its order; the two
are matched by instance type, nodes and window. A contract is a step function: each quantity holds from its
interval's start to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from providers.payload import Name, PayloadModel
from providers.rows import window_between
from providers.schema import Words
from providers.sfcompute.offers import NOW, PROVIDER, next_hour, time_text

BUY, SELL = "buy", "sell"
PRICE_TOLERANCE = Decimal("1.02")
NOW_WITHIN = timedelta(minutes=15)
"""A start that is not a whole hour means "at once", if the offer was seen at most this long before."""
LEAST_PRICE_CENTS = 1

ORDER_STATES = {
    "pending": LeaseState.PROVISIONING,
    "open": LeaseState.PROVISIONING,
    "cancelled": LeaseState.FAILED,
    "rejected": LeaseState.FAILED,
    "expired": LeaseState.FAILED,
}
CONTRACT_STATES = {
    "upcoming": LeaseState.SCHEDULED,
    "active": LeaseState.ACTIVE,
    "expired": LeaseState.ENDED,
}


ACCESS_NOTE = (
    "it is a block in your SF Compute account: put your public key into the account's start script before"
    " it begins (`sf vm script -f FILE`), and enter its machines with `sf vm ssh`; a Kubernetes zone opens to"
    " the account's kubeconfig"
)


class CreatedOrder(PayloadModel):
    """Answer to a new order."""

    id: Name
    status: str = "pending"


class PlacedOrder(PayloadModel):
    """An order in later answers.

    Prices are total cents.
    """

    id: Name
    side: str = BUY
    status: Annotated[str, Words(lambda: ORDER_STATES)]
    instance_type: str | None = None
    quantity: int = Field(default=1, ge=0)
    start_at: AwareDatetime | None = None
    end_at: AwareDatetime | None = None
    execution_price: Decimal | None = None
    rejected_reason: str | None = None
    idempotency_key: str | None = None
    created_at: AwareDatetime | None = None

    @property
    def is_filled(self) -> bool:
        """Whether it was bought (or sold)."""
        return self.status == "filled"


class Shape(PayloadModel):
    """A step function: ``quantities[i]`` nodes from ``intervals[i]`` on."""

    intervals: tuple[AwareDatetime, ...] = ()
    quantities: tuple[int, ...] = ()


class Contract(PayloadModel):
    """The contract of a filled order."""

    id: Name
    state: Annotated[str | None, Words(lambda: CONTRACT_STATES, str.lower)] = None
    status: str | None = None
    instance_type: str | None = None
    shape: Shape = Shape()
    zone: str | None = None

    @property
    def nodes(self) -> int:
        """The highest number of nodes at any time; 0 when all of it was sold."""
        return max(self.shape.quantities, default=0)

    @property
    def window(self) -> Window | None:
        """From the first to the last instant of the shape."""
        times = self.shape.intervals
        return Window(min(times), max(times)) if len(set(times)) > 1 else None


class OrderList(PayloadModel):
    """A page of orders."""

    data: tuple[PlacedOrder, ...]
    has_more: bool = False


class ContractList(PayloadModel):
    """A page of contracts; a contract of another kind is a bare id without content."""

    data: tuple[Contract, ...]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease, and its contract if one is listed."""

    lease: Lease
    contract: Contract | None = None


def holdings(
    orders: Sequence[PlacedOrder], contracts: Sequence[Contract], now: datetime
) -> tuple[Holding, ...]:
    """Every buy order as a lease, then the contracts without an order in the list.

    A filled buy without a contract has three explanations. It was sold back if a filled sell of the same
    block followed it; it has ended if its time is over; otherwise its contract is not listed yet. Of equal
    buys, those that fewer sells followed get the contracts, because a block can be bought again after it
    was sold.
    """
    free = [contract for contract in contracts if contract.nodes > 0]
    sold = [order for order in orders if order.side == SELL and order.is_filled]
    buys = [order for order in orders if order.side == BUY]
    bought = [order for order in buys if order.is_filled]
    taken = {
        order.id: _take(free, order) for order in sorted(bought, key=lambda o: len(_sales_after(o, sold)))
    }
    found = [Holding(_order_lease(o, taken.get(o.id), sold, now), taken.get(o.id)) for o in buys]
    found += [Holding(contract_lease(contract), contract) for contract in free]
    return tuple(found)


def contract_lease(contract: Contract) -> Lease:
    """A contract without a known order, as a lease."""
    return Lease(
        provider=PROVIDER,
        reference=contract.id,
        state=_contract_state(contract),
        nodes=contract.nodes,
        sku=contract.instance_type or "",
        window=contract.window,
        detail=f"contract {contract.state or contract.status or 'of no state'} in {contract.zone}",
        access_note=ACCESS_NOTE,
    )


def _take(free: list[Contract], order: PlacedOrder) -> Contract | None:
    for contract in free:
        window = contract.window
        if (
            window is not None
            and contract.instance_type == order.instance_type
            and contract.nodes == order.quantity
            and window.end == order.end_at
            and (order.start_at is None or abs(window.start - order.start_at) <= timedelta(minutes=1))
        ):
            free.remove(contract)
            return contract
    return None


def _block(order: PlacedOrder) -> tuple[str | None, int, datetime | None]:
    return order.instance_type, order.quantity, order.end_at


def _sales_after(order: PlacedOrder, sold: Iterable[PlacedOrder]) -> list[PlacedOrder]:
    """Orders of ``sold`` that may have sold the block of ``order``; sells before its purchase did not."""
    return [
        sell
        for sell in sold
        if _block(sell) == _block(order)
        and (sell.created_at is None or order.created_at is None or sell.created_at >= order.created_at)
    ]


def _order_lease(
    order: PlacedOrder,
    contract: Contract | None,
    sold: list[PlacedOrder],
    now: datetime,
) -> Lease:
    state = ORDER_STATES.get(order.status, LeaseState.UNKNOWN)
    detail = order.rejected_reason or f"order {order.status}"
    sales = _sales_after(order, sold)
    sale = min(sales, key=lambda sell: sell.created_at or now) if sales else None
    credit: Decimal | None = None
    if contract is not None:
        state, detail = _contract_state(contract), f"contract {contract.id} {contract.state}"
    elif order.is_filled and sale is not None:
        sold.remove(sale)
        state, detail, credit = LeaseState.ENDED, "sold back", _usd(sale.execution_price)
    elif order.is_filled:
        is_over = order.end_at is not None and order.end_at <= now
        state = LeaseState.ENDED if is_over else LeaseState.PROVISIONING
    return Lease(
        provider=PROVIDER,
        reference=order.id,
        state=state,
        tag=order.idempotency_key,
        nodes=order.quantity,
        sku=order.instance_type or "",
        window=window_between(order.start_at, order.end_at),
        detail=detail,
        billed_usd=_usd(order.execution_price),
        credit_usd=credit,
        access_note=ACCESS_NOTE,
    )


def _usd(cents: Decimal | None) -> Decimal | None:
    return None if cents is None else cents / 100


def _contract_state(contract: Contract) -> LeaseState:
    return CONTRACT_STATES.get((contract.state or contract.status or "").lower(), LeaseState.UNKNOWN)


def buy_body(order: Order) -> dict[str, Any]:
    """The body of an immediate-or-cancel buy at the order's ``limit_usd_per_node_hour``.

    Ends are rounded up to the hour. OrderRejected when the start is neither a whole hour nor now, or when
    there is no end: every block has one.
    """
    if order.window is None:
        raise OrderRejected(PROVIDER, "a block needs an end")
    end = next_hour(order.window.end)
    hours = Decimal((end - order.window.start) // timedelta(seconds=1)) / 3600
    cents = limit_usd_per_node_hour(order) * 100 * order.nodes * hours
    return {
        "side": BUY,
        "instance_type": order.offer.reference["instance_type"],
        "quantity": order.nodes,
        "start_at": _start(order.window.start, order.offer.observed_at),
        "end_at": time_text(end),
        "price": int(cents.to_integral_value(rounding=ROUND_CEILING)),
        "flags": {"ioc": True, "market": False, "post_only": False, "prorate": False},
        "cluster": order.offer.reference["zone"],
    }


def limit_usd_per_node_hour(order: Order) -> Decimal:
    """The highest price to pay: the order's own limit, else the offer's price plus a small tolerance."""
    if order.limit_usd_per_node_hour is not None:
        return order.limit_usd_per_node_hour
    return order.offer.price_usd_per_node_hour * PRICE_TOLERANCE


def _start(start: datetime, observed_at: datetime) -> str:
    """A whole hour in the future, or "NOW".

    "Now" is the observation's time and not this machine's: plan and order follow soon after it, and a
    repeated order has the same body.
    """
    if start == next_hour(start) and start > observed_at:
        return time_text(start)
    if start <= observed_at + NOW_WITHIN:
        return NOW
    raise OrderRejected(PROVIDER, f"a block starts now or on a whole hour, not at {time_text(start)}")


def sell_body(contract: Contract, *, names_contract: bool) -> dict[str, Any]:
    """A market sell of the rest of a contract, at any price.

    The block is paid either way, so any price recovers something. The API has two descriptions, which
    differ in how a sell names its contract.
    """
    window = contract.window
    if window is None:
        raise OrderRejected(PROVIDER, f"contract {contract.id} has no window")
    is_running = _contract_state(contract) is LeaseState.ACTIVE
    name = {"contract_id": contract.id} if names_contract else {"colocate_with": [contract.id]}
    return {
        "side": SELL,
        "instance_type": contract.instance_type,
        "quantity": contract.nodes,
        "start_at": NOW if is_running else time_text(window.start.astimezone(UTC)),
        "end_at": time_text(window.end),
        "price": LEAST_PRICE_CENTS,
        "flags": {"ioc": True, "market": True, "post_only": False, "prorate": False},
        **name,
    }
