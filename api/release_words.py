"""What a release gives back and what stays owed, in words: for pages, the command line and the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
    elif not found.has_coming:
        yield "Nothing stays owed."
    if found.saves_usd:
        saves = f"{about or most}{usd_words(found.saves_usd)}"
        yield f"A release now saves {saves} against holding it until its end."
    elif found.saves_usd is not None and found.stays_usd:
        yield "A release now saves nothing: all of it is owed until its end in any case."
    if found.has_coming:
        yield _of_coming(found, alone=not found.back_usd and not found.stays_usd)
    for one in found.resales:
        name = seller(one.provider)
        if one.sales:
            times = "release" if one.sales == 1 else f"{one.sales} releases"
            share = f"{one.share:.0%} of its price"
            yield f"{name} pays for what is left: your last {times} there brought {share}."
        elif one.share:
            yield f"{name} pays for what is left: {one.share:.0%} of its price is assumed."
        else:
            yield f"What {name} pays for what is left comes back too, and is known after the release."
    yield from _of_later(found)


def _of_coming(found: ReleaseEstimate, *, alone: bool) -> str:
    """What a release owes of capacity that is not bought yet, before its start and right after it.

    ``alone``: nothing else is owed.
    """
    owed = usd_words(found.coming_usd) if found.coming_usd else "the time it has run"
    first, last = found.first_start, found.last_start
    if first is None and alone:
        return f"Released before it is bought: nothing is owed. Released right after the purchase: {owed}."
    if first is None:
        return (
            "What is not bought yet owes nothing if it is released before, "
            f"and {owed} right after its purchase."
        )
    if alone and first == last:
        return (
            f"Released before it starts on {_moment(first)}: nothing is owed. "
            f"Released right after the start: {owed}."
        )
    if alone:
        return (
            f"Released before the first of it starts on {_moment(first)}: nothing is owed. "
            f"Released right after the last of it has started, {_moment(last)}: {owed}."
        )
    if first == last:
        return (
            f"What starts on {_moment(first)} owes nothing if it is released before, and {owed} right after."
        )
    return (
        f"What starts later, {_moment(first)} to {_moment(last)}, owes nothing if it is released before, "
        f"and {owed} right after the last of it has started."
    )


def _of_later(found: ReleaseEstimate) -> Iterator[str]:
    """What a release a day or a week after the begin owes, all in all."""
    if found.later and found.has_coming:
        amounts = (f"{usd_words(one.usd)} on {_moment(one.at)}" for one in found.later)
        yield f"Released later, it has cost in all {', and '.join(amounts)}."


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def released_words(credit_usd: Decimal, owed_usd: Decimal) -> str:
    """What came back with a release (a fee is negative), and what stays owed after it."""
    if credit_usd < 0:
        return f"Leaving cost {usd_words(-credit_usd)}, {usd_words(owed_usd)} stays owed."
    if credit_usd:
        return f"{usd_words(credit_usd)} came back, {usd_words(owed_usd)} stays owed."
    return f"Nothing came back, {usd_words(owed_usd)} stays owed." if owed_usd else "Nothing is owed."
