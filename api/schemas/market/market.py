"""Market documents: all offers at one instant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from api.schemas.base.document import (
    MAX_SHOWN,
    Document,
    describe,
    input_error,
    pointer_of,
    read_json_document,
)
from api.schemas.base.times import Instant, format_time
from api.schemas.base.validation import further_of, problems_of, validate
from api.schemas.market.offer import OFFER, OfferForm
from broker.domain.basics.errors import FieldProblem
from broker.domain.market.offer import Offer

EXPECTED_FORM = 'a market: {"as_of": time, "offers": [...]}, as `broker offers --json` prints it'


@dataclass(frozen=True, slots=True)
class Market:
    """The offers at ``as_of``."""

    as_of: datetime
    offers: tuple[Offer, ...]


class MarketHead(BaseModel):
    """The fields of a market document other than its offers."""

    as_of: Instant


class MarketForm(MarketHead):
    """A whole market document, as the OpenAPI document describes it."""

    offers: list[OfferForm]


def read_market(text: str, source: str) -> Market:
    """The market of a JSON text. Raises InputError with every problem found."""
    document = read_json_document(text, source)
    data = document.data
    if not isinstance(data, dict) or not isinstance(data.get("offers"), list) or "as_of" not in data:
        raise input_error(source, [document.problem("", describe(data), EXPECTED_FORM)])
    head = validate(MarketHead, document)
    return Market(head.as_of.astimezone(UTC), _read_offers(document, head.as_of.astimezone(UTC)))


def _read_offers(document: Document, as_of: datetime) -> tuple[Offer, ...]:
    """Reads the offers one by one, so that a large market is in memory only as domain objects."""
    offers: list[Offer] = []
    problems: list[FieldProblem] = []
    further = 0
    seen: set[str] = set()
    for index, row in enumerate(document.data["offers"]):
        try:
            offer = OFFER.read(_dated(row, as_of))
        except ValidationError as error:
            if len(problems) > MAX_SHOWN:
                further += error.error_count()
            else:
                problems.extend(problems_of(error, document, under=("offers", index)))
                further += further_of(error)
            continue
        if offer.offer_id in seen:
            at = pointer_of("offers", index, "offer_id")
            problems.append(document.problem(at, describe(offer.offer_id), "an id that no other offer has"))
        seen.add(offer.offer_id)
        offers.append(offer)
    if problems:
        raise input_error(document.source, problems, further)
    return tuple(offers)


def _dated(row: Any, as_of: datetime) -> Any:
    """An offer without ``observed_at`` gets the market's ``as_of``."""
    told = isinstance(row, dict) and row.get("observed_at") is not None
    return {**row, "observed_at": as_of} if isinstance(row, dict) and not told else row


def market_to_document(as_of: datetime, offers: Iterable[Offer]) -> dict[str, Any]:
    """The JSON form of a market as plain data."""
    return {"as_of": format_time(as_of), "offers": [OFFER.write(offer) for offer in offers]}
