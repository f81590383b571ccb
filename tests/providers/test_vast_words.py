"""What Vast says of a machine that is taken, as people are told it."""

from __future__ import annotations

import json

import pytest

from broker.domain.basics.errors import InsufficientCapacity
from providers.http import Operation
from providers.reply import Reply
from providers.vast.adapter import classify

TAKEN = "error 404/3603: no_such_ask Instance type by id 1 is no longer available."


@pytest.mark.parametrize("status", [404, 410])
def test_a_machine_that_is_taken_was_just_rented(status: int) -> None:
    body = json.dumps({"success": False, "error": "no_such_ask", "msg": TAKEN}).encode()
    error = classify(Reply("vast", Operation.ORDER, status, {}, body, repeatable=False))
    assert isinstance(error, InsufficientCapacity)
    assert str(error) == "vast: that Vast machine was just rented"
