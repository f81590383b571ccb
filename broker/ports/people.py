"""The port of an identity provider, at which people sign in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.domain.basics.person import Tokens


class IdentityProvider(Protocol):
    """A provider of OpenID Connect. Raises ProviderUnavailable while it does not answer."""

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where a browser is sent to sign in; ``verifier`` is the secret of PKCE."""
        ...

    async def redeem(self, code: str, redirect_uri: str, nonce: str, verifier: str) -> Tokens:
        """The checked tokens for an authorization code. NotAuthenticated."""
        ...

    async def refresh(self, refresh_token: str, subject: str) -> Tokens:
        """New tokens of the same person. NotAuthenticated once the provider refuses."""
        ...

    async def verify(self, token: str) -> Mapping[str, Any]:
        """The claims of an access token that was made for the broker's API. NotAuthenticated."""
        ...

    async def sign_out_url(self, id_token: str | None, back: str) -> str | None:
        """Where a browser ends its session at the provider; None where it has no such address."""
        ...
