"""Whether an order costs money, in words: each seller is the sandbox's or real, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from broker.domain.market.seller_mode import Modes, SellerMode, real_sellers
from providers.registry import SPECS


def seller_name(provider: str) -> str:
    """A provider's own name: ``prime_intellect`` → ``Prime Intellect``."""
    spec = SPECS.get(provider)
    return spec.title if spec is not None else provider


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


def sellers_words(sellers: Iterable[tuple[str, SellerMode | None]]) -> str:
    """Which of ``sellers`` are real, in a sentence; empty if that is known of none."""
    modes = {name: mode for name, mode in sellers if mode is not None}
    real = real_sellers(modes, modes)
    if not real:
        return "The sellers are the sandbox's: no money moves." if modes else ""
    if len(real) == len(modes):
        return "The sellers are real: orders cost money."
    return f"Orders at {_listed(list(real))} cost money. The other sellers are the sandbox's."


def mode_words(modes: Modes, name: Callable[[str], str]) -> str:
    """The same in two or three words: ``Sandbox``, ``Sandbox, real: Lambda``."""
    real = real_sellers(modes, modes)
    if not has_sandbox(modes):
        return ""
    return f"Sandbox, real: {', '.join(map(name, real))}" if real else "Sandbox"


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
