"""The tester's endpoints under ``/_sandbox/``: ledger, call counts, clock, faults, market."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from broker.domain.basics.money import format_usd
from providers.sandbox.faults import CREATE_ONLY, FaultKind, Operation
from providers.sandbox.ledger import ledger_row, zulu
from providers.sandbox.market import market_row
from providers.sandbox.protocol import Call, Refusal, Reply, Route, SandboxState, json_reply

_NOTE = (
    "Prices are recorded figures of the day in recorded_on (see fixtures/market/SOURCE.md), not live; "
    "rows whose source says illustrative are invented for the sandbox. Stock is drawn by seed."
)


class FaultRequest(BaseModel):
    """Body of ``POST /_sandbox/faults``."""

    model_config = ConfigDict(extra="forbid")

    provider: str
    operation: Operation
    kind: FaultKind
    count: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    when: Literal["before", "after"] = "before"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind in CREATE_ONLY and self.operation != "create":
            raise ValueError(f"operation: {self.kind} only makes sense with operation 'create'")
        return self


class MarketRequest(BaseModel):
    """Body of ``POST /_sandbox/market``."""

    model_config = ConfigDict(extra="forbid")

    provider: str
    sku: str
    region: str | None = None
    tier: Literal["on_demand", "spot", "committed", "window"] | None = None
    price_factor: Annotated[Decimal, Field(gt=0)] | None = None
    price_usd: Annotated[Decimal, Field(ge=0)] | None = None
    stock: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.price_factor is not None and self.price_usd is not None:
            raise ValueError("price_usd: give price_factor or price_usd, not both")
        if self.price_factor is None and self.price_usd is None and self.stock is None:
            raise ValueError("price_factor: one of price_factor, price_usd and stock is needed")
        return self


class ClockRequest(BaseModel):
    """Body of ``POST /_sandbox/clock``."""

    model_config = ConfigDict(extra="forbid")

    advance_s: Annotated[float, Field(ge=0, le=10 * 365 * 86400)]


class Control:
    """Answers calls under ``/_sandbox``; they need no key."""

    def __init__(self, sandbox: SandboxState, providers: Iterable[str]) -> None:
        self._sandbox = sandbox
        self._providers = frozenset(providers)
        self._routes = (
            Route("GET", "/ledger", "other", self._ledger),
            Route("GET", "/requests", "other", self._requests),
            Route("GET", "/clock", "other", self._clock),
            Route("GET", "/market", "other", self._market),
            Route("GET", "/faults", "other", self._faults),
            Route("POST", "/faults", "other", self._arm),
            Route("DELETE", "/faults", "other", self._disarm),
            Route("POST", "/market", "other", self._change_market),
            Route("POST", "/clock", "other", self._advance),
        )

    def answer(self, call: Call) -> Reply:
        """The answer to a control call; 404 for a path that does not exist."""
        for route in self._routes:
            if route.parts(call) is not None:
                try:
                    return route.handler(call)
                except ValidationError as error:
                    raise Refusal(_unprocessable(_problems(error))) from error
                except ValueError as error:
                    problem = {"field": "", "problem": f"the body is not JSON: {error}"}
                    raise Refusal(_unprocessable([problem])) from error
        return json_reply({"error": f"no control call {call.method} /_sandbox{call.path}"}, 404)

    def _ledger(self, _: Call) -> Reply:
        now = self._sandbox.clock.now()
        rows = [ledger_row(entry, now) for entry in self._sandbox.ledger.entries()]
        return json_reply({"now": zulu(now), "instances": rows})

    def _requests(self, _: Call) -> Reply:
        counts: dict[str, dict[str, int]] = {}
        for (provider, operation), count in self._sandbox.store.calls().items():
            counts.setdefault(provider, {})[operation] = count
        return json_reply({"now": zulu(self._sandbox.clock.now()), "requests": counts})

    def _clock(self, _: Call) -> Reply:
        clock = self._sandbox.clock
        return json_reply({"now": zulu(clock.now()), "offset_s": clock.offset_s})

    def _market(self, call: Call) -> Reply:
        wanted = call.query.get("provider")
        items: list[dict[str, Any]] = []
        for provider in sorted(self._providers):
            if wanted is None or wanted == provider:
                items.extend(self._market_rows(provider))
        return json_reply({"now": zulu(self._sandbox.clock.now()), "note": _NOTE, "cells": items})

    def _market_rows(self, provider: str) -> list[dict[str, Any]]:
        market = self._sandbox.market
        free = market.free_by_key(provider, self._sandbox.clock.now())
        return [market_row(market, item, free[item.key]) for item in market.inventory(provider)]

    def _faults(self, _: Call) -> Reply:
        return json_reply({"faults": [fault.to_json() for fault in self._sandbox.faults.armed()]})

    def _arm(self, call: Call) -> Reply:
        wanted = FaultRequest.model_validate(call.json())
        self._known(wanted.provider)
        fault = self._sandbox.faults.arm(
            wanted.provider,
            wanted.operation,
            wanted.kind,
            count=wanted.count,
            seconds=wanted.seconds,
            after_effect=wanted.when == "after",
            now=self._sandbox.clock.now(),
        )
        return json_reply(fault.to_json(), 201)

    def _disarm(self, _: Call) -> Reply:
        return json_reply({"disarmed": self._sandbox.faults.clear()})

    def _change_market(self, call: Call) -> Reply:
        wanted = MarketRequest.model_validate(call.json())
        self._known(wanted.provider)
        market, now = self._sandbox.market, self._sandbox.clock.now()
        items, units = market.find(wanted.provider, wanted.sku, wanted.region, wanted.tier)
        if not items:
            raise Refusal(_unprocessable([self._nothing_meant(wanted)]))
        if wanted.price_usd is not None or wanted.price_factor is not None:
            usd = None if wanted.price_usd is None else wanted.price_usd / units
            market.set_price(items, usd, wanted.price_factor)
        if wanted.stock is not None:
            market.set_stock(items, wanted.stock * units, now)
        free = market.free_by_key(wanted.provider, now)
        rows = [market_row(market, item, free[item.key]) for item in items]
        return json_reply({"changed": len(rows), "cells": rows})

    def _nothing_meant(self, wanted: MarketRequest) -> dict[str, str]:
        market = self._sandbox.market
        everywhere, _ = market.find(wanted.provider, wanted.sku, None, None)
        if not everywhere:
            known = sorted({item.sku for item in market.inventory(wanted.provider)})
            return {"field": "sku", "problem": f"{wanted.sku!r} is not sold; known: {', '.join(known[:40])}"}
        if not any(item.is_in(wanted.region, None) for item in everywhere):
            regions = sorted({item.region for item in everywhere})
            return {"field": "region", "problem": f"{wanted.sku!r} is sold in: {', '.join(regions)}"}
        return {"field": "tier", "problem": f"{wanted.sku!r} is not sold as {wanted.tier}"}

    def _known(self, provider: str) -> None:
        if provider not in self._providers:
            known = ", ".join(sorted(self._providers))
            problem = {"field": "provider", "problem": f"found {provider!r}, expected one of {known}"}
            raise Refusal(_unprocessable([problem]))

    def _advance(self, call: Call) -> Reply:
        wanted = ClockRequest.model_validate(call.json())
        now = self._sandbox.clock.advance(wanted.advance_s)
        return json_reply({"now": zulu(now), "offset_s": self._sandbox.clock.offset_s})


def _unprocessable(problems: list[dict[str, str]]) -> Reply:
    return json_reply({"error": "the body cannot be used", "problems": problems}, 422)


def _problems(error: ValidationError) -> list[dict[str, str]]:
    found = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if not name and ": " in message:
            name, message = message.split(": ", 1)
        value = problem.get("input")
        shown = "" if isinstance(value, dict) else f" (found {_shown(value)})"
        found.append({"field": name, "problem": message + shown})
    return found


def _shown(value: Any) -> str:
    return format_usd(value) if isinstance(value, Decimal) else repr(value)
