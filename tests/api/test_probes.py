"""The daily probe: its last report is kept, told wherever sellers are told of, and news of it is an event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import Any

from api.bootstrap import build_product
from api.jobs.scheduler import Scheduler
from broker.domain.market.probing import ComparedCall, Finding, FindingKind, ProbeReport
from broker.settings import Settings
from providers.sandbox import SandboxHandle
from tests.api.house import ADMIN_KEY, Home, House
from tests.fakes.clock import FakeClock
from tests.fakes.notifier import RecordingNotifier

NEW = Finding(FindingKind.VANISHED, "GET /types", "colour", "is read, and no row has it")
WORD = Finding(
    FindingKind.UNKNOWN_WORD, "GET /leases", "status", "'asleep' is no word that the adapter knows"
)
SILENT = Finding(FindingKind.UNANSWERED, "what is on sale", "", "no answer")
EVENT = "provider.changed"


class Seller:
    """Finds what it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.finds: Sequence[Finding] = ()
        self.asked: list[datetime] = []

    async def __call__(self, at: datetime) -> ProbeReport:
        self.asked.append(at)
        return ProbeReport("fake", at, (ComparedCall("GET /types", 7),), tuple(self.finds))


async def told(home: Home) -> Any:
    (feed,) = (await home.client().get("/v1/providers")).json()["items"]
    return feed["probe"]


async def test_a_seller_is_probed_once_a_day_and_what_is_new_is_told(tmp_path: Path) -> None:
    seller, clock, notifier = Seller(), FakeClock(), RecordingNotifier()
    house = House(tmp_path / "b.db", clock=clock, notifier=notifier, probes={"fake": seller})
    async with house.open() as home:
        timetable, visitor = Scheduler(home.product), home.client(None)
        await visitor.post("/signin", data={"key": ADMIN_KEY})
        assert await told(home) is None
        await timetable.probe()
        assert await told(home) == {
            "at": "2026-11-23T12:00:00Z",
            "compared": [{"call": "GET /types", "rows": 7}],
            "findings": [],
        }
        assert "answers differ" not in (await visitor.get("/market")).text
        assert "Nothing differs" in (await visitor.get("/market/feeds/fake")).text

        seller.finds = (NEW,)
        clock.advance(hours=23)
        await timetable.probe()
        assert len(seller.asked) == 1
        clock.advance(hours=1)
        await timetable.probe()
        await visitor.post("/signin", data={"key": ADMIN_KEY})  # a session ends after a day
        row = {"kind": "vanished", "call": NEW.call, "field": NEW.field, "says": NEW.says}
        assert (await told(home))["findings"] == [row]
        assert "1 difference" in (await visitor.get("/market")).text
        assert NEW.says in unescape((await visitor.get("/market/feeds/fake")).text)
        assert notifier.events().count(EVENT) == 1

        for finds, events in (((NEW,), 1), ((SILENT,), 1), ((NEW, WORD), 2), ((), 2)):
            seller.finds = finds
            clock.advance(days=1)
            await timetable.probe()
            assert notifier.events().count(EVENT) == events
        entries = (await home.client().get("/v1/audit", params={"limit": 200})).json()["items"]
        details = [entry["detail"] for entry in entries if entry["action"] == EVENT]
        assert sorted(details) == sorted([str(NEW), str(WORD)])
        assert (await told(home))["findings"] == []


async def test_one_probe_that_breaks_keeps_no_other_waiting(tmp_path: Path) -> None:
    async def broken(at: datetime) -> ProbeReport:
        raise ZeroDivisionError

    seller = Seller()
    house = House(tmp_path / "b.db", probes={"a-broken-one": broken, "fake": seller})
    async with house.open() as home:
        assert [report.provider for report in await home.product.probes.run_due()] == ["fake"]
        assert await home.product.probes.run_due() == ()
        assert len(seller.asked) == 1


async def test_a_poll_leaves_the_report_as_it_was(tmp_path: Path) -> None:
    seller = Seller()
    seller.finds = (NEW,)
    house = House(tmp_path / "b.db", probes={"fake": seller})
    async with house.open() as home:
        await home.product.probes.run_due()
        await home.product.offers.refresh()
        assert len((await told(home))["findings"]) == 1


async def test_sellers_with_credentials_of_ones_own_are_probed(
    tmp_path: Path, sandbox_market: SandboxHandle
) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'b.db'}", solver_executor="thread")
    own = {"BROKER_LAMBDA_API_KEY": "k-of-our-own", "BROKER_LAMBDA_BASE_URL": f"{sandbox_market.url}/lambda"}
    product = build_product(settings, own, sandbox_url="http://127.0.0.1:9", clock=FakeClock())
    try:
        await product.store.migrate()
        (report,) = await product.probes.run_due()
        assert (report.provider, report.findings) == ("lambda", ())
        assert not await product.probes.run_due()
    finally:
        await product.close()
