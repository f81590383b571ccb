"""Permission checks: scopes of a key, and which team's objects it sees."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError, NotFound, NotPermitted
from broker.domain.basics.webhook import ALL_TEAMS

TEAM_SCOPES = frozenset({Scope.PLANS_READ, Scope.PLANS_WRITE, Scope.RESERVATIONS_WRITE, Scope.SPEND_READ})
"""What a key of one team may do unless its maker says otherwise."""
ALL_TEAMS_SCOPES = frozenset({Scope.PLANS_READ, Scope.SPEND_READ, Scope.SPEND_APPROVE})
"""The role over all teams: it reads, approves plans and sets budgets. It may never do more."""


@dataclass(frozen=True, slots=True)
class TeamScope:
    """Whose objects there are for a unit of work: those of one team, or (None) of every team.

    What a key asks for is opened with ``scope_of``; only the installation's own work has ``EVERY_TEAM``.
    ``decides_only``: nothing is written but approvals, budgets, exports and the history of these.
    """

    team: str | None
    decides_only: bool = False

    def covers(self, team: str) -> bool:
        """Whether objects of ``team`` are there."""
        return self.team in (None, team)

    def narrowed_to(self, team: str | None) -> TeamScope:
        """What of it is of ``team`` (None: all of it); a scope of one team stays what it is."""
        return replace(self, team=team) if self.team is None else self

    def require(self, team: str) -> None:
        """Raises NotFound for a team that is not there: nothing may be stored for it."""
        if not self.covers(team):
            raise NotFound("team", team)

    def require_writing(self) -> None:
        """Raises NotPermitted for a scope that only decides, where something else is to be written."""
        if self.decides_only:
            raise NotPermitted("a key of all teams reads and decides; to change this, use a key of its team")


EVERY_TEAM = TeamScope(None)
"""For what the installation does by itself, for no team: scheduler, reconciler, re-optimization, sign-in."""
ROLE_OVER_ALL_TEAMS = TeamScope(None, decides_only=True)
"""What a key of ALL_TEAMS sees."""


def default_scopes(team: str) -> frozenset[Scope]:
    """What a new key of ``team`` may do if its maker names no scopes."""
    return ALL_TEAMS_SCOPES if team == ALL_TEAMS else TEAM_SCOPES


def require_holdable(team: str, scopes: Collection[Scope]) -> None:
    """Raises InputError for scopes that no key of ``team`` may have: a key of all teams reads and decides."""
    wrong = sorted(set(scopes) - ALL_TEAMS_SCOPES) if team == ALL_TEAMS else []
    if wrong:
        expected = (
            f"of {', '.join(sorted(ALL_TEAMS_SCOPES))}: a key of all teams reads and decides; "
            "plans and reservations are made with a key of one team, and admin sees every team anyway"
        )
        raise InputError("key", (FieldProblem("/scopes", ", ".join(wrong), expected),))


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises NotPermitted unless ``caller`` has ``scope``."""
    if not caller.may(scope):
        raise NotPermitted(f"key {caller.key_id} lacks the scope {scope}")


def scope_of(caller: Caller, team: str | None = None) -> TeamScope:
    """The objects that there are for ``caller``.

    An administrator and a key of all teams see those of the wished ``team`` (None: all). Everybody else sees
    those of their own team. Raises NotPermitted for another team's, whether or not that team exists.
    """
    if Scope.ADMIN in caller.scopes:
        return EVERY_TEAM.narrowed_to(team)
    if caller.sees_every_team:
        return ROLE_OVER_ALL_TEAMS.narrowed_to(team)
    if team and team != caller.team:
        raise NotPermitted(f"key {caller.key_id} sees team {caller.team} alone, and not {team}")
    return TeamScope(caller.team)
