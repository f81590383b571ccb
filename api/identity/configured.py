"""The identity provider and the reading of its claims, as the settings have them."""

from __future__ import annotations

from datetime import timedelta

from api.identity.openid import OpenIdProvider, Registration, is_safe
from broker.domain.basics.claims import ClaimRules, Role
from broker.domain.basics.errors import FieldProblem, InputError
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.accounts.people import PeopleService
from broker.settings import Settings


def provider_of(settings: Settings, clock: Clock) -> OpenIdProvider | None:
    """The provider; None without an issuer. InputError for settings that do not go together."""
    problems = []
    if settings.oidc_issuer is None:
        for name in ("client_id", "client_secret", "audience"):
            if getattr(settings, f"oidc_{name}") is not None:
                expected = f"also BROKER_OIDC_ISSUER; or unset BROKER_OIDC_{name.upper()}"
                problems.append(FieldProblem("BROKER_OIDC_ISSUER", "nothing", expected))
    elif not is_safe(settings.oidc_issuer, settings.oidc_issuer):
        expected = "an https:// address: tokens come from there"
        problems.append(FieldProblem("BROKER_OIDC_ISSUER", settings.oidc_issuer, expected))
    elif settings.oidc_client_id is None:
        expected = "the client id under which the broker is registered at the provider"
        problems.append(FieldProblem("BROKER_OIDC_CLIENT_ID", "nothing", expected))
    if "openid" not in settings.oidc_scopes.split():
        problems.append(FieldProblem("BROKER_OIDC_SCOPES", settings.oidc_scopes, "openid among them"))
    if problems:
        raise InputError("settings", tuple(problems))
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    secret = settings.oidc_client_secret
    registration = Registration(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        scope=settings.oidc_scopes,
        client_secret=None if secret is None else secret.get_secret_value(),
        audience=settings.oidc_audience,
    )
    return OpenIdProvider(registration, clock)


def people_of(
    settings: Settings, units: UnitOfWorkFactory, clock: Clock, provider: OpenIdProvider | None
) -> PeopleService:
    """The use cases of people. ``clock`` is the true time: the provider's tokens go by it."""
    default = settings.oidc_default_role
    rules = ClaimRules(
        team_claim=settings.oidc_team_claim,
        teams=settings.oidc_teams,
        role_claim=settings.oidc_role_claim,
        roles={value: Role(role) for value, role in settings.oidc_roles.items()},
        default_role=None if default == "none" else Role(default),
    )
    confirm_every = timedelta(minutes=settings.oidc_confirm_minutes)
    return PeopleService(units, clock, provider, rules, confirm_every=confirm_every)
