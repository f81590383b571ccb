"""Permission checks: scopes of a key, and which team's objects it sees."""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import NotFound, NotPermitted


@dataclass(frozen=True, slots=True)
class TeamScope:
    """Whose objects there are for a unit of work: those of one team, or (None) of every team.

    What a key asks for is opened with ``scope_of``; only the installation's own work has ``EVERY_TEAM``.
    """

    team: str | None

    def covers(self, team: str) -> bool:
        """Whether objects of ``team`` are there."""
        return self.team in (None, team)

    def narrowed_to(self, team: str | None) -> TeamScope:
        """What of it is of ``team`` (None: all of it); a scope of one team stays what it is."""
        return TeamScope(team) if self.team is None else self

    def require(self, team: str) -> None:
        """Raises NotFound for a team that is not there: nothing may be stored for it."""
        if not self.covers(team):
            raise NotFound("team", team)


EVERY_TEAM = TeamScope(None)
"""For what the installation does by itself, for no team: scheduler, reconciler, re-optimization, sign-in."""


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises NotPermitted unless ``caller`` has ``scope``."""
    if not caller.may(scope):
        raise NotPermitted(f"key {caller.key_id} lacks the scope {scope}")


def scope_of(caller: Caller, team: str | None = None) -> TeamScope:
    """The objects that there are for ``caller``: an administrator's are those of the wished ``team`` (None:
    all); everybody else's are those of their own, whatever they wish."""
    return EVERY_TEAM.narrowed_to(team if Scope.ADMIN in caller.scopes else caller.team)
