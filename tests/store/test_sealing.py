"""Secrets at rest: sealed, opened, under a new key, and refused with a wrong one."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import RememberedAnswer
from broker.domain.basics.errors import InputError
from broker.domain.basics.webhook import Webhook
from broker.store import create_store
from broker.store.accounts import sealing
from broker.store.accounts.sealing import Seal, seal_of
from tests.conftest import migrate
from tests.store.examples import NOON

OLD, NEW = "an old key of more than thirty-two characters", "a new key of more than thirty-two characters"
HOOK = Webhook("whk-1", "research", "https://example.org/", ("*",), "whsec_c2VjcmV0", NOON, "key-1")


def test_without_a_key_texts_stay_and_with_one_they_are_not_to_be_read() -> None:
    assert Seal().close("secret") == "secret"
    closed = Seal([OLD]).close("secret")
    assert "secret" not in closed
    assert closed != Seal([OLD]).close("secret")
    assert Seal([OLD]).open(closed) == Seal([NEW, OLD]).open(closed) == "secret"
    assert Seal([OLD]).open("in clear") == "in clear"


@pytest.mark.parametrize("keys", [[], [NEW]])
def test_what_cannot_be_opened_names_the_setting(keys: list[str]) -> None:
    with pytest.raises(InputError, match="BROKER_SECRETS_KEY"):
        Seal(keys).open(Seal([OLD]).close("secret"))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InputError, match="5 characters"):
        Seal(["short"])


def test_a_sqlite_file_has_a_key_beside_it_that_others_cannot_read(tmp_path: Path) -> None:
    database = tmp_path / "broker.db"
    closed = seal_of(None, database).close("secret")
    file = tmp_path / "broker.db.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert seal_of(None, database).open(closed) == "secret"
    assert seal_of(None, None).is_open


async def test_secrets_lie_sealed_and_change_keys_at_a_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    url = f"sqlite:///{file}"
    await migrate(url)
    answer = RememberedAnswer("research", "k", "POST /v1/webhooks", "ab" * 32, NOON)
    store = create_store(url, secrets_key=OLD)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.webhooks.add(HOOK)
        await unit.accounts.remember(answer)
        await unit.accounts.complete(replace(answer, status=201, body=HOOK.secret, headers="{}"))
        own = await unit.accounts.own_public_key()
        assert await unit.accounts.own_public_key() == own
        await unit.commit()
    await store.close()
    lying = b"".join(part.read_bytes() for part in tmp_path.glob("broker.db*"))
    assert HOOK.secret.encode() not in lying
    assert b"PRIVATE KEY" not in lying

    store = create_store(url, secrets_key=f"{NEW}, {OLD}")
    assert await store.seal_secrets()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        again = await unit.accounts.remember(answer)
        assert again is not None
        assert again.body == HOOK.secret
    await store.close()

    store = create_store(url, secrets_key=NEW)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.webhooks.find(HOOK.webhook_id) == HOOK
        kept = await unit.accounts.remember(answer)
        assert kept is not None
        assert kept.body == HOOK.secret
        pair = await unit.accounts.find_own_key()
        assert pair is not None
        assert pair.public == own
        assert "PRIVATE KEY" in pair.private
    await store.close()

    store = create_store(url, secrets_key=OLD)
    with pytest.raises(InputError, match="another key"):
        await store.seal_secrets()
    await store.close()


async def test_answers_of_several_pages_change_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "PAGE", 2)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    await migrate(url)
    answers = [RememberedAnswer("research", f"k{n}", "POST /v1/keys", "ab" * 32, NOON) for n in range(5)]
    for keys in (OLD, f"{NEW},{OLD}", NEW):
        store = create_store(url, secrets_key=keys)
        await store.seal_secrets()
        async with store.unit_of_work(EVERY_TEAM) as unit:
            found = [await unit.accounts.remember(answer) for answer in answers]
            if keys == OLD:
                for answer in answers:
                    done = replace(answer, status=201, body=f"answer {answer.key}", headers="{}")
                    await unit.accounts.complete(done)
                await unit.commit()
        await store.close()
    assert [one and one.body for one in found] == [f"answer {answer.key}" for answer in answers]
