"""Clients of several brokers that ask, reserve, release and read at random, and note what they were told."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.e2e.asking import services
from tests.e2e.processes import Running

PAGES = ("/", "/market", "/plans", "/reservations", "/spend")
PLAN_LIMIT_S = 2.0
PLANS_AT_ONCE, HELD_AT_ONCE = 6, 30
THINK_S = 1.0
LOOK_S = 0.2
PATIENCE_S = 240.0
ON_ITS_WAY = frozenset({"queued", "running"})


@dataclass
class Load:
    """Clients behind a load balancer: calls go to brokers whose ``/readyz`` last said 200, else to any."""

    brokers: list[Running]
    http: httpx.AsyncClient
    offers: Sequence[str]
    draw: Random
    over: asyncio.Event = field(default_factory=asyncio.Event)
    restarting: bool = False
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ready: list[Running] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    plans: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    async def balance(self) -> None:
        """Asks all brokers whether they are ready, until cancelled."""

        async def is_ready(broker: Running) -> bool:
            try:
                return (await self.http.get(broker.url + "/readyz", timeout=5)).status_code == 200
            except httpx.TransportError:
                return False

        while True:
            asked = list(self.brokers)
            said = await asyncio.gather(*map(is_ready, asked))
            self.ready = [broker for broker, ready in zip(asked, said, strict=True) if ready]
            await asyncio.sleep(LOOK_S)

    async def call(self, kind: str, method: str, path: str, **given: Any) -> httpx.Response | None:
        """One call to one broker; None where no answer came."""
        broker, began = self.draw.choice(self.ready or self.brokers), time.monotonic()
        answer, said = None, ""
        try:
            answer = await self.http.request(method, broker.url + path, **given)
        except httpx.TransportError as error:
            said = type(error).__name__
        self.seconds[kind].append(time.monotonic() - began)
        if answer is not None and answer.is_error:
            is_document = "json" in answer.headers["Content-Type"]
            said = f"{answer.status_code} {answer.json()['code'] if is_document else ''}".strip()
        if said:
            self.errors[kind][f"{said} (restart)" if self.restarting else said] += 1
        return answer

    async def insist(self, kind: str, method: str, path: str, **given: Any) -> httpx.Response | None:
        """The same again until it is answered for good, as clients are told to do; None at the limit."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = await self.call(kind, method, path, **given)
            if answer is not None and not _comes_again(answer):
                return answer
            await asyncio.sleep(1)
        self.problems.append(f"{kind}: no answer in {PATIENCE_S:.0f} s, {method} {path}")
        return None

    def key(self, what: str) -> dict[str, str]:
        """A new idempotency key, as headers."""
        self.numbers[what] += 1
        return {"Idempotency-Key": f"{what}-{self.numbers[what]}"}

    async def live(self) -> None:
        """One client's life."""
        acts: Mapping[Callable[[], Awaitable[Any]], int] = {
            self.read_offers: 4, self.ask_for_plan: 1, self.read_plan: 4, self.reserve: 2, self.release: 2,
            self.read_spend: 2, self.read_page: 3,
        }  # fmt: skip
        while not self.over.is_set():
            await self.draw.choices(list(acts), list(acts.values()))[0]()
            await asyncio.sleep(self.draw.uniform(0, THINK_S))

    async def read_offers(self) -> None:
        """Two pages of offers."""
        params = {"limit": self.draw.choice(("20", "100"))}
        answer = await self.call("offers", "GET", "/v1/offers", params=params)
        if answer is not None and answer.is_success and (cursor := answer.json()["next_cursor"]):
            await self.call("offers", "GET", "/v1/offers", params={**params, "cursor": cursor})

    async def ask_for_plan(self, limit: int = PLANS_AT_ONCE) -> str | None:
        """A plan of one to three services, unless ``limit`` are on their way."""
        if sum(status in ON_ITS_WAY for status in self.plans.values()) >= limit:
            return None
        body = services(f"team-{self.draw.randrange(3)}", self.draw.randint(1, 3))
        params, key = {"time_limit_s": str(PLAN_LIMIT_S)}, self.key("plan")
        answer = await self.insist("plan: ask", "POST", "/v1/plans", params=params, json=body, headers=key)
        if answer is None or answer.status_code != 202:
            return None
        plan_id = str(answer.json()["plan_id"])
        self.plans[plan_id] = "queued"
        return plan_id

    async def read_plan(self, plan_id: str | None = None) -> None:
        """One plan, or any, of those on their way first; one of twelve of these is cancelled."""
        known = [one for one, status in self.plans.items() if status in ON_ITS_WAY] or list(self.plans)
        if plan_id is None and known:
            plan_id = self.draw.choice(known)
            if self.plans[plan_id] in ON_ITS_WAY and self.draw.random() < 1 / 12:
                await self.insist("plan: cancel", "DELETE", f"/v1/plans/{plan_id}")
        if plan_id is not None:
            answer = await self.call("plan: read", "GET", f"/v1/plans/{plan_id}")
            if answer is not None and answer.is_success:
                self.plans[plan_id] = str(answer.json()["status"])

    async def are_made(self, plan_ids: Iterable[str | None]) -> bool:
        """Whether none of them is on its way any more; those that were are read again."""
        late = [one for one in plan_ids if one is not None and self.plans[one] in ON_ITS_WAY]
        await asyncio.gather(*map(self.read_plan, late))
        return not late

    async def reserve(self) -> None:
        """A node or two; one of four requests is repeated under its key, and must have the same answer."""
        if len(self.kept) >= HELD_AT_ONCE:
            return
        wish = {"offer_id": self.draw.choice(self.offers), "nodes": self.draw.choice((1, 1, 2))}
        given = {"json": wish, "headers": self.key("reserve")}
        answer = await self.insist("reserve", "POST", "/v1/reservations", **given)
        if answer is None or answer.status_code != 202:
            return
        reservation_id = str(answer.json()["reservation_id"])
        self.kept.add(reservation_id)
        if self.draw.random() < 1 / 4:
            again = await self.insist("reserve: repeat", "POST", "/v1/reservations", **given)
            if again is not None and again.json().get("reservation_id") != reservation_id:
                self.problems.append(f"doubled: {reservation_id} under its key again is {again.text}")

    async def release(self) -> None:
        """Gives one of those that are held back."""
        if len(self.kept) > HELD_AT_ONCE / 3:
            reservation_id = self.draw.choice(sorted(self.kept))
            self.kept.discard(reservation_id)
            self.released.add(reservation_id)
            await self.insist("release", "DELETE", f"/v1/reservations/{reservation_id}")

    async def read_spend(self) -> None:
        """Projected spend."""
        params = {"interval": "month", "group_by": self.draw.choice(("team", "provider", "workload"))}
        await self.call("spend", "GET", "/v1/spend/projection", params=params)

    async def read_page(self) -> None:
        """A page, as a visitor who is signed in."""
        await self.call("page", "GET", self.draw.choice(PAGES))


def _comes_again(answer: httpx.Response) -> bool:
    return answer.status_code == 503 or (
        answer.status_code == 409 and answer.json()["code"] in {"still-at-work", "concurrent-change"}
    )
