"""What a release gives back and what stays owed, in words: for pages, the command line and the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

from broker.domain.basics.money import usd_words
from broker.domain.spend.release_estimate import ReleaseEstimate


def estimate_words(found: ReleaseEstimate, seller: Callable[[str], str] = str) -> str:
    """The estimate before a release; ``seller`` names a provider."""
    return " ".join(_estimate_sentences(found, seller))


def _estimate_sentences(found: ReleaseEstimate, seller: Callable[[str], str]) -> Iterator[str]:
    back, stays = usd_words(found.back_usd), usd_words(found.stays_usd)
    about = "about " if any(one.share for one in found.resales) else ""
    most = "at most " if any(not one.share for one in found.resales) else ""
    if found.back_usd:
        yield f"You get {about}{back} back, {about or most}{stays} stays owed."
    elif found.stays_usd:
        nothing = "Nothing is sure to come back" if found.resales else "Nothing comes back"
        yield f"{nothing}, {most}{stays} stays owed."
    else:
        yield "Nothing stays owed."
    for one in found.resales:
        name = seller(one.provider)
        if one.sales:
            times = "sale" if one.sales == 1 else f"{one.sales} sales"
            yield f"{name} sells it on: your last {times} there brought {one.share:.0%} of the price."
        elif one.share:
            yield f"{name} sells it on: {one.share:.0%} of the price is assumed."
        else:
            yield f"{name} sells it on: what a buyer pays comes back too, and is known after the sale."


def released_words(credit_usd: Decimal, owed_usd: Decimal) -> str:
    """What came back with a release (a fee is negative), and what stays owed after it."""
    if credit_usd < 0:
        return f"Leaving cost {usd_words(-credit_usd)}, {usd_words(owed_usd)} stays owed."
    if credit_usd:
        return f"{usd_words(credit_usd)} came back, {usd_words(owed_usd)} stays owed."
    return f"Nothing came back, {usd_words(owed_usd)} stays owed." if owed_usd else "Nothing is owed."
