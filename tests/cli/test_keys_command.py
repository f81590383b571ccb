"""``keys`` against a server, through the real command."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.running import broker, fake_server

KEY = {
    "key_id": "0a1b",
    "name": "ci",
    "team": "research",
    "scopes": ["plans:read"],
    "created_at": "2026-11-24T00:00:00Z",
    "expires_at": None,
    "revoked_at": None,
}


def test_a_new_key_is_all_that_stdout_has() -> None:
    with fake_server({("POST", "/v1/keys"): [(201, {**KEY, "secret": "broker_live_x"})]}) as server:
        done = broker("keys", "--new", "ci", "--team", "research", "--days", "30", env=server.env)
    assert (done.exit_code, done.stdout) == (0, "broker_live_x\n"), done.output
    assert server.seen[0][:2] == ("POST", "/v1/keys")
    assert "Idempotency-Key" in server.seen[0][2]


def test_keys_are_listed_and_ended() -> None:
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/keys"): [(200, {"items": [KEY], "next_cursor": None})],
        ("DELETE", "/v1/keys/0a1b"): [(204, {})],
    }
    with fake_server(answers) as server:
        done = broker("keys", "--revoke", "0a1b", env=server.env)
    assert done.exit_code == 0, done.output
    assert "0a1b" in done.stdout
    assert broker("keys", "--new", "ci").exit_code == 2


def test_the_link_of_an_invitation_is_all_that_stdout_has() -> None:
    link = "http://broker/signin/invitation?token=x"
    invited = {**KEY, "secret": None, "invited_until": "2026-11-27T00:00:00Z", "invitation_url": link}
    with fake_server({("POST", "/v1/keys"): [(201, invited)]}) as server:
        done = broker("keys", "--invite", "ci", "--team", "research", "--hours", "3", env=server.env)
        assert json.loads(server.bodies[0])["invitation_hours"] == 3
    assert (done.exit_code, done.stdout) == (0, f"{link}\n"), done.output
    assert "until 27 Nov 00:00 UTC" in done.stderr
    assert broker("keys", "--new", "ci", "--team", "research", "--hours", "3").exit_code == 2
