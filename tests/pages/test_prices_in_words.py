"""A price has four significant digits wherever people read it: on pages and in the terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from api.cli.holding.reservation_view import print_reservations
from api.cli.market.offers import print_market
from api.cli.market.quarantine import quarantine_section
from api.cli.tables import print_section
from api.pages import TEMPLATES
from api.pages.market.price_view import offer_cards
from api.pages.plans.reservation_view import money_card
from api.schemas.holding.reservation import ReservationForm, reservation_to_document
from api.schemas.market.market import Market
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Doubt, Quarantined
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

SMALL, LONG = "0.13456", "2.9057"
WORDS = {SMALL: "0.1346", LONG: "2.906"}


def of_one_gpu(price: str) -> Offer:
    offer = an_offer(price=price)
    return replace(offer, sku=replace(offer.sku, gpus_per_node=1))


def a_lease(price: str) -> Reservation:
    unit = Unit(0, "broker-ab-r-0-1", 1, UnitState.HELD, "i-1", NOON)
    return Reservation(
        "r", "research", ReservationState.ACTIVE, of_one_gpu(price), 1, NOON, None, (unit,), NOON
    )


def printed(show: Callable[[Console], object]) -> str:
    text = io.StringIO()
    show(Console(file=text, width=200, no_color=True))
    return text.getvalue()


def doubted(price: str) -> Quarantined:
    return Quarantined(of_one_gpu(price), Doubt.JUMP, "too cheap", NOON)


SHOWN: dict[str, Callable[[str], Any]] = {
    "the market": lambda usd: printed(lambda c: print_market(c, Market(NOON, (of_one_gpu(usd),)), 5)),
    "the quarantine": lambda usd: printed(lambda c: print_section(quarantine_section([doubted(usd)]), c)),
    "reservations": lambda usd: printed(
        lambda c: print_reservations(
            c, [ReservationForm.model_validate(reservation_to_document(a_lease(usd), NOON))], each=True
        )
    ),
    "the page of a reservation": lambda usd: money_card(a_lease(usd), NOON),
    "the page of an offer": lambda usd: offer_cards(of_one_gpu(usd), (), ())[0].figure,
}


@pytest.mark.parametrize("price", WORDS)
@pytest.mark.parametrize("where", SHOWN)
def test_a_price_has_four_significant_digits(where: str, price: str) -> None:
    assert re.search(rf"(?<![\d.]){re.escape(WORDS[price])}(?!\d)", str(SHOWN[where](price)))


def test_no_template_formats_money_by_itself() -> None:
    """A price goes through ``price``, money through ``usd``, so that both read alike on every page."""
    by_itself = re.compile(r"\{\{[^}]*(?:format\([^)]*(?:usd|price)|per_(?:node_)?hour \| usd)[^}]*\}\}")
    found = [
        f"{page.name}: {match.group()}"
        for page in sorted(TEMPLATES.glob("*.html"))
        for match in by_itself.finditer(page.read_text())
    ]
    assert found == []
