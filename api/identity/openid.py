"""A provider of OpenID Connect, found by its discovery document.

Authorization code flow with PKCE (S256), state and nonce; refresh tokens; user info, whose claims fill in
what a thin ID token leaves out; JWT access tokens for the API (RFC 9068 or a provider's own form of them);
sign-out at the provider (RP-initiated). Authlib says what is sent and which claims an ID token must have,
joserfc checks signatures, and redirects are never followed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError

from api.identity.signing_keys import SigningKeys
from broker.domain.basics.errors import NotAuthenticated, ProviderUnavailable
from broker.domain.basics.person import Tokens
from broker.ports.unit_of_work import Clock

NAME = "identity provider"
DISCOVERY = "/.well-known/openid-configuration"
TIMEOUT_S = 10.0
LARGEST_ANSWER_BYTES = 1024 * 1024
METADATA_KEPT = timedelta(hours=1)
LEEWAY_S = 60
"""How far the provider's clock may be from ours."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Registration:
    """How the broker is known at the provider. ``audience`` None: the API takes no tokens."""

    issuer: str
    client_id: str
    scope: str
    client_secret: str | None = field(default=None, repr=False)
    audience: str | None = None


class OpenIdProvider:
    """Fulfils ``broker.ports.people.IdentityProvider``."""

    def __init__(self, known_as: Registration, clock: Clock, client: httpx.AsyncClient | None = None) -> None:
        self._known_as = known_as
        self._clock = clock
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        self._keys = SigningKeys(self._fetch_keys, clock)
        self._turn = asyncio.Lock()
        self._metadata: Mapping[str, Any] | None = None
        self._found_at: datetime | None = None

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._client.aclose()

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where a browser is sent to sign in."""
        known = self._known_as
        protocol = OAuth2Client(
            None, known.client_id, scope=known.scope, redirect_uri=redirect_uri, code_challenge_method="S256"
        )
        url, _ = protocol.create_authorization_url(
            await self._endpoint("authorization_endpoint"), state=state, nonce=nonce, code_verifier=verifier
        )
        return str(url)

    async def redeem(self, code: str, redirect_uri: str, nonce: str, verifier: str) -> Tokens:
        """The checked tokens for an authorization code."""
        answer = await self._ask_for_tokens(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect_uri,
                "code_verifier": verifier,
            }
        )
        if not isinstance(answer.get("id_token"), str):
            raise NotAuthenticated("the identity provider gave no ID token: ask for the scope openid")
        return await self._tokens(answer, None, nonce)

    async def refresh(self, refresh_token: str, subject: str) -> Tokens:
        """New tokens of the same person."""
        answer = await self._ask_for_tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})
        return await self._tokens(answer, subject, None)

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of an access token for the API."""
        if self._known_as.audience is None:
            raise NotAuthenticated("this API takes keys alone: BROKER_OIDC_AUDIENCE is not set")
        opened = await self._keys.opened(token)
        rules = jwt.JWTClaimsRegistry(
            self._now_s,
            LEEWAY_S,
            iss={"essential": True, "value": self._known_as.issuer},
            aud={"essential": True, "value": self._known_as.audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            rules.validate(opened.claims)
        except JoseError as error:
            raise _refused("token", error) from error
        return opened.claims

    async def sign_out_url(self, id_token: str | None, back: str) -> str | None:
        """Where a browser ends its session at the provider."""
        metadata = await self._find_metadata()
        if "end_session_endpoint" not in metadata:
            return None
        asked = {"client_id": self._known_as.client_id, "post_logout_redirect_uri": back}
        if id_token is not None:
            asked["id_token_hint"] = id_token
        url = await self._endpoint("end_session_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    async def _tokens(self, answer: Mapping[str, Any], subject: str | None, nonce: str | None) -> Tokens:
        """What ``answer`` holds, checked. ``subject``: whose it must be, where that is known."""
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        claims, expires_at = None, None
        if isinstance(id_token, str):
            claims = await self._id_claims(id_token, nonce, access_token)
            expires_at = datetime.fromtimestamp(claims["exp"], UTC)
            subject = subject or claims["sub"]
        told = await self._user_info(access_token) if isinstance(access_token, str) else None
        for each in (claims, told):
            if each is not None and each.get("sub") != subject:
                raise NotAuthenticated("the identity provider answered for somebody else")
        merged = None if claims is None and told is None else {**(told or {}), **(claims or {})}
        refresh_token = answer.get("refresh_token")
        return Tokens(
            claims=merged,
            expires_at=expires_at,
            id_token=id_token if isinstance(id_token, str) else None,
            refresh_token=refresh_token if isinstance(refresh_token, str) else None,
        )

    async def _id_claims(self, id_token: str, nonce: str | None, access_token: object) -> dict[str, Any]:
        opened = await self._keys.opened(id_token)
        known = self._known_as
        claims = CodeIDToken(
            opened.claims,
            opened.header,
            {
                "iss": {"essential": True, "value": known.issuer},
                "aud": {"essential": True, "value": known.client_id},
            },
            {"nonce": nonce, "client_id": known.client_id, "access_token": access_token},
        )
        try:
            claims.validate(self._now_s(), LEEWAY_S)
        except JoseError as error:
            raise _refused("ID token", error) from error
        return opened.claims

    async def _user_info(self, access_token: str) -> dict[str, Any] | None:
        """What the provider tells of the person; None where it has no such address, or signs its answer."""
        if "userinfo_endpoint" not in await self._find_metadata():
            return None
        url = await self._endpoint("userinfo_endpoint")
        answer = await self._send("GET", url, headers={"Authorization": f"Bearer {access_token}"})
        if answer.status_code in (401, 403):
            raise NotAuthenticated(f"the identity provider says nothing of this person: {answer.status_code}")
        if "json" not in answer.headers.get("Content-Type", ""):
            return None
        return _document(answer, "user info")

    async def _ask_for_tokens(self, fields: Mapping[str, str]) -> dict[str, Any]:
        url = await self._endpoint("token_endpoint")
        auth = ClientAuth(self._known_as.client_id, self._known_as.client_secret, await self._auth_method())
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        url, headers, body = auth.prepare("POST", url, headers, urlencode(fields))
        answer = await self._send("POST", url, headers=headers, content=body)
        if answer.is_success:
            return _document(answer, "tokens")
        raise NotAuthenticated(f"the identity provider refused: {_oauth_error(answer)}")

    async def _auth_method(self) -> str:
        if self._known_as.client_secret is None:
            return "none"
        offered = (await self._find_metadata()).get("token_endpoint_auth_methods_supported")
        posts_alone = isinstance(offered, list) and "client_secret_basic" not in offered
        return "client_secret_post" if posts_alone else "client_secret_basic"

    async def _fetch_keys(self) -> Mapping[str, Any]:
        return _document(await self._send("GET", await self._endpoint("jwks_uri")), "signing keys")

    async def _endpoint(self, name: str) -> str:
        url = (await self._find_metadata()).get(name)
        if not isinstance(url, str) or not is_safe(url, self._known_as.issuer):
            raise ProviderUnavailable(NAME, f"its discovery document has no https address as {name}")
        return url

    async def _find_metadata(self) -> Mapping[str, Any]:
        """The discovery document, kept for an hour; an older one where the provider does not answer."""
        async with self._turn:
            now, kept = self._clock.now(), self._metadata
            if kept is not None and self._found_at is not None and now < self._found_at + METADATA_KEPT:
                return kept
            try:
                answer = await self._send("GET", self._known_as.issuer.rstrip("/") + DISCOVERY)
                found = _document(answer, "discovery document")
            except ProviderUnavailable:
                if kept is None:
                    raise
                return kept
            if found.get("issuer") != self._known_as.issuer:
                raise ProviderUnavailable(
                    NAME,
                    f"its discovery document names the issuer {found.get('issuer')!r}, BROKER_OIDC_ISSUER "
                    f"{self._known_as.issuer!r}: write exactly what it names",
                )
            self._metadata, self._found_at = found, now
            return found

    async def _send(self, method: str, url: str, **more: Any) -> httpx.Response:
        """An answer of less than 500. ProviderUnavailable."""
        try:
            answer = await self._client.request(method, url, **more)
        except httpx.HTTPError as error:
            raise ProviderUnavailable(NAME, f"{type(error).__name__} {error}".strip()) from error
        if answer.status_code >= 500 or answer.status_code == 429:
            raise ProviderUnavailable(NAME, f"it answers {answer.status_code}")
        return answer

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())


def is_safe(url: str, issuer: str) -> bool:
    """Whether ``url`` is https; on this machine http will do where the issuer is here too."""
    parts = urlsplit(url)
    here = parts.scheme == "http" and parts.hostname in LOOPBACK and urlsplit(issuer).hostname in LOOPBACK
    return bool(parts.hostname) and (parts.scheme == "https" or here)


def _document(answer: httpx.Response, what: str) -> dict[str, Any]:
    if not answer.is_success or len(answer.content) > LARGEST_ANSWER_BYTES:
        raise ProviderUnavailable(NAME, f"its {what} cannot be read: status {answer.status_code}")
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise ProviderUnavailable(NAME, f"its {what} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ProviderUnavailable(NAME, f"its {what} is no JSON object")
    return found


def _oauth_error(answer: httpx.Response) -> str:
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "error" not in found:
        return f"status {answer.status_code}"
    told = found.get("error_description")
    return f"{found['error']}{f' ({told})' if isinstance(told, str) else ''}"[:300]


def _refused(what: str, error: JoseError) -> NotAuthenticated:
    """A message that names the claim, for example ``expired_token: exp``."""
    return NotAuthenticated(f"the {what} does not stand up to the checks: {error}")
