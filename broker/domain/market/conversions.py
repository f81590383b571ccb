"""What is told of prices that are converted from another currency. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from broker.domain.market.exchange import DayRate, age_words
from broker.domain.market.offer import Offer


def conversions(offers: Iterable[Offer], day: date) -> tuple[str, ...]:
    """The exchange rates at which the prices of ``offers`` are converted, with their age on ``day``."""
    found: dict[tuple[str, DayRate], set[str]] = {}
    for offer in offers:
        exchange = offer.native.exchange
        if exchange is not None:
            found.setdefault((offer.native.currency, exchange.rates[-1]), set()).add(offer.provider)
    return tuple(
        f"prices of {', '.join(sorted(names))} are converted at {age_words(currency, rate, day)}"
        for (currency, rate), names in sorted(found.items(), key=lambda one: (one[0][0], one[0][1].on))
    )
