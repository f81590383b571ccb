"""Who may: keys, scopes, cookies, and what every answer carries."""

from __future__ import annotations

import base64
import json

import pytest

from api.http.dependencies import SESSION_COOKIE
from broker.domain.basics.account import Scope
from tests.api.house import ADMIN_KEY, DOCUMENT, Home

READS = (
    ("/v1/plans", Scope.PLANS_READ),
    ("/v1/reservations", Scope.PLANS_READ),
    ("/v1/reservations/fleets", Scope.PLANS_READ),
    ("/v1/reoptimizations", Scope.PLANS_READ),
    ("/v1/spend/projection", Scope.SPEND_READ),
    ("/v1/spend/projection.csv", Scope.SPEND_READ),
    ("/v1/offers", None),
    ("/v1/providers", None),
    ("/v1/audit", None),
)
WRITES = (
    ("POST", "/v1/plans", Scope.PLANS_WRITE),
    ("POST", "/v1/plans/x/approve", Scope.SPEND_APPROVE),
    ("POST", "/v1/plans/x/reserve", Scope.RESERVATIONS_WRITE),
    ("POST", "/v1/reservations", Scope.RESERVATIONS_WRITE),
    ("DELETE", "/v1/reservations/x", Scope.RESERVATIONS_WRITE),
    ("POST", "/v1/reoptimizations", Scope.PLANS_WRITE),
    ("POST", "/v1/reoptimizations/x/accept", Scope.RESERVATIONS_WRITE),
    ("POST", "/v1/reoptimizations/x/reject", Scope.PLANS_WRITE),
)


@pytest.mark.parametrize(("method", "path"), [("GET", p) for p, _ in READS] + [w[:2] for w in WRITES])
async def test_nobody_gets_in_without_a_key(home: Home, method: str, path: str) -> None:
    for key in (None, "broker_live_wrong", ""):
        answer = await home.client(key).request(method, path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["code"] == "not-authenticated"


async def test_each_route_wants_its_scope(home: Home) -> None:
    wanted = [("GET", path, scope) for path, scope in READS if scope is not None] + list(WRITES)
    for method, path, scope in wanted:
        without = await home.team("research", [s for s in Scope if s not in {scope, Scope.ADMIN}])
        answer = await without.request(method, path, json={"offer_id": "x", "nodes": 1})
        assert (answer.status_code, answer.json()["code"]) == (403, "not-permitted"), path
        assert str(scope) in answer.json()["detail"]
        with_it = await home.team("research", [scope])
        assert (await with_it.request(method, path, content=b"{}")).status_code != 403


async def test_the_pages_cookie_only_reads(home: Home) -> None:
    client = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    assert (await client.get("/v1/plans")).status_code == 200
    for method, path, _ in WRITES:
        answer = await client.request(method, path, json=DOCUMENT)
        assert answer.status_code == 401, path


async def test_every_answer_has_the_headers(home: Home) -> None:
    client = home.client()
    for path in (
        "/signin",
        "/v1/plans",
        "/v1/nothing",
        "/static/style.css",
        "/healthz",
        "/",
        "/plans/nothing",
    ):
        answer = await client.get(path)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"], path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert len(answer.headers["X-Request-Id"]) == 16
        fresh = "no-cache" if path.startswith("/static") else "private, no-store"
        assert answer.headers["Cache-Control"] == fresh


async def test_unknown_paths_and_methods_are_problems(home: Home) -> None:
    client = home.client()
    missing = await client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    wrong = await client.put("/v1/plans")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method-not-allowed")
    assert wrong.headers["Allow"] == "GET, POST"
    zero = await client.get("/v1/offers/a%00b")
    assert (zero.status_code, zero.json()["code"]) == (400, "invalid-input")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/plans", ["0001-01-01T00:00:00+14:00", "x"]),
        ("/v1/audit", ["2026-01-01T00:00:00+00:00", 10**30]),
        ("/v1/audit", ["2026-01-01T00:00:00+00:00", True]),
        ("/v1/reservations", {"a": 1}),
        ("/v1/reservations/fleets", {"a": 1}),
    ],
)
async def test_forged_cursors_are_bad_input(home: Home, path: str, content: object) -> None:
    cursor = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    answer = await home.client().get(path, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/cursor")


async def test_faults_are_told_without_their_text(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(home.product.offers, "find_page", fail)
    answer = await home.client().get("/v1/offers")
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.json()["trace_id"] == answer.headers["X-Request-Id"]
    assert "secret" not in answer.text
