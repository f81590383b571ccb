"""Which team and scopes claims give, and what is checked of what a provider answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from api.identity.openid import OpenIdProvider, Registration
from broker.domain.basics.access import ALL_TEAMS_SCOPES, TEAM_SCOPES
from broker.domain.basics.account import Scope
from broker.domain.basics.claims import ClaimRules, Role, person_of
from broker.domain.basics.errors import NotAuthenticated, NotPermitted, ProviderUnavailable
from broker.domain.basics.person import is_same_actor
from broker.services.accounts.people import BegunSignIn, PeopleService
from broker.store import create_store
from tests.fakes.clock import FakeClock

ISSUER, CLIENT, BACK = "https://id.example.org", "broker", "https://broker.example.org/signin/callback"
RULES = ClaimRules(
    teams={"ml": "research", "fin": "*"},
    roles={"ml": Role.MEMBER, "fin": Role.APPROVER, "ops": Role.ADMIN},
)
ADA = {"sub": "u-1", "email": "ada@example.org", "groups": ["ml"]}


@pytest.mark.parametrize(
    ("claims", "rules", "expected"),
    [
        (ADA, RULES, ("research", TEAM_SCOPES)),
        ({**ADA, "groups": "ml"}, RULES, ("research", TEAM_SCOPES)),
        ({**ADA, "groups": ["fin"]}, RULES, ("*", ALL_TEAMS_SCOPES)),
        ({**ADA, "groups": ["fin", "ml"]}, RULES, ("research", TEAM_SCOPES | ALL_TEAMS_SCOPES)),
        ({**ADA, "groups": ["ops"]}, RULES, ("admin", frozenset({Scope.ADMIN}))),
        (
            {**ADA, "groups": ["fin"]},
            ClaimRules(teams={"fin": "*"}, roles={"fin": Role.MEMBER}),
            ("*", frozenset({Scope.PLANS_READ, Scope.SPEND_READ})),
        ),
        ({**ADA, "team": "ml"}, ClaimRules("team"), ("ml", frozenset({Scope.PLANS_READ, Scope.SPEND_READ}))),
        (
            {**ADA, "realm_access": {"roles": ["lead"]}},
            ClaimRules(role_claim="realm_access.roles", roles={"lead": Role.MEMBER}),
            ("ml", TEAM_SCOPES),
        ),
        (
            {**ADA, "https://example.org/roles": ["lead"]},
            ClaimRules(role_claim="https://example.org/roles", roles={"lead": Role.MEMBER}),
            ("ml", TEAM_SCOPES),
        ),
        (
            {**ADA, "email_verified": True},
            ClaimRules("email", {"ada@example.org": "research"}),
            ("research", frozenset({Scope.PLANS_READ, Scope.SPEND_READ})),
        ),
    ],
)
def test_claims_give_team_and_scopes(
    claims: Mapping[str, Any], rules: ClaimRules, expected: tuple[str, frozenset[Scope]]
) -> None:
    person = person_of(claims, rules)
    assert (person.team, person.scopes) == expected
    assert person.actor == "ada@example.org (u-1)"


@pytest.mark.parametrize(
    ("claims", "rules", "told"),
    [
        ({**ADA, "groups": ["other"]}, RULES, "belongs to no team here: claim 'groups' has 1 values"),
        ({"sub": "u-1"}, RULES, "u-1 signed in, but belongs to no team here: claim 'groups' is empty"),
        ({**ADA, "groups": ["a", "b"]}, ClaimRules(), "where exactly one team is needed"),
        ({**ADA, "groups": "*"}, ClaimRules(), "belongs to no team"),
        ({**ADA, "groups": {"ml": True}}, RULES, "belongs to no team"),
        (ADA, ClaimRules(default_role=None), "gives no role here"),
        (
            {**ADA, "email_verified": False},
            ClaimRules("email", {"ada@example.org": "x"}),
            "belongs to no team",
        ),
        (ADA, ClaimRules("email", {"ada@example.org": "x"}), "belongs to no team"),
        ({"groups": ["ml"]}, RULES, "names nobody"),
        ({**ADA, "sub": 5}, RULES, "names nobody"),
        ({**ADA, "sub": "u\u202e1"}, RULES, "names nobody"),
    ],
)
def test_claims_that_give_nothing_are_refused(
    claims: Mapping[str, Any], rules: ClaimRules, told: str
) -> None:
    with pytest.raises(NotPermitted, match=told.replace("(", r"\(")):
        person_of(claims, rules)


def test_a_person_is_the_same_by_whatever_name() -> None:
    assert is_same_actor("ada@example.org (u-1)", "ada@new.example.org (u-1)")
    assert not is_same_actor("ada@example.org (u-1)", "ada@example.org (u-2)")
    assert not is_same_actor("u-1", "ada@example.org (u-1)")
    assert is_same_actor("b3dd91d14b13", "b3dd91d14b13")


class Wrong:
    """A provider that answers as it is told. ``claims``: of its ID tokens; ``None`` leaves one out."""

    def __init__(self, clock: FakeClock) -> None:
        self.key = RSAKey.generate_key(2048, auto_kid=True)
        self.clock = clock
        self.issuer = ISSUER
        self.claims: dict[str, Any] = {}
        self.about: dict[str, Any] = {}
        self.refresh_token: str | None = "refresh-1"
        self.error: tuple[int, str] | None = None
        self.asked: list[dict[str, str]] = []
        self.nonce = ""

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("openid-configuration"):
            names = ("authorization", "token", "userinfo", "end_session")
            told = {f"{name}_endpoint": f"{ISSUER}/{name}" for name in names}
            return httpx.Response(200, json={"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys", **told})
        if request.url.path == "/keys":
            return httpx.Response(200, json=KeySet([self.key]).as_dict(private=False))
        if request.url.path == "/userinfo":
            return httpx.Response(200, json={"sub": "u-1", "groups": ["ml"], **self.about})
        self.asked.append({name: one[0] for name, one in parse_qs(request.content.decode()).items()})
        if self.error is not None:
            return httpx.Response(self.error[0], json={"error": self.error[1]})
        tokens = {"access_token": "a-1", "id_token": self.id_token(), "refresh_token": self.refresh_token}
        return httpx.Response(200, json={name: one for name, one in tokens.items() if one is not None})

    def id_token(self) -> str:
        now = int(self.clock.now().timestamp())
        claims = {"iss": ISSUER, "aud": CLIENT, "sub": "u-1", "iat": now, "exp": now + 300, **self.claims}
        claims.setdefault("nonce", self.nonce)
        told = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, told, self.key)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wrong(clock: FakeClock) -> Wrong:
    return Wrong(clock)


@pytest.fixture
async def people(tmp_path: Path, wrong: Wrong, clock: FakeClock) -> AsyncIterator[PeopleService]:
    store = create_store(f"sqlite:///{tmp_path / 'b.db'}", secrets_key="s" * 40)
    await store.migrate()
    client = httpx.AsyncClient(transport=httpx.MockTransport(wrong.answer))
    known_as = Registration(ISSUER, CLIENT, "openid", client_secret="client-secret")
    provider = OpenIdProvider(known_as, clock, client)
    yield PeopleService(store.unit_of_work, clock, provider, RULES)
    await provider.aclose()
    await store.close()


async def begun(people: PeopleService, wrong: Wrong) -> BegunSignIn:
    found = await people.begin("/plans", BACK)
    asked = parse_qs(urlsplit(found.url).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["state"] == [found.state]
    wrong.nonce = asked["nonce"][0]
    return found


async def signed_in(people: PeopleService, wrong: Wrong) -> str:
    state = (await begun(people, wrong)).state
    return (await people.finish(state, state, "code", BACK))[0]


async def test_the_secret_of_pkce_goes_with_the_code(people: PeopleService, wrong: Wrong) -> None:
    found = await begun(people, wrong)
    challenge = parse_qs(urlsplit(found.url).query)["code_challenge"][0]
    await people.finish(found.state, found.state, "code", BACK)
    assert create_s256_code_challenge(wrong.asked[0]["code_verifier"]) == challenge
    assert "client_secret" not in wrong.asked[0], "it goes by the Authorization header"


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"nonce": None}, "missing_claim: .*nonce"),
        ({"nonce": "another"}, "nonce"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": [CLIENT, "another-client"]}, "azp"),
        ({"azp": "another-client"}, "azp"),
        ({"iss": "https://evil.example.org"}, "iss"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"at_hash": "AAAA"}, "at_hash"),
        ({"sub": "somebody-else"}, "answered for somebody else"),
    ],
)
async def test_an_id_token_that_does_not_stand_up_signs_nobody_in(
    people: PeopleService, wrong: Wrong, claims: dict[str, Any], told: str
) -> None:
    wrong.claims = claims
    with pytest.raises(NotAuthenticated, match=told):
        await signed_in(people, wrong)


async def test_a_provider_of_another_name_is_not_asked_for_anything(
    people: PeopleService, wrong: Wrong
) -> None:
    wrong.issuer = "https://evil.example.org"
    with pytest.raises(ProviderUnavailable, match="write exactly what it names"):
        await people.begin("/", BACK)


async def test_a_session_outlives_a_silent_provider_for_one_more_turn(
    people: PeopleService, wrong: Wrong, clock: FakeClock
) -> None:
    token = await signed_in(people, wrong)
    wrong.error = (500, "down")
    clock.advance(minutes=11)
    assert (await people.find_visitor(token)).team == "research"
    clock.advance(minutes=8)
    assert (await people.find_visitor(token)).team == "research"
    clock.advance(minutes=2)
    with pytest.raises(NotAuthenticated, match="does not answer"):
        await people.find_visitor(token)
    wrong.error = None
    clock.advance(minutes=1)
    assert (await people.find_visitor(token)).team == "research", "it is there again"


async def test_a_refused_refresh_and_a_lost_group_end_the_session_for_good(
    people: PeopleService, wrong: Wrong, clock: FakeClock
) -> None:
    changes: dict[str, Callable[[], None]] = {
        "invalid_grant": lambda: setattr(wrong, "error", (400, "invalid_grant")),
        "no team": lambda: setattr(wrong, "about", {"groups": ["other"]}),
        "somebody else": lambda: setattr(wrong, "about", {"sub": "u-2"}),
    }
    for told, change in changes.items():
        token = await signed_in(people, wrong)
        change()
        clock.advance(minutes=11)
        with pytest.raises(NotAuthenticated, match=told):
            await people.find_visitor(token)
        wrong.error, wrong.about = None, {}
        with pytest.raises(NotAuthenticated, match="session is over"):
            await people.find_visitor(token)


async def test_what_a_person_may_follows_their_groups_at_the_next_look(
    people: PeopleService, wrong: Wrong, clock: FakeClock
) -> None:
    token = await signed_in(people, wrong)
    wrong.about = {"groups": ["fin"]}
    assert (await people.find_visitor(token)).team == "research"
    clock.advance(minutes=11)
    caller = await people.find_visitor(token)
    assert (caller.team, caller.scopes) == ("*", ALL_TEAMS_SCOPES)
    wrong.refresh_token = "refresh-2"
    clock.advance(minutes=11)
    await people.find_visitor(token)
    clock.advance(minutes=11)
    await people.find_visitor(token)
    assert [one.get("refresh_token") for one in wrong.asked] == [None, "refresh-1", "refresh-1", "refresh-2"]


async def test_without_a_refresh_token_a_session_ends_with_its_id_token(
    people: PeopleService, wrong: Wrong, clock: FakeClock
) -> None:
    wrong.refresh_token = None
    token = await signed_in(people, wrong)
    clock.advance(minutes=4)
    assert (await people.find_visitor(token)).team == "research"
    clock.advance(minutes=2)
    with pytest.raises(NotAuthenticated, match="session is over"):
        await people.find_visitor(token)


async def test_what_the_provider_gave_is_sealed_and_bound_to_its_hash(
    people: PeopleService, wrong: Wrong, tmp_path: Path
) -> None:
    token = await signed_in(people, wrong)
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"u-1" in stored
    assert b"refresh-1" not in stored.replace(b"ada", b"")
    assert token.encode() not in stored
