"""Where a command takes its market from: a file, the server that BROKER_URL names, or the database.

A laptop has no database: where BROKER_URL is given and BROKER_DATABASE_URL is not, the server is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from api.bootstrap import Product, build_product
from api.cli.configuration import load_settings
from api.cli.output import read_text
from api.client import BrokerClient, connect
from api.given_settings import load_environment
from api.offer_filters import known_names, require_offer_words
from api.schemas.market.market import Market, read_market
from broker.catalogue import load_launch_table, load_operators, load_spot_prior
from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.holding.spot import SpotBook
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.offer_words import OfferTraits
from broker.domain.market.stock_pools import shared
from broker.settings import Settings
from providers.registry import can_be_ordered, configured, not_planned

T = TypeVar("T")


def named_server() -> BrokerClient | None:
    """A client of the server that BROKER_URL names; None where it is not given, or a database is."""
    given = {name.upper() for name in load_environment()}
    if "BROKER_URL" not in given or "BROKER_DATABASE_URL" in given:
        return None
    return connect(load_settings())


def find_market(path: Path | None) -> Market:
    """The market to plan with: of a file, else what can be ordered of the offers of the server or the
    database. Raises InputError where there is none.

    Where a file lacks the kind of host or the launch time, they are those of the operator, learned or
    assumed.
    """
    if path is not None:
        market = read_market(read_text(path), str(path))
    elif (server := named_server()) is not None:
        market = served_market(server, {}, only_orderable=True)
    else:
        market = orderable(stored_market(OfferFilter()))
    offers = shared(load_operators().with_hosts(market.offers))
    return replace(market, offers=load_launch_table().with_launch_times(with_spot_rates(offers)))


def served_market(server: BrokerClient, words: Mapping[str, str | None], *, only_orderable: bool) -> Market:
    """The current offers of a server, which narrows them by ``words`` (as of ``GET /v1/offers``)."""
    with server:
        found = tuple(server.list_offers(**words, orderable=only_orderable))
    return Market(max((offer.observed_at for offer in found), default=datetime.now(UTC)), found)


def orderable(market: Market) -> Market:
    """``market`` without price lists, and without what takes no order as this environment has its seller."""
    settings = configured(load_environment(), load_settings().sandbox_url)
    left_out, takes = not_planned(settings), can_be_ordered(settings)
    offers = (offer for offer in market.offers if offer.provider not in left_out and takes(offer))
    return replace(market, offers=tuple(offers))


def with_spot_rates(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """``offers``; a spot offer whose provider states no interruption rate gets the assumed rate."""
    return SpotBook((), load_spot_prior()).with_rates(offers)


def narrowed_market(words: Mapping[str, str | None], only_orderable: bool) -> Market:
    """The offers of the server or the database that ``words`` choose. Raises InputError for a word that names
    nothing."""
    server = named_server()
    if server is not None:
        return served_market(server, words, only_orderable=only_orderable)
    listed = {name: word for name, word in words.items() if name not in ("gpu", "region")}
    require_offer_words(listed, known_names(()), source="options", prefix="--")

    async def ask(product: Product) -> tuple[Market, OfferTraits]:
        as_of = await product.offers.find_as_of()
        if as_of is None:
            raise _nothing_polled()
        known = known_names(await product.offers.find_counts())
        wanted = require_offer_words(words, known, orderable=only_orderable, source="options", prefix="--")
        return Market(as_of, await product.offers.find_offers(wanted.names)), wanted.traits

    market, traits = ask_stored(ask)
    if only_orderable:
        market = orderable(market)
    return replace(market, offers=tuple(filter(traits.admit, market.offers)))


def stored_market(wanted: OfferFilter) -> Market:
    """The current offers of the database that match, cheapest per GPU-hour first."""

    async def ask(product: Product) -> Market:
        as_of = await product.offers.find_as_of()
        if as_of is None:
            raise _nothing_polled()
        return Market(as_of, await product.offers.find_offers(wanted))

    return ask_stored(ask)


def _nothing_polled() -> InputError:
    expected = "one that was polled (`broker poll`), or BROKER_URL, the address of a running broker"
    problem = FieldProblem("", "a database without offers", expected)
    return InputError("market", (problem,))


def ask_stored(ask: Callable[[Product], Awaitable[T]]) -> T:
    """What ``ask`` reads from the database, which a running broker may use too. Raises Conflict for an older
    schema."""
    return asyncio.run(_ask_stored(load_settings(), ask))


async def _ask_stored(settings: Settings, ask: Callable[[Product], Awaitable[T]]) -> T:
    product = build_product(settings, load_environment(), exclusive=False)
    try:
        if not await product.store.revision_is_current():
            raise Conflict("the database has an older form; `broker poll` brings it up to date")
        return await ask(product)
    finally:
        await product.close()
