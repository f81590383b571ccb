"""How the service is run: readiness, metrics, its own description, its timetable, its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.app import create_app
from api.background import Background, end_all
from api.bootstrap import Product
from api.jobs.scheduler import Scheduler
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import ProviderUnavailable, StoreTooNew
from broker.domain.market.market import ChangeKind, OfferChange, PollRound
from broker.domain.market.offer import OfferBatch
from broker.ports.planning import PlanState
from broker.settings import Settings
from tests.api.house import ADMIN_KEY, DOCUMENT, ClosableProvider, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.slots import Slots


async def until(what: str, look: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if await look():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: not seen in {limit_s} s")


async def test_readiness_comes_with_the_first_pass(house: House) -> None:
    async with house.open(scheduled=False, polled=False) as home:
        client = home.client(None)
        assert (await client.get("/healthz")).status_code == 200
        early = await client.get("/readyz")
        assert early.status_code == 503
        waits = {"polled": False, "reconciled": False}
        assert early.json() == {"serving": True, "schema_current": True, "database": True, **waits}
        timetable = Scheduler(home.product)
        timetable.start()
        try:
            await until("readiness", lambda: is_ready(client))
        finally:
            await timetable.end()


async def test_metrics_tell_how_many_plans_wait_and_run(house: House) -> None:
    house.executor = slots = Slots()
    async with house.open() as home:
        client = home.client()
        for _ in range(3):
            await client.post("/v1/plans", json=DOCUMENT)
        await until("a plan at work", lambda: is_true(slots.names))

        async def two_wait() -> bool:
            return 'broker_plans_waiting{class="interactive"} 2.0' in (await client.get("/metrics")).text

        await until("the others wait", two_wait)
        text = (await client.get("/metrics")).text
        assert 'broker_plans_running{class="interactive"} 1.0' in text
        assert 'broker_plans_waiting{class="large"} 0.0' in text


async def is_true(seen: object) -> bool:
    return bool(seen)


async def test_a_feed_that_does_not_answer_is_not_waited_for_and_named(house: House) -> None:
    async with house.open(scheduled=False, polled=False) as home:
        client, slow = home.client(None), SlowProvider(house.clock, provider="slow")
        feeds: Any = home.product.adapters
        feeds["slow"] = slow
        timetable = Scheduler(home.product, patience_s=0.02)
        timetable.start()
        await until("readiness", lambda: is_ready(client))
        assert (await client.get("/readyz")).json()["feeds_awaited"] == ["slow"]
        assert (await home.client().get("/v1/offers")).json()["items"]
        slow.answers.set()

        async def none_is_awaited() -> bool:
            return "feeds_awaited" not in (await client.get("/readyz")).json()

        await until("the slow feed", none_is_awaited)
        await timetable.end()


@pytest.mark.parametrize(("age", "is_known"), [(timedelta(minutes=1), True), (timedelta(days=1), False)])
async def test_a_restart_knows_the_market_that_is_young_in_the_store(
    house: House, age: timedelta, is_known: bool
) -> None:
    async with house.open():
        pass
    assert isinstance(house.clock, FakeClock)
    house.clock.advance(seconds=age.total_seconds())
    async with house.open(scheduled=False, polled=False) as home:
        client, silent = home.client(None), SlowProvider(house.clock)
        feeds: Any = home.product.adapters
        feeds["fake"] = silent
        timetable = Scheduler(home.product, patience_s=0.01)
        timetable.start()
        readiness = home.product.readiness
        await until("the silent feed", lambda: is_true(readiness.awaited == {"fake"}))
        if not is_known:
            await asyncio.sleep(0.1)
            assert not await is_ready(client)
            silent.answers.set()
        await until("readiness", lambda: is_ready(client))
        assert readiness.awaited == ({"fake"} if is_known else set())
        silent.answers.set()
        await timetable.end()


async def test_a_market_without_an_offer_is_waited_for(house: House) -> None:
    house.provider.offers = ()
    async with house.open(scheduled=False, polled=False) as home:
        client, slow = home.client(None), SlowProvider(house.clock, provider="slow")
        feeds: Any = home.product.adapters
        feeds["slow"] = slow
        timetable = Scheduler(home.product, patience_s=0.01)
        timetable.start()
        readiness = home.product.readiness
        await until("the empty feed", lambda: asyncio.sleep(0, result=readiness.awaited == {"slow"}))
        await asyncio.sleep(0.1)
        assert not await is_ready(client)
        slow.answers.set()
        await until("readiness", lambda: is_ready(client))
        await timetable.end()


@dataclass
class SlowProvider(ClosableProvider):
    """Answers when it is let."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """What it sells, at last."""
        await self.answers.wait()
        return await super().list_offers(observed_at)


async def is_ready(client: Any) -> bool:
    return bool((await client.get("/readyz")).status_code == 200)


async def test_metrics_count_by_route(house: House) -> None:
    async with house.open(scheduled=True, polled=False) as home:
        client = home.client()
        await until("readiness", lambda: is_ready(client))
        await client.get("/v1/plans/some-plan")
        await client.get("/wp-login.php")
        text = (await client.get("/metrics")).text
    assert 'broker_feed_offers{provider="fake"} 3.0' in text
    assert 'broker_http_requests_total{method="GET",route="/v1/plans/{plan_id}",status="404"}' in text
    assert "wp-login" not in text
    assert "some-plan" not in text


async def test_the_service_describes_itself(house: House) -> None:
    async with house.open() as home:
        told = (await home.client(None).get("/openapi.json")).json()
    assert told["openapi"].startswith("3.1")
    paths = told["paths"]
    assert {
        "/v1/plans", "/v1/plans/{plan_id}", "/v1/plans/{plan_id}/events", "/v1/plans/{plan_id}/approve",
        "/v1/plans/{plan_id}/reserve", "/v1/reservations", "/v1/reservations/{reservation_id}", "/v1/offers",
        "/v1/offers/{offer_id}/prices", "/v1/providers", "/v1/reoptimizations", "/v1/spend/projection",
        "/v1/audit",
    } <= set(paths)  # fmt: skip
    assert not any(path.startswith(("/signin", "/plans")) for path in paths)
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in paths.items():
        for operation in operations.values():
            assert set(operation["responses"]["422"]["content"]) == {"application/problem+json"}, path
            assert "application/problem+json" in operation["responses"]["default"]["content"]
    refs = str(told).split("#/components/schemas/")[1:]
    names = {ref.split("'")[0] for ref in refs}
    assert names <= set(told["components"]["schemas"])


async def test_the_trail_of_a_plan(house: House) -> None:
    async with house.open() as home:
        ours, theirs = await home.team("research"), await home.team("product")
        plan_id = (await home.plan(ours))["plan_id"]
        trail = (await ours.get("/v1/audit", params={"object_id": plan_id})).json()["items"]
        assert [entry["action"] for entry in trail] == ["plan.done", "plan.run", "plan.request"]
        assert (await theirs.get("/v1/audit", params={"object_id": plan_id})).json()["items"] == []
        pages, cursor = [], None
        while True:
            params = {"limit": 2, "object_id": plan_id} | ({"cursor": cursor} if cursor else {})
            page = (await ours.get("/v1/audit", params=params)).json()
            pages += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert pages == trail


async def test_a_new_look_is_taken_on_request(house: House) -> None:
    async with house.open() as home:
        client = await home.team("research")
        plan = await home.plan(client)
        for offer in house.offers:
            cheaper = replace(offer, price_usd_per_node_hour=Decimal(1))
            house.provider.offers = (cheaper, *(o for o in house.offers if o != offer))
        await home.product.offers.refresh()
        answer = await client.post("/v1/reoptimizations")
        assert (answer.status_code, answer.headers["Location"]) == (202, "/v1/reoptimizations")

        async def found() -> bool:
            return bool((await client.get(answer.headers["Location"])).json()["items"])

        await until("a look", found)
        (look,) = (await client.get(answer.headers["Location"])).json()["items"]
        assert look["plan_id"] == plan["plan_id"]
        assert look["state"] in {"proposed", "unchanged", "rejected"}
        assert look["trigger"].startswith("requested by")
        stranger = await home.team("product")
        assert (await stranger.get("/v1/reoptimizations")).json()["items"] == []


async def test_a_plan_cut_off_by_a_crash_is_made_at_the_next_start(house: House) -> None:
    async with house.open() as home:
        client = await home.team("research")
        plan_id = (await home.plan(client))["plan_id"]
        async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan_id)
            await uow.plans.update(replace(record, state=PlanState.RUNNING, plan=None))
            await uow.commit()
    again = House(house.database)
    async with again.open(scheduled=True, polled=False) as home:

        async def done() -> bool:
            plan = (await home.client().get(f"/v1/plans/{plan_id}")).json()
            return bool(plan["state"] == "done")

        await until("the plan", done)


async def test_what_is_asked_meanwhile_is_made_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll is slow; a plan that is asked for before its end is no wreck of a crash."""
    async with house.open() as home:
        released = asyncio.Event()
        refresh = home.product.offers.refresh

        async def slowly(providers: Iterable[str], heard: Callable[[PollRound], None]) -> Any:
            await released.wait()
            return await refresh(providers, heard)

        monkeypatch.setattr(home.product.offers, "refresh", slowly)
        timetable = Scheduler(home.product)
        timetable.start()
        try:
            client = await home.team("research")
            answer = await client.post("/v1/plans", json=DOCUMENT)
            released.set()
            await until("readiness", lambda: is_ready(client))
            await until("the end", lambda: has_ended(client, answer.headers["Location"]))
            trail = await client.get("/v1/audit", params={"object_id": answer.json()["plan_id"]})
            actions = [entry["action"] for entry in trail.json()["items"]]
            assert actions == ["plan.done", "plan.run", "plan.request"]
        finally:
            await timetable.end()


