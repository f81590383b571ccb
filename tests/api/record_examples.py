"""Records the examples of the OpenAPI document: answers of a broker on the sandbox market.

``python -m tests.api.record_examples`` starts both, asks for what a team asks for, and writes the richest
document of each schema to ``api/schemas/examples.json``. Secrets are replaced. Documents of rare events,
which no ordinary day has, stand in ``tests/api/rare_examples.json`` and are added as they are.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api.schemas.base.field_descriptions import FOLDER
from tests.e2e import processes
from tests.fakes.examples import PUBLIC_KEY

ADMIN = "broker_live_example_admin_0123456789abcdef"
RARE = Path(__file__).with_name("rare_examples.json")
LONGEST_LIST = 2
"""Entries of a list that an example shows."""
SECRETS = re.compile(r"(broker_live_|whsec_)[\w+/=-]{12,}")
DOCUMENT = """
team: research
horizon: {start: tomorrow, days: 10}
budget: {usd: 250000}
policy: {geography: [us, eu], tiers: [on_demand, window]}
workloads:
  - name: finetune
    kind: training
    model: Llama-3.1-8B
    tokens: 20000000000
    sequence_length: 8192
    global_batch_tokens: 2000000
    software: fsdp
    gpus: {min: 8, max: 32}
    checkpoint: {every_minutes: 30}
    dataset: {gb: 400, provider: aws, region: us-east-1}
    deadline: +7d
  - name: chat
    kind: serving
    model: Llama-3.1-8B
    precisions: [bf16, fp8]
    starts: {after: finetune, delay_usd_per_hour: 20}
    traffic:
      shape: diurnal
      peak_requests_per_s: 12
      trough_share: 0.4
      peak_hour_utc: 15
      mix:
        - {share: 0.7, input_tokens: 1500, output_tokens: 300}
        - {share: 0.3, input_tokens: 6000, output_tokens: 500}
    slo: {ttft_p95_ms: 2000, itl_p95_ms: 60}
    redundancy: {zones: 2, spare_replicas: 1}
    fleet: {max_pools: 3, max_gpu_kinds: 2}
    weights: {gb: 16, provider: own, region: us-east-1}
    speculation: {drafted_tokens: 3, acceptance: 0.7}
    startup:
      image: vllm/vllm-openai:v0.11.0
      command: --model meta-llama/Llama-3.1-8B-Instruct --port 8000
      env: {HF_TOKEN: {secret: HF_TOKEN}}
    drain_minutes: 3
  - name: summaries
    kind: batch
    model: Llama-3.1-70B
    requests: 200000
    input_tokens: 3000
    output_tokens: 250
    measured: [{gpu: H100-SXM-80GB, gpus: 8, requests_per_s: 9.5}]
    deadline: +5d
"""
TOO_FAST = """
team: research
horizon: {start: tomorrow, days: 7}
policy:
  providers: {exclude: [vast]}
  gpus: {exclude: ["V100*"], min_memory_gb: 40}
  quotas: {aws: {gpus: 64}}
  reoptimize: {mode: propose, min_saving_usd: 50}
workloads:
  - name: pretrain
    kind: training
    model: Llama-3.1-70B
    tokens: 300000000000
    sequence_length: 8192
    global_batch_tokens: 4000000
    gpus: 64
    deadline: +1d
