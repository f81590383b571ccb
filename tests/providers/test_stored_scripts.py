"""When a start script that a seller stores apart from its machines is removed."""

from __future__ import annotations

import pytest

from broker.domain.holding.reservation import Lease, LeaseState
from providers.stored_scripts import ORDER_LASTS_S, StoredScript, StoredScripts

SCRIPT = StoredScript("s1", "broker-a-0")


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (LeaseState.PROVISIONING, []),
        (LeaseState.ACTIVE, ["s1"]),
        (LeaseState.ENDING, ["s1"]),
        (LeaseState.FAILED, ["s1"]),
    ],
)
def test_a_script_stays_until_its_machine_has_started(state: LeaseState, left: list[str]) -> None:
    lease = Lease("verda", "i1", state, tag=SCRIPT.tag)
    assert StoredScripts("broker").needless([SCRIPT], [lease]) == left


def test_a_script_without_a_machine_stays_for_as_long_as_its_order_may_be_on_its_way() -> None:
    times = iter((0.0, ORDER_LASTS_S, ORDER_LASTS_S + 1, 2 * ORDER_LASTS_S))
    scripts = StoredScripts("broker", lambda: next(times))
    stored = [SCRIPT, StoredScript("s2", "somebody-elses")]
    found = [scripts.needless(stored, []) for _ in range(3)]
    assert found == [[], [], ["s1"]]
    assert scripts.needless([], []) == []