async def has_ended(client: Any, path: str) -> bool:
    return bool((await client.get(path)).json()["state"] == "done")


async def test_jobs_survive_faults_and_never_overlap(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house.open() as home:
        timetable = Scheduler(home.product)
        at_once, most = 0, 0

        async def slow(providers: Iterable[str], heard: Callable[[PollRound], None]) -> tuple[()]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1
            return ()

        monkeypatch.setattr(home.product.offers, "refresh", slow)
        await asyncio.gather(timetable.poll(), timetable.poll(), timetable.poll())
        assert most == 1

        async def broken() -> None:
            raise ZeroDivisionError

        async def refused() -> None:
            raise ProviderUnavailable("fake", "down")

        for fault in (broken, refused):
            monkeypatch.setattr(home.product.reconcile, "run_once", fault)
            await timetable.reconcile()
        assert home.product.readiness.reconciled is False


async def test_changes_that_come_during_a_look_wait_together(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.open() as home:
        timetable, looks = Scheduler(home.product), list[int]()
        first_may_end = asyncio.Event()

        async def look(changes: tuple[OfferChange, ...]) -> None:
            looks.append(len(changes))
            await first_may_end.wait()

        monkeypatch.setattr(home.product.reoptimize, "run_if_touched", look)
        change = OfferChange(ChangeKind.PRICE, "h100-a", "fake", NOON, Decimal(1), Decimal(2))
        timetable._react_to([change])
        await until("the first look", lambda: asyncio.sleep(0, result=len(looks) == 1))
        for _ in range(3):
            timetable._react_to([change])
        first_may_end.set()
        await until("both looks", lambda: asyncio.sleep(0, result=len(looks) == 2))
        assert looks == [1, 3]


async def test_a_burst_of_changes_is_one_look(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.settings = house.settings.model_copy(update={"debounce_seconds": 1.0})
    async with house.open() as home:
        timetable, looks = Scheduler(home.product), list[int]()

        async def look(changes: tuple[OfferChange, ...]) -> None:
            looks.append(len(changes))

        monkeypatch.setattr(home.product.reoptimize, "run_if_touched", look)
        for _ in range(5):
            timetable._react_to(
                [OfferChange(ChangeKind.PRICE, "h100-a", "fake", NOON, Decimal(2), Decimal(1))]
            )
            await asyncio.sleep(0)
        await until("the look", lambda: asyncio.sleep(0, result=bool(looks)))
        assert looks == [5]


async def test_a_burst_is_over_with_its_poll_and_a_slow_feed_holds_no_look_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = OfferChange(ChangeKind.PRICE, "h100-a", "fake", NOON, Decimal(2), Decimal(1))
    for debounce_s, slowest_s, least_s, most_s in ((600.0, 0.05, 0.04, 60.0), (0.05, 600.0, 0.0, 60.0)):
        house.settings = house.settings.model_copy(update={"debounce_seconds": debounce_s})
        async with house.open() as home:
            looked, timetable = asyncio.Event(), Scheduler(home.product)

            async def look(changes: tuple[OfferChange, ...], looked: asyncio.Event = looked) -> None:
                looked.set()

            async def poll(
                providers: Iterable[str], heard: Callable[[PollRound], None], slowest_s: float = slowest_s
            ) -> tuple[()]:
                heard(PollRound("fake", NOON, 0.1, 1, changes=(change,)))
                await asyncio.sleep(slowest_s)
                return ()

            monkeypatch.setattr(home.product.reoptimize, "run_if_touched", look)
            monkeypatch.setattr(home.product.offers, "refresh", poll)
            began, polling = time.monotonic(), asyncio.create_task(timetable.poll())
            await asyncio.wait_for(looked.wait(), most_s)
            assert time.monotonic() - began >= least_s
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


async def test_the_end_waits_for_what_runs_and_closes_everything(house: House) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    async with house.open() as home:
        home.product.background.start(work())
        await asyncio.sleep(0)
    assert ended.is_set()
    assert house.provider.closed
    await home.product.close()  # twice is no error
    async with House(house.database).open():
        pass  # the file is free again


async def test_what_ends_already_is_waited_for_and_not_cut_off() -> None:
    """The timetable ends its passes while the product ends them too: each returns its connection in peace."""
    background, returned = Background(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            returned.set()

    passing = background.start(work())

    async def lead() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await end_all({passing})

    background.start(lead())
    await asyncio.sleep(0)
    await background.stop()
    assert returned.is_set()


async def test_what_fails_to_close_keeps_nothing_else_open(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise OSError("stuck")

    product: Product = house.build()
    monkeypatch.setattr(house.provider, "aclose", fail)
    with pytest.raises(OSError, match="stuck"):
        await product.close()
    async with House(house.database).open():
        pass


async def test_a_start_that_fails_leaves_nothing_open(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def newer() -> None:
        raise StoreTooNew("made by a newer version")

    product = house.build()
    monkeypatch.setattr(product.store, "migrate", newer)
    app = create_app(product)
    with pytest.raises(StoreTooNew):
        async with app.router.lifespan_context(app):
            pass
    assert house.provider.closed


SECOND = """
import sys
from api.bootstrap import build_product
from broker.domain.basics.errors import Conflict
from broker.settings import Settings
try:
    build_product(Settings(database_url=sys.argv[1], solver_executor="thread"), {})
except Conflict as error:
    print(error)
    sys.exit(5)
"""


async def test_a_second_process_on_the_file_is_told(house: House) -> None:
    async with house.open():
        second = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", SECOND, f"sqlite:///{house.database}"],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert second.returncode == 5, second.stderr
    assert "is in use by process" in second.stdout
    assert "BROKER_DATABASE_URL" in second.stdout


async def test_a_given_admin_key_opens_every_door(house: House) -> None:
    house.settings = Settings(admin_key=SecretStr("broker_live_given_0123456789abcdef"), poll_seconds=3600)
    async with house.open() as home:
        assert (
            await home.client("broker_live_given_0123456789abcdef").post("/v1/plans", json=DOCUMENT)
        ).status_code == 202
        assert (await home.client(ADMIN_KEY).get("/v1/plans")).status_code == 401
    async with House(house.database, settings=house.settings).open() as home:
        assert (await home.client("broker_live_given_0123456789abcdef").get("/v1/plans")).status_code == 200