"""


class Examples:
    """The richest document of each schema, as requests and answers show them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.found: dict[str, Any] = {}

    def see(self, method: str, path: str, status: int, body: Any) -> None:
        """An answer to the operation at the template ``path``."""
        content = self._operation(method, path)["responses"][str(status)].get("content", {})
        for media in content.values():
            self._keep(body, media.get("schema", {}))

    def see_request(self, method: str, path: str, body: Any) -> None:
        """A body that was sent."""
        media = self._operation(method, path)["requestBody"]["content"]["application/json"]
        self._keep(body, media["schema"])

    def see_event(self, body: Any) -> None:
        """A message to a webhook."""
        self._keep(body, {"$ref": "#/components/schemas/EventForm"})

    def _operation(self, method: str, path: str) -> Mapping[str, Any]:
        operation: Mapping[str, Any] = self._document["paths"][path][method.lower()]
        return operation

    def _keep(self, body: Any, schema: Mapping[str, Any]) -> None:
        for name, part in self._parts(body, schema):
            if isinstance(part, dict) and richness(part) > richness(self.found.get(name, {})):
                self.found[name] = part

    def _parts(self, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Every named part of a document: the name of its schema, and the part itself."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            yield name, value
            yield from self._parts(value, self._document["components"]["schemas"][name])
        choices = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        fitting = next((one for one in choices if self._fits(value, one)), None)
        if fitting is not None:
            yield from self._parts(value, fitting)
        if isinstance(value, list):
            for item in value:
                yield from self._parts(item, schema.get("items", {}))
        if isinstance(value, dict):
            for field, part in value.items():
                others = next(iter(schema.get("patternProperties", {}).values()), None)
                inner = schema.get("properties", {}).get(field, schema.get("additionalProperties", others))
                if isinstance(inner, dict):
                    yield from self._parts(part, inner)

    def _fits(self, value: Any, schema: Mapping[str, Any]) -> bool:
        whole = {**schema, "components": self._document["components"]}
        return bool(Draft202012Validator(whole).is_valid(value))


def shortened(value: Any) -> Any:
    """``value`` with at most LONGEST_LIST entries of each list."""
    if isinstance(value, list):
        return [shortened(one) for one in value[:LONGEST_LIST]]
    if isinstance(value, dict):
        return {name: shortened(part) for name, part in value.items()}
    return value


def richness(part: Mapping[str, Any]) -> int:
    """How many fields of a document say something."""
    return sum(value not in (None, "", [], {}) for value in part.values())


class Caller:
    """Asks a broker, and shows each answer to ``examples``."""

    def __init__(self, url: str, key: str, examples: Examples | None = None) -> None:
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=300)
        self.examples = examples

    def ask(self, method: str, path: str, *names: str, body: Any = None, **params: Any) -> Any:
        """The JSON of an answer; the text of another one. ``names`` fill the template ``path``."""
        values = iter(names)
        filled = re.sub(r"\{\w+\}", lambda _: quote(next(values), safe="*:"), path)
        if isinstance(body, str):
            answer = self.http.request(method, filled, content=body, params=params)
            told: Any = yaml.safe_load(body)
        else:
            answer = self.http.request(method, filled, json=body, params=params)
            told = body
        kind = answer.headers.get("Content-Type", "")
        found = answer.json() if "json" in kind else answer.text
        if self.examples is not None:
            if answer.is_error or "json" in kind:
                self.examples.see(method, path, answer.status_code, found)
            if told is not None and answer.is_success:
                self.examples.see_request(method, path, told)
        print(answer.status_code, method, filled, found if answer.is_error else "")
        return found

    def plan(self, document: str, **params: Any) -> Any:
        """A plan, asked for and made."""
        asked = self.ask("POST", "/v1/plans", body=document, **params)
        self.ask("GET", "/v1/plans/{plan_id}", asked["plan_id"])
        while True:
            plan = self.ask("GET", "/v1/plans/{plan_id}", asked["plan_id"])
            if plan["status"] not in ("queued", "running"):
                return plan
            time.sleep(1)


@contextmanager
def a_broker(folder: Path) -> Iterator[str]:
    """The address of a broker on a sandbox market of its own."""
    sandbox = processes.start_sandbox(folder)
    try:
        server = processes.start_server(
            folder,
            sandbox.url,
            f"sqlite:///{folder}/broker.db",
            ADMIN,
            BROKER_WEBHOOK_ALLOW_LOOPBACK="1",
            BROKER_SECRET_HF_TOKEN="a secret of the recording",
        )
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        sandbox.stop()


def record(url: str) -> dict[str, Any]:
    """The documents that a day of a team has shown."""
    examples = Examples(httpx.get(f"{url}/openapi.json", timeout=300).json())
    admin = Caller(url, ADMIN, examples)
    made = admin.ask("POST", "/v1/keys", body={"name": "ml-platform", "team": "research",
        "scopes": ["plans:read", "plans:write", "reservations:write", "spend:read", "spend:approve"],
        "expires_at": "2027-06-30T00:00:00Z"})  # fmt: skip
    team = Caller(url, made["secret"], examples)
    _market(team, admin)
    _finance(team)
    plan = team.plan(DOCUMENT, intended=True)
    _plans(team, plan)
    _reservations(team, admin, plan)
    _spend(team, admin)
    return examples.found


