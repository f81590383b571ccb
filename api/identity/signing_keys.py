"""Checks who signed a token: the provider's published keys, kept and fetched anew as they rotate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from broker.domain.basics.errors import NotAuthenticated, ProviderUnavailable
from broker.ports.unit_of_work import Clock

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures that only the holder of a private key can make: no ``none``, no shared secrets (HS256)."""
KEPT = timedelta(minutes=15)
"""How long a key that the provider withdrew may still open."""
BETWEEN_FETCHES = timedelta(seconds=30)
"""Anybody can send a token with an unknown key id: it makes us ask again no more often than this."""
LONGEST_TOKEN = 16 * 1024

FetchKeys = Callable[[], Awaitable[Mapping[str, Any]]]


class SigningKeys:
    """The provider's keys. ``fetch`` returns its JWKS document."""

    def __init__(self, fetch: FetchKeys, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turn = asyncio.Lock()
        self._keys: KeySet | None = None
        self._fetched_at: datetime | None = None
        self._tried_at: datetime | None = None

    async def opened(self, token: str) -> jwt.Token:
        """Header and claims of ``token``, whose signature is right. NotAuthenticated, ProviderUnavailable."""
        if len(token) > LONGEST_TOKEN:
            raise NotAuthenticated("the token is longer than 16 KiB")
        try:
            kid = jws.extract_compact(token.encode()).headers().get("kid")
            return jwt.decode(token, await self._keys_for(kid), algorithms=ALGORITHMS)
        except (JoseError, ValueError) as error:
            raise NotAuthenticated(f"the token is not signed as it has to be: {_words(error)}") from error

    async def _keys_for(self, kid: object) -> KeySet:
        async with self._turn:
            now = self._clock.now()
            is_old = self._fetched_at is None or now >= self._fetched_at + KEPT
            is_known = self._keys is not None and any(key.kid == kid for key in self._keys.keys)
            may_ask = self._tried_at is None or now >= self._tried_at + BETWEEN_FETCHES
            if may_ask and (is_old or not is_known):
                self._tried_at = now
                self._keys = _usable(await self._fetch())
                self._fetched_at = now
            elif is_old or self._keys is None:
                raise ProviderUnavailable("identity provider", "its signing keys could not be fetched")
            return self._keys


def _usable(document: Mapping[str, Any]) -> KeySet:
    """The public keys of a JWKS that sign; shared secrets in it are no keys of ours."""
    listed = document.get("keys")
    keys = [
        key
        for key in (listed if isinstance(listed, list) else [])
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
    ]
    try:
        return KeySet.import_key_set({"keys": keys})
    except (JoseError, ValueError) as error:
        raise ProviderUnavailable(
            "identity provider", f"its signing keys are unusable: {_words(error)}"
        ) from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
