"""The revision of the schema, and its migration to the newest one."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from broker.domain.basics.errors import StoreTooNew

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x6272_6F6B_6572
"""Key of the advisory lock that serialises migrations ("broker" in ASCII)."""


def upgrade(connection: Connection) -> None:
    """Migrates the schema to the newest revision in one transaction, which the caller commits.

    Raises StoreTooNew if the schema is newer.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    else:
        # Python's driver opens no transaction for DDL by itself.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not is_current(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def is_current(connection: Connection) -> bool:
    """Whether the schema is at the newest revision. Raises StoreTooNew if this program does not know it."""
    scripts = ScriptDirectory.from_config(_config())
    known = {script.revision for script in scripts.walk_revisions()}
    found = set(MigrationContext.configure(connection).get_current_heads())
    if not found <= known:
        raise StoreTooNew(
            f"the database is at revision {', '.join(sorted(found - known))}, which this version does not "
            f"know (newest known: {scripts.get_current_head()}). Upgrade the program, or use another database"
        )
    return found == set(scripts.get_heads())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