def _market(team: Caller, admin: Caller) -> None:
    offers = team.ask("GET", "/v1/offers", limit=200)["items"]
    for tier in ("window", "on_demand", "spot", "committed"):
        team.ask("GET", "/v1/offers", tier=tier, limit=200)
    team.ask("GET", "/v1/offers", gpu="H100", orderable=True, limit=200)
    one = next(offer for offer in offers if offer["tier"] == "on_demand")["offer_id"]
    for path in ("", "/forecast"):
        team.ask("GET", f"/v1/offers/{{offer_id}}{path}", one)
    for interval in ("point", "day"):
        team.ask("GET", "/v1/offers/{offer_id}/prices", one, interval=interval)
    team.ask("GET", "/v1/prices", gpu="H100-SXM-80GB", tier="on_demand", by="provider")
    team.ask("GET", "/v1/gpus")
    team.ask("GET", "/v1/models", q="Llama")
    team.ask("GET", "/v1/providers")
    team.ask("GET", "/v1/quarantine")
    office = {"sources": ["203.0.113.0/24"], "regions": ["us-east-1"]}
    admin.ask("POST", "/v1/providers/{provider}/setup", "aws", body=office)
    team.ask("GET", "/v1/me")
    team.ask("GET", "/v1/keys")
    key = team.ask("POST", "/v1/ssh-keys", body={"public_key": PUBLIC_KEY, "name": "ada's laptop"})
    team.ask("GET", "/v1/ssh-keys/{ssh_key_id}", key["key_id"])
    team.ask("GET", "/v1/ssh-keys")
    team.ask("GET", "/v1/market", at=(datetime.now(UTC) - timedelta(seconds=2)).isoformat())
    made = team.ask("POST", "/v1/webhooks", body={"url": "http://127.0.0.1:9/events", "events": ["plan.*"]})
    team.ask("POST", "/v1/webhooks/{webhook_id}/test", made["webhook_id"])
    team.ask("GET", "/v1/webhooks")
    time.sleep(2)
    team.ask("GET", "/v1/webhooks/{webhook_id}", made["webhook_id"])
    team.ask("POST", "/v1/calendars", body={"name": "team calendar", "team": "research"})
    admin.ask("GET", "/v1/reconciliation")


def _finance(team: Caller) -> None:
    team.ask("PUT", "/v1/budgets/{team}/{period}", "research", "month",
             body={"limit_usd": "120000.00", "thresholds": [50, 80, 100]})  # fmt: skip
    team.ask("PUT", "/v1/budgets/{team}/{period}", "research", "horizon", body={"limit_usd": "400000.00",
        "from": "2026-11-01T00:00:00Z", "to": "2027-02-01T00:00:00Z"})  # fmt: skip
    team.ask("GET", "/v1/budgets")


def _plans(team: Caller, plan: Any) -> None:
    name = plan["plan_id"]
    team.ask("GET", "/v1/plans")
    team.ask("POST", "/v1/estimates", body=DOCUMENT)
    team.ask("POST", "/v1/starting-points", body={"text": "vllm serve Qwen/Qwen3-32B-FP8 --port 80"})
    team.ask("POST", "/v1/plans/{plan_id}/intend", name, body={"intended": True})
    team.plan(TOO_FAST)
    changes = [
        {"name": "more traffic", "set": ["chat.traffic*=1.5"]},
        {"name": "dearer", "prices": {"factor": "1.2", "provider": "aws"}},
        {"name": "later", "patch": [{"op": "replace", "path": "/workloads/0/deadline", "value": "+9d"}]},
    ]
    asked = team.ask("POST", "/v1/plans", body={"based_on": name, "changes": changes})
    while True:
        found = team.ask("GET", "/v1/comparisons/{comparison_id}", asked["comparison_id"])
        if all(one["status"] not in ("queued", "running") for one in found["plans"]):
            break
        time.sleep(1)
    for one in asked["plan_ids"]:
        team.ask("GET", "/v1/plans/{plan_id}", one)
    team.ask("GET", "/v1/plans/{plan_id}/release", name)
    figures = {"comment": "as agreed in the review"}
    team.ask("POST", "/v1/plans/{plan_id}/reject", name, body=figures)
    seen = team.ask("GET", "/v1/approvals")["items"][0]["figures"]
    word = {**figures, "plan_sha256": seen["plan_sha256"], "cost_now_usd": seen["cost_now_usd"]}
    team.ask("POST", "/v1/plans/{plan_id}/approve", name, body=word)
    team.ask("GET", "/v1/approvals")
    team.ask("POST", "/v1/plans", body=f"{DOCUMENT}    kinds: 1\n")


SELLERS_OF_CONTAINERS = ("runpod", "vast")
"""Sellers that start the image of an order themselves, so that nobody may be able to enter it."""


