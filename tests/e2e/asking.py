"""Documents that end-to-end tests ask plans for, and the wait for their plans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.conftest import World
from tests.e2e.processes import wait_for


def document(team: str = "research") -> dict[str, Any]:
    """A training run and a service, from the first midnight that is 12 hours away or more.

    Nothing of it may start within the half hour that re-optimization leaves alone, whatever the time of day.
    """
    start = (datetime.now(UTC) + timedelta(hours=36)).replace(hour=0, minute=0, second=0, microsecond=0)
    stamp = "%Y-%m-%dT%H:%M:%SZ"
    return {
        "team": team,
        "horizon": {"start": start.strftime(stamp), "days": 14},
        "workloads": [
            {
                "name": "tune-8b",
                "kind": "training",
                "model": "Llama-3.1-8B",
                "tokens": 4.0e9,
                "sequence_length": 8192,
                "global_batch_tokens": 1.0e6,
                "precision": "bf16",
                "earliest_start": start.strftime(stamp),
                "deadline": (start + timedelta(days=9)).strftime(stamp),
            },
            {
                "name": "chat-8b",
                "kind": "serving",
                "model": "Llama-3.1-8B",
                "precisions": ["bf16"],
                "traffic": {
                    "peak_requests_per_s": 6,
                    "input_tokens": 800,
                    "output_tokens": 200,
                    "shape": "diurnal",
                    "trough_share": 0.5,
                    "peak_hour_utc": 15,
                },
                "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 80},
            },
        ],
    }


def services(team: str, count: int) -> dict[str, Any]:
    """So many services, alike but for their names and peaks."""
    body = document(team)
    (one,) = [workload for workload in body["workloads"] if workload["kind"] == "serving"]
    body["workloads"] = [
        {**one, "name": f"chat-{n}", "traffic": {**one["traffic"], "peak_requests_per_s": 2 + n % 7}}
        for n in range(count)
    ]
    return body


def planned(world: World, body: dict[str, Any]) -> dict[str, Any]:
    """Posts a document and waits for its plan."""
    answer = world.client.post("/v1/plans", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["status"] in {"queued", "running"}
    location = answer.headers["Location"]

    def look() -> dict[str, Any] | None:
        plan: dict[str, Any] = world.client.get(location).json()
        assert plan["status"] != "failed", plan
        return plan if plan["status"] not in {"queued", "running"} else None

    return wait_for("the plan", 120, look)
