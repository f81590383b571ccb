"""A month of two teams on the sandbox market, reckoned each midnight without the broker's code.

The product is started anew each day. The auditor adds up the market's ledger, the prices at which it sold,
and what the teams hold; the actual spend, FOCUS rows, projection, budgets and closed month of the broker are
the same, to the cent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.fakes.examples import PUBLIC_KEY
from tests.faults import haste
from tests.faults.auditor import ZERO, Auditor, Reckoning, drafted
from tests.faults.broker_life import START, standing_market
from tests.faults.month import SCOPES, SELLERS, TEAMS, Books, Office, fleet, stamp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("month")]
"""One worker lives the month: it takes minutes."""

DAYS = 30
FLEET_DAYS = 9
DECEMBER = datetime(2026, 12, 1, tzinfo=START.tzinfo)
JANUARY = datetime(2027, 1, 1, tzinfo=START.tzinfo)
NOVEMBER = {"from": "2026-11-01T00:00:00Z", "to": stamp(DECEMBER)}
PEAK_AND_NIGHT = [2.0] * 7 + [9.0] * 12 + [2.0] * 5
L40S = "vcg-l40s-16c-180g-48vram"
SERVED_BY = ("digitalocean", "vultr")


def day(number: float) -> datetime:
    """Midnight of a day of the month, the first is 0."""
    return START + timedelta(days=number)


@dataclass
class Month:
    """The story: what the teams do on each day, and what finance sees at its end."""

    books: Books
    held: dict[str, str] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    drafts: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    afterwards: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    closed: tuple[Any, ...] = ()

    async def live(self) -> None:
        """All of it."""
        acts: dict[int, Callable[[Office], Awaitable[None]]] = {
            0: self.begin,
            1: self.plan_the_same_twice,
            2: self.take_terms,
            3: self.meet_refusals,
            4: self.ask_finance,
            5: self.lose_a_seller,
            6: self.follow_a_price,
            8: self.close_november,
            1 + FLEET_DAYS: self.forget_the_duplicate,
            11: self.leave_terms,
            12: self.lose_an_answer,
            13: self.take_the_next_best,
            16: self.hold_on_at_half_past,
            19: self.let_go,
        }
        for number in range(DAYS):
            async with self.books.opened() as office:
                if number == 0:
                    self.books.sell("vultr", L40S, "1.68", 6)
                if number < 8 or number % 4 == 0:
                    await office.poll(with_windows=number == 2)
                if number in acts:
                    await acts[number](office)
                await office.live_until(day(number + 1))
                await office.product.spend.roll_up()
                self.books.auditor.keep()
                await self.agree(office)

    # What happens

    async def begin(self, office: Office) -> None:
        """A fleet that follows its traffic over the month's end, and a lease without an end."""
        for team in TEAMS:
            key = await office.ask(
                "admin", "POST", "/v1/keys", {"name": team, "team": team, "scopes": SCOPES}
            )
            self.books.keys[team] = key["secret"]
            await office.ask(team, "POST", "/v1/ssh-keys", {"public_key": PUBLIC_KEY})
        for team in (*TEAMS, "*"):
            for period in ("month", "quarter"):
                body = {"limit_usd": "1000000"}
                await office.ask("admin", "PUT", f"/v1/budgets/{team}/{period}", body)
        self.plans["fleet"] = fleet("chat", "chat-8b", day(1), FLEET_DAYS, PEAK_AND_NIGHT, SERVED_BY)
        plan = await office.plan("chat", self.plans["fleet"], intended=True)
        self.drafts = [plan]
        await self.agree(office)
        await office.ask("chat", "POST", f"/v1/plans/{plan['plan_id']}/reserve")
        self.drafts, self.plans["held"] = [], plan["plan_id"]
        self.seen["slots"] = len(await office.every("chat", "/v1/reservations"))
        offer = await office.offer("digitalocean", sku="gpu-h200x1-141gb")
        self.held["open"] = await office.hold("research", offer, 1)

    async def plan_the_same_twice(self, office: Office) -> None:
        """What is held counts, not its duplicate."""
        plan = await office.plan("chat", self.plans["fleet"], intended=True)
        self.plans["duplicate"] = plan["plan_id"]

    async def take_terms(self, office: Office) -> None:
        """A minimum of a month, one of a day, and a window over the month's end."""
        hot = next(
            one
            for one in await office.every("admin", "/v1/offers", provider="hotaisle")
            if one["min_hours"] >= 720
        )
        await office.hold("research", hot, 1, end=office.now + timedelta(hours=30))
        prepaid = next(
            one
            for one in await office.every("admin", "/v1/offers", provider="prime_intellect")
            if one["min_hours"] >= 24
        )
        self.held["prepaid"] = await office.hold("chat", prepaid, 1)
        windows = [
            (one, max(datetime.fromisoformat(part["start"]), day(5)), datetime.fromisoformat(part["end"]))
            for one in await office.every("admin", "/v1/offers", provider="sfcompute")
            for part in (one["window"] or {"segments": []})["segments"]
            if part["nodes"] >= 2
        ]
        offer, start, end = next(one for one in windows if one[1] < DECEMBER < one[2])
        await office.hold("research", offer, 2, start, min(end, day(11)))

    async def meet_refusals(self, office: Office) -> None:
        """A seller has nothing for the fleet's peak."""
        self.books.fault("digitalocean", "create", "out_of_capacity", 30)

    async def ask_finance(self, office: Office) -> None:
        """A plan over the limit, intended until finance says no; the prepaid lease ends after its term."""
        self.seen["short"] = len(await office.every("chat", "/v1/reservations/shortfalls"))
        budget, limit = "/v1/budgets/research/month", {"limit_usd": "1000000"}
        await office.ask("admin", "PUT", budget, {"limit_usd": "1"})
        document = fleet("research", "eval-8b", day(14), 10, [3.0] * 24, SERVED_BY)
        plan = await office.plan("research", document, intended=True)
        await office.ask("admin", "PUT", budget, limit)
        assert plan["needs_approval"], "a plan over a budget waits"
        self.drafts = [plan]
        await self.agree(office)
        await office.ask("admin", "POST", f"/v1/plans/{plan['plan_id']}/reject", {"comment": "not now"})
        self.drafts = []
        await self.agree(office)
        await office.release("chat", self.held["prepaid"])

    async def lose_a_seller(self, office: Office) -> None:
        """A seller that answers nothing but errors; a lease that shall end there runs on."""
        self.books.fault("digitalocean", "get", "http_500", 5)
        self.books.fault("digitalocean", "delete", "http_500", 9)
        await office.release("research", self.held.pop("open"))
        again = await office.offer("vultr", sku="vcg-a40-24c-120g-48vram")
        self.held["open"] = await office.hold("research", again, 1)

    async def follow_a_price(self, office: Office) -> None:
        """A price falls, and the fleet follows it."""
        self.books.sell("vultr", L40S, "0.85", 6)
        await office.poll(with_windows=False)
        await office.product.reoptimize.run("a price fell")
        for look in await office.every("chat", "/v1/reoptimizations"):
            if look["state"] == "proposed" and look["plan_id"] == self.plans["held"]:
                await office.ask("chat", "POST", f"/v1/reoptimizations/{look['reoptimization_id']}/accept")
                self.seen["moves"] = self.seen.get("moves", 0) + len(look["moves"])

    async def close_november(self, office: Office) -> None:
        """The month is closed; its sums, rows and ledger are one."""
        await office.ask("admin", "POST", "/v1/spend/close", month="2026-11")
        self.closed = await self._november(office)

    async def forget_the_duplicate(self, office: Office) -> None:
        """The fleet's days are over; nobody intends its duplicate any more."""
        path = f"/v1/plans/{self.plans['duplicate']}/intend"
        await office.ask("chat", "POST", path, {"intended": False})

    async def leave_terms(self, office: Office) -> None:
        """The window has ended by itself."""
        states = {row["state"] for row in await office.rows() if row["provider"] == "sfcompute"}
        assert states <= {"released", "releasing", "active"}

    async def lose_an_answer(self, office: Office) -> None:
        """A seller sells, and half of its answer arrives: the machine is found by its tag."""
        self.books.fault_once("vultr", "create", "malformed")
        offer = await office.offer("vultr", sku="vcg-a40-24c-120g-48vram")
        self.held["unheard"] = await office.hold("research", offer, 1, end=day(12) + timedelta(hours=20))

    async def take_the_next_best(self, office: Office) -> None:
        """The seller of a plan has sold what it was to buy; another offer at the same price is taken."""
        name = self.held.pop("unheard")
        unheard = next(row for row in await office.rows() if row["reservation_id"] == name)
        assert len(unheard["provider_references"]) == 1, unheard
        document = fleet("research", "burst-8b", day(13) + timedelta(hours=2), 1, [3.0] * 24, ["vultr"])
        plan = await office.plan("research", document, intended=False)
        self.books.fault_once("vultr", "create", "out_of_capacity")
        await office.ask("research", "POST", f"/v1/plans/{plan['plan_id']}/reserve")
        await office.live_until(day(13) + timedelta(hours=3))
        planned = {one["offer_id"] for one in plan["placements"]}
        bought = {
            row["offer_id"]
            for row in await office.rows()
            if row["plan_id"] == plan["plan_id"] and row["provider_references"]
        }
        self.seen["next best"] = len(bought - planned)

    async def hold_on_at_half_past(self, office: Office) -> None:
        """A lease that begins off the hour, at a price of fractions of a cent."""
        await office.live_until(day(16) + timedelta(hours=3, minutes=31))
        offer = await office.offer("vultr", sku="vcg-a100-12c-120g-80vram")
        self.held["odd"] = await office.hold("research", offer, 1)

    async def let_go(self, office: Office) -> None:
        """What has no end is released, off the hour."""
        await office.live_until(day(19) + timedelta(hours=9, minutes=17))
        for name in ("open", "odd"):
            await office.release("research", self.held.pop(name))

    # What finance sees

    async def agree(self, office: Office) -> None:
        """Every figure against the auditor's."""
        auditor, rows = self.books.auditor, await office.rows()
        auditor.look(rows)
        self._note(office, "ledger", auditor.misbilled())
        teams, wrong = auditor.owners(rows)
        self._note(office, "leases", wrong)
        billed = auditor.billed(teams)
        await self._compare(office, "actual", billed, "actual")
        self._note(office, "FOCUS", billed.compare(*await office.focus()))
        month_end = JANUARY if office.now >= DECEMBER else DECEMBER
        coming = auditor.expected(rows, month_end)
        coming.amounts += drafted(self.drafts).amounts
        await self._compare(office, "projected", coming, "projected")
        for (team, period), (start, end, usd) in (await office.owed()).items():
            due = auditor.amortized(teams, start, end)
            if abs(usd - due.of(team)) >= max(due.odd(team) * Decimal("0.01"), Decimal("0.0001")):
                self._note(office, f"budget {team}/{period}", [f"found {usd}, reckoned {due.of(team):.4f}"])
        if self.closed:
            again = await self._november(office)
            self._note(office, "closed month", [] if again == self.closed else [f"{again} != {self.closed}"])

    async def _november(self, office: Office) -> tuple[Any, ...]:
        """November's sums, which are those of its FOCUS rows and of what the market had billed by its end."""
        teams, _ = self.books.auditor.owners(await office.rows())
        said = [await office.sums(group, "actual", **NOVEMBER) for group in ("team", "provider")]
        rows = await office.focus(**NOVEMBER)
        billed = self.books.auditor.billed(teams, DECEMBER)
        self._note(office, "November", billed.compare(said[0], said[1]))
        self._note(office, "November's rows", [] if list(rows) == said else [f"{rows} != {said}"])
        return (*said, *rows)

    async def _compare(self, office: Office, what: str, mine: Reckoning, basis: str) -> None:
        by_team = await office.sums("team", basis)
        self._note(office, what, mine.compare(by_team, await office.sums("provider", basis)))

    def _note(self, office: Office, what: str, differences: list[str]) -> None:
        fleet_is_over = what == "projected" and office.now == day(1 + FLEET_DAYS)
        noted = self.afterwards if fleet_is_over else self.wrong
        noted += [f"{office.now:%d %b %H:%M} {what}: {one}" for one in differences]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Month]:
    """The month, lived once."""
    market = standing_market(seed=11)
    try:
        with httpx.Client(base_url=market.url, trust_env=False, timeout=20) as control:
            folder = tmp_path_factory.mktemp("month")
            month = Month(Books(market, folder / "broker.db", control, Auditor(control)))
            haste.run(month.live())
            yield month
    finally:
        market.stop()


def test_a_month_is_what_the_market_billed(lived: Month) -> None:
    lines = lived.books.auditor.lines.values()
    total_usd = sum((line.billed_usd for line in lines), ZERO)
    print(f"{len(lines)} leases, {total_usd} USD, {lived.seen}", *lived.wrong, sep="\n")
    assert lived.seen["slots"] > 5, "the fleet follows its traffic"
    assert lived.seen["moves"] > 0, "the fleet followed the price"
    assert lived.seen["short"] > 0, "what was refused was missing"
    assert lived.seen["next best"] == 1, "what was sold out was bought elsewhere"
    assert any("digitalocean" in said for said in lived.books.sellers_said), "the outage was met"
    assert {line.provider for line in lines} == set(SELLERS)
    assert lived.wrong == []


def test_a_duplicate_is_not_expected_once_its_days_are_over(lived: Month) -> None:
    assert lived.afterwards == []
