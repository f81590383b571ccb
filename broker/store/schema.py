"""The revision of the schema, and the ways to the newest one."""

from __future__ import annotations

import secrets
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, text

from broker.domain.basics.errors import Conflict, StoreTooNew
from broker.store.tables import MetaRow, Row

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x6272_6F6B_6572
"""Key of the advisory lock that serialises migrations ("broker" in ASCII)."""


def upgrade(connection: Connection) -> None:
    """Brings the schema to the newest revision in one transaction, which the caller commits.

    An empty database gets it from the rows, an older one by its migrations. Raises as ``is_current``.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    else:
        # Python's driver opens no transaction for DDL by itself.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if is_current(connection):
        return
    config = _config()
    config.attributes["connection"] = connection
    if MigrationContext.configure(connection).get_current_heads():
        command.upgrade(config, "head")
    else:
        Row.metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(MetaRow).values(name="install_id", value=secrets.token_hex(4)))
        command.stamp(config, "head")


def is_current(connection: Connection) -> bool:
    """Whether the schema is at the newest revision.

    Raises StoreTooNew for a revision that this program does not know yet, and Conflict for one from before
    the first release.
    """
    scripts = ScriptDirectory.from_config(_config())
    known = {script.revision for script in scripts.walk_revisions()}
    found = set(MigrationContext.configure(connection).get_current_heads())
    unknown = ", ".join(sorted(found - known))
    if unknown and unknown < min(known):
        raise Conflict(
            f"the database is at revision {unknown}, from before the first release; this version continues "
            f"from {min(known)} on. Start once, with this database, a checkout that still has "
            f"broker/store/migrations/versions/{unknown}_*.py and {min(known)}_*.py, or use another database"
        )
    if unknown:
        raise StoreTooNew(
            f"the database is at revision {unknown}, which this version does not know (newest known: "
            f"{scripts.get_current_head()}). Upgrade the program, or use another database"
        )
    return found == set(scripts.get_heads())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
