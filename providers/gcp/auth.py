"""OAuth 2.0 bearer tokens: given, or fetched with a service account's signed assertion.

A service account's key signs a JSON Web Token (RS256), which the token endpoint exchanges for an access
token of one hour (RFC 7523). A token that was given as such cannot be renewed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from broker.domain.basics.errors import FieldProblem, InputError
from providers.http import Operation, ProviderHttp
from providers.payload import Amount, Name, PayloadModel

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LIFE_S = 3600
MARGIN_S = 120.0
VARIABLE = "BROKER_GCP_CREDENTIALS"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The fields of a key file that are read."""

    client_email: str
    private_key: RSAPrivateKey = field(repr=False)
    private_key_pem: str = field(repr=False)
    private_key_id: str = ""
    project_id: str = ""

    def assertion(self, audience: str, now_s: int) -> str:
        """A signed JSON Web Token that requests an access token from ``audience``."""
        header = {"alg": "RS256", "typ": "JWT", "kid": self.private_key_id}
        claims = {
            "iss": self.client_email,
            "scope": SCOPE,
            "aud": audience,
            "iat": now_s,
            "exp": now_s + LIFE_S,
        }
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = self.private_key.sign(signed.encode(), PKCS1v15(), SHA256())
        return f"{signed}.{_encoded(signature)}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_credentials(text: str) -> ServiceAccount | str:
    """Credentials from a key's JSON, from the path of its file (``….json``), or else an access token.

    Raises InputError for an unusable key; no message contains the key.
    """
    if text.endswith(".json"):
        try:
            text = Path(text).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(f"a file that cannot be read ({type(error).__name__})") from error
    if not text.lstrip().startswith("{"):
        return text
    try:
        key = json.loads(text)
        pem = str(key["private_key"])
        private_key = load_pem_private_key(pem.encode(), password=None)
        email = str(key["client_email"])
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
        raise _unusable(f"a key that cannot be read ({type(error).__name__})") from None
    if not isinstance(private_key, RSAPrivateKey):
        raise _unusable("a key that is not RSA")
    return ServiceAccount(
        email, private_key, pem, str(key.get("private_key_id", "")), str(key.get("project_id", ""))
    )


def _unusable(found: str) -> InputError:
    expected = "the JSON key of a service account, the path of its file, or an access token"
    return InputError("environment", (FieldProblem(VARIABLE, found, expected),))


class _Answer(PayloadModel):
    access_token: Name
    expires_in: Amount = 0.0


class TokenSource:
    """The bearer token; with a service account it is fetched when it is missing or expires."""

    def __init__(
        self,
        http: ProviderHttp,
        credentials: ServiceAccount | str,
        token_url: str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._http, self._url, self._wall_s = http, token_url, wall_s
        self._account = credentials if isinstance(credentials, ServiceAccount) else None
        self._token = credentials if isinstance(credentials, str) else ""
        self._until_s = float("inf") if self._account is None else 0.0
        self._lock = asyncio.Lock()
        if self._account is not None:
            http.add_secret(self._account.private_key_pem)

    @property
    def renews(self) -> bool:
        """Whether a new token can be fetched."""
        return self._account is not None

    async def token(self, *, renew: bool = False) -> str:
        """The token; CredentialsRejected when the account is refused."""
        async with self._lock:
            if self._account is not None and (renew or time.monotonic() >= self._until_s):
                await self._fetch(self._account)
            return self._token

    async def _fetch(self, account: ServiceAccount) -> None:
        assertion = account.assertion(self._url, int(self._wall_s()))
        self._http.add_secret(assertion)
        reply = await self._http.request(
            "POST",
            self._url,
            operation=Operation.TOKEN,
            repeatable=True,
            content=urlencode({"grant_type": GRANT, "assertion": assertion}).encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        answer = reply.read(_Answer)
        self._http.add_secret(answer.access_token)
        self._token = answer.access_token
        self._until_s = time.monotonic() + max(0.0, answer.expires_in - MARGIN_S)
