"""Whether an order costs money, in words: each seller is the sandbox's or real, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum

from providers.registry import SPECS


class SellerMode(StrEnum):
    """Where orders go: to the ``sandbox`` market, where no money moves, or to the ``real`` seller."""

    SANDBOX = "sandbox"
    REAL = "real"


def seller_name(provider: str) -> str:
    """A provider's own name: ``prime_intellect`` → ``Prime Intellect``."""
    spec = SPECS.get(provider)
    return spec.title if spec is not None else provider


Modes = Mapping[str, SellerMode]
"""The mode of each seller that the installation reaches, by provider."""


def real_sellers(modes: Modes, providers: Iterable[str]) -> tuple[str, ...]:
    """Those of ``providers`` that are not the sandbox's, sorted; one without a mode is real."""
    return tuple(sorted({name for name in providers if modes.get(name) is not SellerMode.SANDBOX}))


def has_sandbox(modes: Modes) -> bool:
    """Whether some seller is the sandbox's."""
    return SellerMode.SANDBOX in modes.values()


def order_words(modes: Modes, providers: Collection[str], name: Callable[[str], str]) -> str:
    """Whether an order at ``providers`` costs money; empty in an installation without a sandbox.

    ``name`` writes a provider.
    """
    if not has_sandbox(modes):
        return ""
    real = real_sellers(modes, providers)
    if not real:
        return "This is the sandbox market: no money moves."
    sellers = _listed([name(one) for one in real])
    is_real = "is a real seller" if len(real) == 1 else "are real sellers"
    rest = "" if len(real) == len(set(providers)) else ", and the others belong to the sandbox market"
    return f"This order costs money: {sellers} {is_real}{rest}."


def market_words(modes: Modes, name: Callable[[str], str]) -> str:
    """What the sellers of the installation are; empty where all are real."""
    if not has_sandbox(modes):
        return ""
    real = real_sellers(modes, modes)
    if not real:
        return "Sandbox market: recorded or illustrative prices, no money moves."
    sellers = _listed([name(one) for one in real])
    return f"Orders at {sellers} cost money. The other sellers are a sandbox market: no money moves there."


def mode_words(modes: Modes, name: Callable[[str], str]) -> str:
    """The same in two or three words: ``Sandbox``, ``Sandbox, real: Lambda``."""
    real = real_sellers(modes, modes)
    if not has_sandbox(modes):
        return ""
    return f"Sandbox, real: {', '.join(map(name, real))}" if real else "Sandbox"


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
