"""Secrets at rest: encrypted with a key that is not in the database.

The secrets of webhooks and the installation's private SSH key have to be read again for signatures, so they
cannot be hashed like API keys. The
first of the given keys encrypts, and all of them decrypt; to change the key, put the new one in front of the
old one.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import and_, select, tuple_, update

from broker.domain.basics.errors import FieldProblem, InputError
from broker.settings import SHORTEST_SECRETS_KEY
from broker.store.accounts.key_files import write_secret
from broker.store.accounts.own_ssh_key import OWN_KEY
from broker.store.accounts.webhook_tables import WebhookRow
from broker.store.tables import MetaRow, RememberedAnswerRow
from broker.store.team_session import TeamSession
from broker.store.writes import table_of

SETTING = "BROKER_SECRETS_KEY"
SEALED = "sealed:v1:"
PAGE = 500
SHORTEST_KEY = SHORTEST_SECRETS_KEY
_PURPOSE = b"gpu-capacity-broker: secrets at rest"


class Seal:
    """Encrypts and decrypts texts; without keys it leaves them as they are. InputError for a short key."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        for key in keys:
            if len(key) < SHORTEST_KEY:
                problem = FieldProblem(SETTING, f"{len(key)} characters", f"{SHORTEST_KEY} or more")
                raise InputError("settings", (problem,))
        self._box = MultiFernet([_fernet(key) for key in keys]) if keys else None
        self._changes = len(keys) > 1

    @property
    def is_open(self) -> bool:
        """Whether there is no key, so that secrets are stored in plain text."""
        return self._box is None

    @property
    def is_changing(self) -> bool:
        """Whether former keys are given, which are not needed any more after this start."""
        return self._changes

    def close(self, text: str) -> str:
        """``text`` encrypted."""
        return text if self._box is None else SEALED + self._box.encrypt(text.encode()).decode()

    def open(self, stored: str) -> str:
        """``stored`` decrypted, if it is encrypted. Raises InputError without its key."""
        if not stored.startswith(SEALED):
            return stored
        found = "nothing" if self._box is None else "another key"
        problem = FieldProblem(SETTING, found, "the key with which the database's secrets were encrypted")
        if self._box is None:
            raise InputError("settings", (problem,))
        try:
            return self._box.decrypt(stored.removeprefix(SEALED).encode()).decode()
        except InvalidToken as error:
            raise InputError("settings", (problem,)) from error

    def renew(self, stored: str) -> str:
        """``stored`` encrypted with the first key instead of its own. Raises InputError as ``open`` does."""
        opened = self.open(stored)
        if self._box is None or not stored.startswith(SEALED):
            return self.close(opened)
        return SEALED + self._box.rotate(stored.removeprefix(SEALED).encode()).decode()


def _fernet(key: str) -> Fernet:
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(key.encode())
    return Fernet(base64.urlsafe_b64encode(derived))


def seal_of(given: str | None, database: Path | None) -> Seal:
    """The seal with the keys of the setting (separated by commas), or with a key file beside ``database``.

    The file is created if necessary. Without setting and ``database``, secrets are stored in plain text.
    """
    if given is not None:
        return Seal([key.strip() for key in given.split(",")])
    if database is None:
        return Seal()
    file = database.with_name(f"{database.name}.key")
    try:
        return Seal([file.read_text().strip()])
    except FileNotFoundError:
        key = secrets.token_urlsafe(SHORTEST_KEY)
        write_secret(file, key)
        return Seal([key])


async def seal_all(session: TeamSession, seal: Seal) -> None:
    """Encrypts all secrets with the first key. InputError if one that is used cannot be decrypted."""
    table, meta = table_of(WebhookRow), table_of(MetaRow)
    own_key = select(meta.c.value).where(meta.c.name == OWN_KEY)
    for stored in (await session.scalars(own_key)).all():
        renewed = update(meta).where(meta.c.name == OWN_KEY).values(value=seal.renew(stored))
        await session.execute(renewed)
    for webhook_id, stored in (await session.execute(select(table.c.webhook_id, table.c.secret))).all():
        values = {"secret": seal.renew(stored)}
        await session.execute(update(table).where(table.c.webhook_id == webhook_id).values(**values))
    if seal.is_changing:
        await _seal_answers(session, seal)


async def _seal_answers(session: TeamSession, seal: Seal) -> None:
    """Encrypts stored answers with the first key. One whose key is lost stays, to prevent a repetition."""
    table = table_of(RememberedAnswerRow)
    key = (table.c.team, table.c.key, table.c.route)
    last: tuple[str, str, str] | None = None
    while True:
        page = select(*key, table.c.body).where(table.c.body.is_not(None)).order_by(*key).limit(PAGE)
        rows = (
            await session.execute(page if last is None else page.where(tuple_(*key) > tuple_(*last)))
        ).all()
        for team, name, route, body in rows:
            with suppress(InputError):
                values = {"body": seal.renew(body)}
                mine = and_(table.c.team == team, table.c.key == name, table.c.route == route)
                await session.execute(update(table).where(mine).values(**values))
        if len(rows) < PAGE:
            return
        last = (rows[-1][0], rows[-1][1], rows[-1][2])
