"""Where a command takes its market from: a file, or the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from rich.text import Text

from api.bootstrap import Product, build_product
from api.cli.configuration import load_settings
from api.cli.output import read_text, say
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


def find_market(path: Path | None) -> Market:
    """The market to plan with: that of a file, or the current offers of the database. Raises InputError
    where there is neither.

    As on the server, offers of the database that cannot be ordered are left out (``orderable``). Where a file
    lacks the kind of host or the launch time, they are those of the operator, learned or assumed.
    """
    if path is None:
        market = orderable(stored_market(OfferFilter()))
        _tell_that_it_is_local(market.as_of)
    else:
        market = read_market(read_text(path), str(path))
    offers = shared(load_operators().with_hosts(market.offers))
    return replace(market, offers=load_launch_table().with_launch_times(with_spot_rates(offers)))


def orderable(market: Market) -> Market:
    """``market`` without price lists, and without what takes no order as this environment has its seller."""
    settings = configured(load_environment(), load_settings().sandbox_url)
    left_out, takes = not_planned(settings), can_be_ordered(settings)
    offers = (offer for offer in market.offers if offer.provider not in left_out and takes(offer))
    return replace(market, offers=tuple(offers))


def with_spot_rates(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """``offers``; a spot offer whose provider states no interruption rate gets the assumed rate."""
    return SpotBook((), load_spot_prior()).with_rates(offers)


def narrowed_market(words: Mapping[str, str | None], only_orderable: bool) -> tuple[Market, OfferTraits]:
    """The stored offers with the names of ``words``, and the traits that are left to look at. Raises
    InputError at the option with a word that names nothing."""
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
    _tell_that_it_is_local(market.as_of)
    return market, traits


def _tell_that_it_is_local(as_of: datetime) -> None:
    """Says on stderr that the local database was read, where BROKER_URL names a server and nothing names a
    database."""
    environ = load_environment()
    if "BROKER_URL" in environ and "BROKER_DATABASE_URL" not in environ:
        age_minutes = max(0, (datetime.now(UTC) - as_of) // timedelta(minutes=1))
        text = (
            f"note: these are offers of the local database, {age_minutes} min old, not of the server at "
            "BROKER_URL; BROKER_DATABASE_URL names another database"
        )
        say(Text(text, "dim"))


def stored_market(wanted: OfferFilter) -> Market:
    """The current offers of the database that match, cheapest per GPU-hour first."""

    async def ask(product: Product) -> Market:
        as_of = await product.offers.find_as_of()
        if as_of is None:
            raise _nothing_polled()
        return Market(as_of, await product.offers.find_offers(wanted))

    return ask_stored(ask)


def _nothing_polled() -> InputError:
    problem = FieldProblem("", "a database without offers", "one that was polled: `broker poll`")
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
