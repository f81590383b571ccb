"""A plan says what its later offers may cost, from the past that was known when it was made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from api.schemas.base.times import format_time
from api.schemas.plans.plan import PLAN, read_plan
from broker.domain.basics.window import Segment
from broker.services.market.forecasting import ForecastSources
from broker.services.market.offers import OffersService
from broker.services.market.price_forecasts import NO_HISTORY, PlanPriceForecasts
from broker.services.market.prices import PricesService
from broker.store.engine import Store, create_store
from tests.fakes.clock import FakeClock
from tests.fakes.examples import a_placement, a_plan, an_offer
from tests.fakes.provider import FakeProvider

HOUR = timedelta(hours=1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = create_store(f"sqlite:///{tmp_path / 'broker.db'}")
    await store.migrate()
    yield store
    await store.close()


async def test_later_offers_have_a_price_forecast_and_those_of_now_have_none(store: Store) -> None:
    clock = FakeClock()
    now_offer, later = an_offer("now", "10"), an_offer("later", "8")
    source = FakeProvider(clock, offers=(now_offer, later))
    offers = OffersService(store.unit_of_work, {"fake": source}, clock)
    await offers.refresh()
    forecasts = PlanPriceForecasts(store.unit_of_work, ForecastSources())

    def planned() -> tuple[Segment, Segment]:
        at = clock.now()
        return Segment(at, at + HOUR, 1), Segment(at + 48 * HOUR, at + 60 * HOUR, 1)

    soon, then = planned()
    plan = a_plan(a_placement(now_offer, [soon]), a_placement(later, [then]), as_of=clock.now())
    (blind,) = await forecasts.of(plan)
    assert (blind.offer_id, blind.hours, blind.basis) == ("later", 48.0, NO_HISTORY)
    assert (blind.p10_usd, blind.p50_usd, blind.p90_usd) == (None, None, None)

    for day in range(12):
        clock.advance(days=1)
        source.offers = (now_offer, an_offer("later", "8" if day % 2 else "9"))
        await offers.refresh()
    for _ in range(3):
        await PricesService(store.unit_of_work, clock).keep_up()
    soon, then = planned()
    plan = a_plan(a_placement(now_offer, [soon]), a_placement(later, [then]), as_of=clock.now())
    (known,) = await forecasts.of(plan)
    assert known.basis != NO_HISTORY
    assert known.p10_usd is not None
    assert known.p90_usd is not None
    assert Decimal(6) < known.p10_usd <= known.p90_usd < Decimal(12)
    assert (known,) == await forecasts.of(plan), "the same past says the same"

    told = replace(plan, price_forecasts=(known, blind), scarcity_usd_per_node_hour={"later": 0.5})
    document = PLAN.write(told)
    assert document["outlooks"][0]["p10_usd_per_node_hour"] is not None
    assert document["outlooks"][1]["p10_usd_per_node_hour"] is None
    assert document["as_of"] == format_time(plan.as_of)
    assert read_plan(json.dumps(document), "test").price_forecasts == (known, blind)
