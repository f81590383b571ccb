"""Where a command takes its market from: a file, or the database."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from api.bootstrap import build_product
from api.cli.configuration import load_settings
from api.cli.output import read_text
from api.schemas.market import Market, read_market
from broker.domain.errors import Conflict, FieldProblem, InputError
from broker.services.offers import OfferFilter
from broker.settings import Settings


def find_market(path: Path | None) -> Market:
    """The market of a file, or every current offer of the database; InputError when that has none."""
    if path is not None:
        return read_market(read_text(path), str(path))
    return stored_market(OfferFilter())


def stored_market(wanted: OfferFilter) -> Market:
    """The database's current offers that fit, cheapest per GPU-hour first."""
    return asyncio.run(_stored_market(load_settings(), wanted))


async def _stored_market(settings: Settings, wanted: OfferFilter) -> Market:
    product = build_product(settings, os.environ, exclusive=False)
    try:
        if not await product.store.revision_is_current():
            raise Conflict("the database has an older form; `broker poll` brings it up to date")
        as_of = await product.offers.find_as_of()
        if as_of is None:
            problem = FieldProblem("", "a database without offers", "one that was polled: `broker poll`")
            raise InputError("market", (problem,))
        return Market(as_of, await product.offers.find_offers(wanted))
    finally:
        await product.close()
