"""The whole product, opened anew each day on one SQLite file, and driven over its own HTTP API."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from api import bootstrap
from api.app import create_app
from broker.settings import Settings
from providers.http import ProviderHttp
from providers.sandbox import SandboxHandle
from tests.faults.auditor import WAITING, Auditor, Row, Sums, added
from tests.faults.broker_life import StandingClock

SELLERS = ("digitalocean", "hotaisle", "prime_intellect", "sfcompute", "vultr")
ADMIN_KEY = "broker_live_month_admin_0123456789abcdef"
TEAMS = ("chat", "research")
SCOPES = ["plans:read", "plans:write", "reservations:write", "spend:read"]
LONGEST_STEP, SHORT_STEP = timedelta(hours=12), timedelta(minutes=1)
MOST_PASSES = 6
POLL_SECONDS = 86_400.0


def stamp(instant: datetime) -> str:
    """A time as documents have it."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Books:
    """What lasts longer than a day: the market, the auditor, keys, and what went wrong on the way."""

    market: SandboxHandle
    database: Path
    control: httpx.Client
    auditor: Auditor
    keys: dict[str, str] = field(default_factory=dict)
    sellers_said: list[str] = field(default_factory=list)

    def fault(self, provider: str, operation: str, kind: str, hours: float) -> None:
        """A seller refuses, or is down, for every such call of the next hours."""
        self._arm(provider, operation, kind, seconds=hours * 3600)

    def fault_once(self, provider: str, operation: str, kind: str) -> None:
        """The next such call fails."""
        self._arm(provider, operation, kind, count=1)

    def _arm(self, provider: str, operation: str, kind: str, **how_long: float) -> None:
        body = {"provider": provider, "operation": operation, "kind": kind, **how_long}
        self.control.post("/_sandbox/faults", json=body).raise_for_status()

    def sell(self, provider: str, sku: str, usd: str, nodes: int) -> None:
        """A seller asks ``usd`` a node-hour from now on, and has ``nodes`` left, in every region."""
        body = {"provider": provider, "sku": sku, "price_usd": usd, "stock": nodes}
        self.control.post("/_sandbox/market", json=body).raise_for_status()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Office]:
        """The product, started on the database as the day before left it."""
        clock = StandingClock(self.market.url, ProviderHttp)
        settings = Settings(
            database_url=f"sqlite:///{self.database}",
            admin_key=SecretStr(ADMIN_KEY),
            solver_executor="thread",
            poll_seconds=POLL_SECONDS,
            price_tolerance=0.1,
            plan_time_limit_s=5,
            plan_workers=1,
            replan_time_limit_s=3,
            orders="on",  # sellers at addresses of their own count as real
        )
        environ = {f"BROKER_{name.upper()}_BASE_URL": f"{self.market.url}/{name}" for name in SELLERS}
        # No decision may hang on how long this machine takes.
        product = bootstrap.build_product(settings, environ, clock=clock)
        app = create_app(product, scheduled=False)
        async with app.router.lifespan_context(app):
            await clock.refresh()
            office = Office(self, product, clock, httpx.ASGITransport(app=app))
            try:
                yield office
            finally:
                await office.leave()


