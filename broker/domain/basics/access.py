"""Who may do and see what."""

from __future__ import annotations

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import NotFound, NotPermitted


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises NotPermitted unless ``caller`` has ``scope``."""
    if not caller.may(scope):
        raise NotPermitted(f"key {caller.key_id} lacks the scope {scope}")


def require_sight(caller: Caller, team: str, kind: str, name: str) -> None:
    """Raises NotFound for an object of a team that ``caller`` does not see: it does not exist for them."""
    if not caller.sees(team):
        raise NotFound(kind, name)


def team_filter(caller: Caller, team: str | None = None) -> str | None:
    """The team whose objects a list shows: the wished one for an administrator (None: all), else the own."""
    return team if Scope.ADMIN in caller.scopes else caller.team
