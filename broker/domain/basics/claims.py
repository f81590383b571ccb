"""Which team and scopes the claims of an identity provider give. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from broker.domain.basics.access import ALL_TEAMS_SCOPES, TEAM_SCOPES
from broker.domain.basics.account import Scope
from broker.domain.basics.errors import NotPermitted
from broker.domain.basics.person import Person
from broker.domain.basics.webhook import ALL_TEAMS
from broker.unseen import find_unseen

ADMIN_TEAM = "admin"
LONGEST_NAME = 255
LABELS = ("email", "preferred_username", "upn", "name")
"""Claims that people are called by, best first."""


class Role(StrEnum):
    """A named set of scopes, for the mapping of claims."""

    VIEWER = "viewer"
    MEMBER = "member"
    APPROVER = "approver"
    ADMIN = "admin"


SCOPES_OF: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.PLANS_READ, Scope.SPEND_READ}),
    Role.MEMBER: TEAM_SCOPES,
    Role.APPROVER: ALL_TEAMS_SCOPES,
    Role.ADMIN: frozenset({Scope.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """How claims are read. A claim is named as it stands, or by a path with dots (``realm_access.roles``).

    ``teams``: team by value of ``team_claim``, the first entry that applies wins; empty: the value is the
    team. ``roles``: role by value of ``role_claim``, all that apply count together; where none does,
    ``default_role`` (None: nobody without a role gets in).
    """

    team_claim: str = "groups"
    teams: Mapping[str, str] = field(default_factory=dict)
    role_claim: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    default_role: Role | None = Role.VIEWER


def person_of(claims: Mapping[str, Any], rules: ClaimRules) -> Person:
    """The person whom ``claims``, checked already, describe. NotPermitted where they give no team or role."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_NAME or find_unseen(subject):
        raise NotPermitted("the identity provider's token names nobody: it needs the claim sub")
    name = _label(claims) or subject
    roles = {rules.roles[value] for value in claim_values(claims, rules.role_claim) if value in rules.roles}
    if not roles and rules.default_role is not None:
        roles = {rules.default_role}
    if not roles:
        raise NotPermitted(
            f"{name} signed in, but claim {rules.role_claim!r} gives no role here: "
            "an administrator has to map one of its values in BROKER_OIDC_ROLES, or the group has to be given"
        )
    scopes = frozenset[Scope]().union(*(SCOPES_OF[role] for role in roles))
    team = _team(claims, rules)
    if team is None and Scope.ADMIN in scopes:
        team = ADMIN_TEAM
    if team is None:
        raise NotPermitted(_no_team(name, claims, rules))
    if team == ALL_TEAMS and Scope.ADMIN not in scopes:
        scopes &= ALL_TEAMS_SCOPES
    return Person(subject, name, team, scopes)


def claim_values(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts of a claim: one, or those of a list. An address that was not verified is none."""
    if name == "email" and claims.get("email_verified") is not True:
        return ()
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return tuple(value.split()) if name in ("scope", "scp") else (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _team(claims: Mapping[str, Any], rules: ClaimRules) -> str | None:
    values = claim_values(claims, rules.team_claim)
    if rules.teams:
        return next((team for value, team in rules.teams.items() if value in values), None)
    named = [one for one in values if one.strip() == one and 0 < len(one) <= LONGEST_NAME]
    return named[0] if len(named) == 1 and named[0] != ALL_TEAMS and not find_unseen(named[0]) else None


def _no_team(name: str, claims: Mapping[str, Any], rules: ClaimRules) -> str:
    values = claim_values(claims, rules.team_claim)
    found = f"has {len(values)} values" if values else "is empty or missing"
    wanted = "of which BROKER_OIDC_TEAMS maps none" if rules.teams else "where exactly one team is needed"
    return (
        f"{name} signed in, but belongs to no team here: claim {rules.team_claim!r} {found}, {wanted}. "
        "Ask an administrator of the broker to map a group, or of the identity provider to put you into one"
    )


def _label(claims: Mapping[str, Any]) -> str | None:
    for name in LABELS:
        value = claims.get(name)
        told = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and not find_unseen(value)
        if told and not (name == "email" and claims.get("email_verified") is False):
            return str(value)
    return None
