"""From which sellers the installation orders: ``BROKER_ORDERS``, and plans that mix sandbox and real sellers.

Releases and what is held already are never subject to these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from broker.domain.basics.errors import FieldProblem, OrdersBarred
from broker.domain.market.seller_mode import Modes, SellerMode, real_sellers

SETTING = "BROKER_ORDERS"


class Orders(StrEnum):
    """From which sellers is ordered: from those of the ``sandbox`` market only, from all (``on``), or from
    none (``off``)."""

    SANDBOX = "sandbox"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class OrderRules:
    """What is ordered from sellers with these ``modes``; one without a mode is real."""

    orders: Orders = Orders.ON
    modes: Modes = field(default_factory=dict)

    def mode_of(self, provider: str) -> SellerMode:
        """Whether a seller is real."""
        return self.modes.get(provider, SellerMode.REAL)

    def allows(self, provider: str) -> bool:
        """Whether ``provider`` is ordered from."""
        is_sandbox = self.mode_of(provider) is SellerMode.SANDBOX
        return self.orders is Orders.ON or (self.orders is Orders.SANDBOX and is_sandbox)

    def barred(self, *providers: str) -> str:
        """Why nothing is ordered from some of ``providers``; empty if all are ordered from."""
        error = self._error(providers)
        return "" if error is None else str(error)

    def require_allowed(self, providers: Iterable[str]) -> None:
        """Raises OrdersBarred that names the sellers from which nothing is ordered."""
        error = self._error(providers)
        if error is not None:
            raise error

    def _error(self, providers: Iterable[str]) -> OrdersBarred | None:
        barred = sorted({name for name in providers if not self.allows(name)})
        if not barred:
            return None
        real = real_sellers(self.modes, barred)
        wanted = f"{Orders.ON}" if real else f"{Orders.SANDBOX} or {Orders.ON}"
        costs = ", and orders there cost money" if real else ""
        words = f"nothing is ordered from {_listed(barred)} while {SETTING} is {self.orders}"
        words += f", and {_real(real)}" if real else ""
        facts = {"setting": SETTING, "sellers": barred}
        return OrdersBarred(f"{words}: set {SETTING} to {wanted}{costs}", facts).naming(
            FieldProblem(SETTING, str(self.orders), wanted)
        )

    def require_unmixed(self, providers: Iterable[str], *, mix_sandbox: bool) -> None:
        """Raises OrdersBarred for sandbox and real sellers in one plan, unless its policy mixes them."""
        wanted = set(providers)
        real = real_sellers(self.modes, wanted)
        if mix_sandbox or not real or len(real) == len(wanted):
            return
        sandbox = _listed(sorted(wanted.difference(real)))
        raise OrdersBarred(
            f"{_real(real)}, and one plan would order from the sandbox too ({sandbox}): keep it to sellers "
            "of one kind with policy.providers, or state policy.mix_sandbox: true, and plan again",
            {"setting": "/policy/mix_sandbox", "sellers": list(real)},
        ).naming(FieldProblem("/policy/mix_sandbox", "false", "true, or policy.providers of one kind"))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _real(real: Sequence[str]) -> str:
    """Names of real sellers, as a sentence without an end."""
    return f"{_listed(real)} {'is a real seller' if len(real) == 1 else 'are real sellers'}"
