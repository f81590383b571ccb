"""OCI request signatures, version 1 (RSA-SHA256), as a pure function of request, key and time.

Reference: OCI documentation, "Request Signatures" (draft-cavage-http-signatures-08). A call without a body
signs date, target and host; POST and PUT also sign the body's length, type and SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

CONTENT_TYPE = "application/json"
_GENERIC = ("date", "(request-target)", "host")
_BODY = ("content-length", "content-type", "x-content-sha256")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class OciKey:
    """An API signing key and its id, ``tenancy/user/fingerprint``."""

    key_id: str
    private_key: rsa.RSAPrivateKey = field(repr=False)

    def sign(self, text: str) -> str:
        """Base64 of the RSA-SHA256 signature (PKCS #1 v1.5) of ``text``."""
        return base64.b64encode(self.private_key.sign(text.encode(), padding.PKCS1v15(), SHA256())).decode()


def load_private_key(pem: str) -> rsa.RSAPrivateKey:
    """An RSA key from PEM text (``\\n`` may stand for a line's end); ValueError when it is none."""
    try:
        found = load_pem_private_key(pem.replace("\\n", "\n").encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("not an unencrypted private key in PEM form") from error
    if not isinstance(found, rsa.RSAPrivateKey):
        raise ValueError("not an RSA key")
    return found


def throwaway_key() -> rsa.RSAPrivateKey:
    """A random key of no account; the sandbox accepts any key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed_headers(method: str, url: str, body: bytes, key: OciKey, at: datetime) -> dict[str, str]:
    """The headers of a signed call, ``Authorization`` included; ``at`` must be aware."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    values = {
        "date": format_datetime(at.astimezone(UTC), usegmt=True),
        "(request-target)": f"{method.lower()} {target}",
        "host": parts.netloc,
    }
    names: tuple[str, ...] = _GENERIC
    if method in _WITH_BODY:
        names = (*_GENERIC, *_BODY)
        values |= {
            "content-length": str(len(body)),
            "content-type": CONTENT_TYPE,
            "x-content-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
        }
    signature = key.sign("\n".join(f"{name}: {values[name]}" for name in names))
    del values["(request-target)"]
    values["authorization"] = (
        f'Signature algorithm="rsa-sha256",headers="{" ".join(names)}",keyId="{key.key_id}",'
        f'signature="{signature}",version="1"'
    )
    return values