@dataclass
class Office:
    """One day's product, its timetable run by hand."""

    books: Books
    product: bootstrap.Product
    clock: StandingClock
    transport: httpx.ASGITransport

    def __post_init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def leave(self) -> None:
        """Closes what was opened."""
        for client in self._clients.values():
            await client.aclose()

    @property
    def now(self) -> datetime:
        """The market's time."""
        return self.clock.now()

    def _client(self, team: str) -> httpx.AsyncClient:
        if team not in self._clients:
            key = ADMIN_KEY if team == "admin" else self.books.keys[team]
            headers = {"Authorization": f"Bearer {key}"}
            self._clients[team] = httpx.AsyncClient(
                transport=self.transport, base_url="http://broker", headers=headers
            )
        return self._clients[team]

    async def ask(self, team: str, method: str, path: str, body: Any = None, **query: str) -> Any:
        """The answer to ``team`` (or ``admin``), which has to be good."""
        answer = await self._client(team).request(method, path, json=body, params=query)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    async def every(self, team: str, path: str, **query: str) -> list[dict[str, Any]]:
        """All items of a list."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.ask(team, "GET", path, limit="200", **query, **cursor)
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    async def rows(self) -> list[dict[str, Any]]:
        """Every team's reservations, as each team sees its own, and those of nobody."""
        mine = [row for team in TEAMS for row in await self.every(team, "/v1/reservations")]
        known = {row["reservation_id"] for row in mine}
        others = await self.every("admin", "/v1/reservations")
        return mine + [row for row in others if row["reservation_id"] not in known]

    # What the teams do

    async def plan(self, team: str, document: Row, *, intended: bool) -> dict[str, Any]:
        """A plan, asked for and made."""
        query = {"intended": str(intended).lower(), "gap": "0.02"}
        plan_id = (await self.ask(team, "POST", "/v1/plans", document, **query))["plan_id"]
        await self.ask(team, "GET", f"/v1/plans/{plan_id}/events")
        return await self.shown(team, plan_id)

    async def shown(self, team: str, plan_id: str) -> dict[str, Any]:
        """A plan that is made."""
        plan: dict[str, Any] = await self.ask(team, "GET", f"/v1/plans/{plan_id}")
        assert plan["state"] == "done", plan
        return plan

    async def offer(self, provider: str, **wanted: Any) -> dict[str, Any]:
        """The first offer of a seller with these words that has stock."""
        return next(
            one
            for one in await self.every("admin", "/v1/offers", provider=provider)
            if one["stock"]["level"] != "none" and wanted.items() <= one.items()
        )

    async def hold(
        self, team: str, offer: Row, nodes: int, start: datetime | None = None, end: datetime | None = None
    ) -> str:
        """Holds nodes of an offer from ``start`` (None: now) to ``end`` (None: until released)."""
        times = {name: stamp(at) for name, at in (("start", start), ("end", end)) if at is not None}
        body = {"offer_id": offer["offer_id"], "nodes": nodes, "workload": "by-hand", **times}
        row = await self.ask(team, "POST", "/v1/reservations", body)
        return str(row["reservation_id"])

    async def release(self, team: str, reservation_id: str) -> None:
        """Asks for an end; a seller may refuse it."""
        await self.ask(team, "DELETE", f"/v1/reservations/{reservation_id}")

    # Time

    async def poll(self, *, with_windows: bool) -> None:
        """Asks every seller what it sells; a book of windows takes a hundred calls."""
        names = [name for name in SELLERS if with_windows or name != "sfcompute"]
        for round_ in await self.product.offers.refresh(names):
            if round_.error is not None:
                self.books.sellers_said.append(f"{self.now:%d %H:%M} {round_.provider}: {round_.error}")

    async def settle(self) -> tuple[bool, list[dict[str, Any]]]:
        """Passes of the reconciler until nothing is left to do: whether anything was, and all rows."""
        acted = False
        for _ in range(MOST_PASSES):
            report = await self.product.reconcile.run_once()
            self.books.sellers_said += [f"{self.now:%d %H:%M} {error}" for error in report.errors]
            moved = await self.product.proposals.act()
            if not report.actions and not moved:
                break
            acted = True
        rows = await self.rows()
        self.books.auditor.look(rows)
        return acted, rows

    async def live_until(self, instant: datetime) -> None:
        """Time passes; the reconciler looks where something begins or ends, and each half day."""
        _, rows = await self.settle()
        while self.now < instant:
            edges = [
                datetime.fromisoformat(row[name])
                for row in rows
                if row["state"] in WAITING
                for name in ("start", "end")
                if row[name] is not None
            ]
            later = [edge for edge in edges if edge > self.now]
            await self._pass_to(min([instant, self.now + LONGEST_STEP, *later]))
            acted, rows = await self.settle()
            if acted and self.now + SHORT_STEP < instant:
                await self._pass_to(self.now + SHORT_STEP)
                _, rows = await self.settle()

    async def _pass_to(self, instant: datetime) -> None:
        await self.pass_seconds((instant - self.now).total_seconds())

    async def pass_seconds(self, seconds: float) -> None:
        """The market's clock goes on, and nobody does anything."""
        self.books.control.post("/_sandbox/clock", json={"advance_s": seconds}).raise_for_status()
        await self.clock.refresh()

    # What finance reads

    async def sums(self, group_by: str, basis: str, **query: str) -> Sums:
        """Spend in the cash view, by group."""
        found = await self.ask(
            "admin", "GET", "/v1/spend/projection", view="cash", interval="month", group_by=group_by, **query
        )
        return added((one["group"], Decimal(one["usd"])) for one in found["items"] if one["basis"] == basis)

    async def focus(self, **query: str) -> tuple[Sums, Sums]:
        """``BilledCost`` of the FOCUS rows, by team and by seller."""
        text = await self.ask("admin", "GET", "/v1/spend/focus.csv", **query)
        rows = list(csv.DictReader(io.StringIO(text)))
        by: tuple[defaultdict[str, Decimal], ...] = (defaultdict(Decimal), defaultdict(Decimal))
        for row in rows:
            for sums, column in zip(by, ("SubAccountId", "ProviderName"), strict=True):
                sums[row[column]] += Decimal(row["BilledCost"])
        teams, sellers = (added(sums.items()) for sums in by)
        return teams, sellers

    async def owed(self) -> dict[tuple[str, str], tuple[datetime, datetime, Decimal]]:
        """What each budget says is owed, with its period."""
        return {
            (one["team"], one["period"]): (
                datetime.fromisoformat(one["from"]),
                datetime.fromisoformat(one["to"]),
                Decimal(one["owed_usd"]),
            )
            for one in await self.every("admin", "/v1/budgets")
        }


def fleet(
    team: str, name: str, start: datetime, days: int, requests_per_s: Sequence[float], sellers: Sequence[str]
) -> dict[str, Any]:
    """A document of one service on demand; ``requests_per_s``: of the hours of a day, repeated."""
    return {
        "team": team,
        "horizon": {"start": stamp(start), "days": days},
        "policy": {"tiers": ["on_demand"], "providers": {"only": list(sellers)}},
        "workloads": [
            {
                "name": name,
                "kind": "serving",
                "model": "Llama-3.1-8B",
                "precisions": ["bf16"],
                "traffic": {"hourly": list(requests_per_s) * 7, "input_tokens": 800, "output_tokens": 200},
                "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 80},
            }
        ],
    }
