"""Template filters: how pages write money, times, shares, places and names. All are pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from markupsafe import Markup, escape

from api.money_words import seller_name
from api.plan_words import priced_unit
from broker.domain.basics.money import from_micro_usd, price_words, usd_words
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import WorkloadKind
from providers.registry import SPECS

DASH = "–"
seller = seller_name
ACRONYMS: Mapping[str, str] = {"gpu": "GPU", "sku": "SKU"}
PAGE_OF: Mapping[str, str] = {
    "plan": "/plans/",
    "rsv": "/reservations/",
    "compare": "/comparisons/",
    "reopt": "/proposals/",
}
"""Where the page of an object stands, by the first part of its id."""
_CODE = re.compile(r"`([^`]+)`")
MADE_ID = re.compile(rf"\b({'|'.join(PAGE_OF)})-[0-9a-hjkmnp-tv-z]{{26}}\b")
PAGE_OF_CALL: Mapping[str, tuple[str, str]] = {
    "POST /v1/plans": ("/plans/new", "New plan"),
    "GET /v1/offers": ("/market", "Market"),
}
"""The page that does what a call of the API does, and its name."""
API_ADDRESS = re.compile(rf"(?:{'|'.join(PAGE_OF_CALL)})(?![\w/])")
STEP_WORDS: Mapping[str, str] = {
    "reservation.intend": "Wanted",
    "reservation.order": "Ordered from the provider",
    "reservation.retry": "Ordered again",
    "reservation.held": "Bought",
    "reservation.granted": "Time granted by the provider",
    "reservation.billed": "Billed",
    "reservation.changed": "Changed",
    "reservation.extend": "Extended",
    "reservation.release": "Release asked for",
    "reservation.release_refused": "Release refused for now",
    "reservation.gone": "Seen gone at the provider",
    "reservation.lost": "Taken away by the provider",
    "reservation.failed": "Failed",
    "reservation.refused": "Refused by the provider",
    "reservation.too_dear": "Given back: dearer than its limit",
    "reservation.unknown": "The provider's answer was lost",
    "reservation.abandon": "Given up",
    "reservation.release_taken": "Release taken at last",
    "lease.orphaned": "Found running for nobody",
    "reservation.short": "Capacity is missing",
    "reservation.moving": "Being moved",
    "reservation.move_failed": "Move failed, stays where it is",
}
METRICS: Mapping[WorkloadKind, tuple[tuple[str, str, float], ...]] = {
    WorkloadKind.TRAINING: (
        ("hours", "{:,.1f} h", 1),
        ("tokens_per_s", "{:,.0f} tokens/s", 1),
        ("mfu", "MFU {:.0f} %", 100),
        ("goodput", "goodput {:.0f} %", 100),
    ),
    WorkloadKind.SERVING: (
        ("requests_per_s_per_replica", "{:,.2f} requests/s a replica", 1),
        ("ttft_p95_ms", "TTFT p95 {:,.0f} ms", 1),
        ("itl_p95_ms", "ITL p95 {:,.0f} ms", 1),
        ("usd_per_million_tokens", "${:,.2f} per million {unit} at full load", 1),
    ),
    WorkloadKind.BATCH: (
        ("requests_per_s_per_replica", "{:,.2f} requests/s a replica", 1),
        ("usd_per_million_tokens", "${:,.2f} per million {unit} at full load", 1),
    ),
}
"""Metric of an estimate, how it reads, and what it is multiplied by."""


def usd(amount: Decimal | None) -> str:
    """``$1,234.56``, or a dash."""
    return DASH if amount is None else usd_words(amount)


def signed_usd(amount: Decimal | None) -> str:
    """Like ``usd``, with a plus where it is more."""
    return f"+{usd(amount)}" if amount is not None and amount > 0 else usd(amount)


def price(amount: Decimal) -> str:
    """A price of an hour, ``$2.085``, with more digits than an amount."""
    return price_words(amount)


def micro_price(amount: int) -> str:
    """Micro-USD as ``price``."""
    return price(from_micro_usd(amount))


def moment(at: datetime | None) -> str:
    """``2026-11-23 11:30 UTC`` as plain text, or a dash."""
    return DASH if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def instant(at: datetime | None) -> str:
    """``moment`` as a time element, or a dash."""
    if at is None:
        return DASH
    utc = at.astimezone(UTC)
    form = '<time datetime="{:%Y-%m-%dT%H:%M:%SZ}">{:%Y-%m-%d %H:%M} <span class="zone">UTC</span></time>'
    return Markup(form.format(utc, utc))  # noqa: S704  made of digits alone


def share(ratio: float | None) -> str:
    """A percentage with two digits, or a dash."""
    return DASH if ratio is None else f"{100 * ratio:.2f} %"


def words(name: str) -> str:
    """An identifier as words: ``on_demand`` → ``on demand``."""
    return " ".join(ACRONYMS.get(word, word) for word in str(name).split("_"))


def hours(duration: timedelta) -> str:
    """``36.5 h``, or days from three of them on."""
    count = duration / timedelta(hours=1)
    return f"{count / 24:,.1f} days" if count >= 72 else f"{count:,.1f} h"


def offer_words(offer_id: str) -> str:
    """An offer in words, from its id alone, as it may be gone: the seller, then the other parts."""
    provider, _, rest = offer_id.partition("/")
    return " · ".join((seller(provider), *(words(part) for part in rest.split("/") if part)))


SELLER_KEY = re.compile(r"(^|\b(?:on|at|of|from) )(" + "|".join(sorted(map(re.escape, SPECS))) + r")\b")


def sellers_named(told: str) -> str:
    """A sentence of the planner, with the names of sellers instead of their keys."""
    return SELLER_KEY.sub(lambda found: f"{found[1]}{seller(found[2])}", told)


def linked(told: str, here: str = "") -> Markup:
    """A message in which each id leads to its page, and each call of the API that a page stands for is that
    page.

    ``here`` is the page on which it stands; it is not linked to itself.
    """
    safe = str(escape(told))
    safe = MADE_ID.sub(lambda found: _link(f"{PAGE_OF[found[1]]}{found[0]}", found[0], here), safe)
    safe = API_ADDRESS.sub(lambda found: _link(*PAGE_OF_CALL[found[0]], here), safe)
    return Markup(safe)  # noqa: S704  the text was escaped before


def _link(address: str, text: str, here: str) -> str:
    return text if address == here else f'<a href="{address}">{text}</a>'


def place(at: Offer | Placement) -> str:
    """Region and zone; the zone alone where its name begins with the region's."""
    if at.zone is None or at.zone == at.region:
        return at.region
    return at.zone if at.zone.startswith(at.region) else f"{at.region} · {at.zone}"


def step_words(action: str) -> str:
    """A step of a reservation's history."""
    return STEP_WORDS.get(action, action.rpartition(".")[2].replace("_", " ").capitalize())


def figures(placement: Placement) -> list[str]:
    """The most important figures of an estimate."""
    told = placement.estimate.value
    unit = priced_unit(told)
    metrics = (row for row in METRICS[placement.kind] if row[0] in told)
    return [form.format(told[name] * factor, unit=unit) for name, form, factor in metrics]


def with_code(text: str) -> Markup:
    """A description as HTML: code is marked, and a blank line begins a paragraph."""
    marked = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(marked.replace("\n\n", "<br>"))  # noqa: S704  escaped before