def _reservations(team: Caller, admin: Caller, plan: Any) -> None:
    team.ask("GET", "/v1/plans/{plan_id}/quote", plan["plan_id"])
    team.ask("GET", "/v1/plans/{plan_id}/check", plan["plan_id"])
    team.ask("POST", "/v1/plans/{plan_id}/simulate", plan["plan_id"], body={"draws": 1000, "seed": 1})
    team.ask("GET", "/v1/plans/{plan_id}/confidence-prices", plan["plan_id"])
    hold = {"hold": "at_start"}
    reserved = team.ask("POST", "/v1/plans/{plan_id}/reserve", plan["plan_id"], body=hold)
    offers = team.ask("GET", "/v1/offers", gpu="H100", orderable=True, tier="on_demand", limit=50)["items"]
    offers = [one for one in offers if one["provider"] not in SELLERS_OF_CONTAINERS]
    wish = {
        "offer_id": offers[0]["offer_id"],
        "nodes": 1,
        "end": (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0).isoformat(),
        "workload": "notebooks",
        "max_price_usd_per_node_hour": offers[0]["price_usd_per_node_hour"],
    }
    team.ask("POST", "/v1/reservations/quote", body=wish)
    wish["startup"] = {
        "image": "vllm/vllm-openai:v0.11.0",
        "command": "--model Qwen/Qwen3-8B --port 8000",
        "env": {"VLLM_LOGGING_LEVEL": "WARNING", "HF_TOKEN": {"secret": "HF_TOKEN"}},
    }
    row = team.ask("POST", "/v1/reservations", body=wish)
    for _ in range(60):
        time.sleep(1)
        found = team.ask("GET", "/v1/reservations/{reservation_id}", row["reservation_id"])
        if found["units"][0]["reachable_at"]:
            break
    team.ask("GET", "/v1/plans/{plan_id}/endpoints", plan["plan_id"])
    start = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0).isoformat()
    other = {name: offers[-1][name] for name in ("offer_id", "price_usd_per_node_hour")}
    waiting = team.ask(
        "POST",
        "/v1/reservations",
        body={
            **wish,
            "offer_id": other["offer_id"],
            "max_price_usd_per_node_hour": other["price_usd_per_node_hour"],
            "start": start,
        },
    )
    team.ask("GET", "/v1/reservations/{reservation_id}/hold", waiting["reservation_id"])
    team.ask("POST", "/v1/reservations/{reservation_id}/hold", waiting["reservation_id"])
    for one in [row, *reserved.get("reservations", ())]:
        team.ask("GET", "/v1/reservations/{reservation_id}", one["reservation_id"])
        team.ask("GET", "/v1/reservations/{reservation_id}/release", one["reservation_id"])
    later = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0).isoformat()
    team.ask("GET", "/v1/reservations/{reservation_id}/extend", row["reservation_id"], end=later)
    team.ask("POST", "/v1/reservations/{reservation_id}/extend", row["reservation_id"], body={"end": later})
    team.ask("GET", "/v1/reservations")
    team.ask("GET", "/v1/reservations/fleets")
    team.ask("GET", "/v1/reservations/shortfalls")
    team.ask("POST", "/v1/reoptimizations")
    time.sleep(30)
    team.ask("GET", "/v1/reoptimizations")
    team.ask("GET", "/v1/plans/{plan_id}/release", plan["plan_id"])
    admin.ask("GET", "/v1/reconciliation")
    team.ask("DELETE", "/v1/reservations/{reservation_id}", row["reservation_id"])
    team.ask("POST", "/v1/plans/{plan_id}/release", plan["plan_id"], body={"workload": "summaries"})
    time.sleep(3)
    team.ask("GET", "/v1/reservations/{reservation_id}", row["reservation_id"])
    team.ask("GET", "/v1/audit", limit=200)


def _spend(team: Caller, admin: Caller) -> None:
    team.ask("GET", "/v1/budgets")
    team.ask("GET", "/v1/spend/projection", interval="month", group_by="workload")
    team.ask("GET", "/v1/spend/interval")
    team.ask("GET", "/v1/spend/units")
    team.ask("GET", "/v1/spend/savings")
    team.ask("GET", "/v1/spend/changes", **{"from": "2026-10", "to": "2026-11"})
    team.ask("GET", "/v1/spend/focus.manifest.json")
    job = team.ask("GET", "/v1/spend/focus.{form}", "parquet")
    time.sleep(3)
    team.ask("GET", "/v1/spend/exports/{export_id}", job["export_id"])
    admin.ask("POST", "/v1/spend/close", month="2026-10", comment="books closed")
    admin.ask("GET", "/v1/spend/closed")


def without_secrets(text: str) -> str:
    """``text`` with a placeholder for each secret."""
    return SECRETS.sub(r"\1EXAMPLE", text)


def main() -> None:
    """Writes the file."""
    with tempfile.TemporaryDirectory() as folder, a_broker(Path(folder)) as url:
        found = record(url)
    rare = json.loads(RARE.read_text())
    examples = {**rare, **{name: shortened(one) for name, one in found.items()}}
    text = json.dumps(dict(sorted(examples.items())), indent=1, ensure_ascii=False)
    (FOLDER / "examples.json").write_text(without_secrets(text) + "\n")


if __name__ == "__main__":
    main()
