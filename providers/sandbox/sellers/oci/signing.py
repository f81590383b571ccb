"""Checks OCI request signatures, version 1, as OCI's documentation "Request Signatures" describes them.

Of every call the form is checked: the headers that must be signed, a date within five minutes of this
machine's time, and the body against its hash. The RSA signature itself is checked when the key of its id was
uploaded (``UploadApiKey``); of an unknown key, which the real service would refuse, nothing more can be said.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from providers.sandbox.protocol import Call

MOST_SKEW = timedelta(minutes=5)
_FIELD = re.compile(r'(\w+)="([^"]*)"')
_ALWAYS = ("(request-target)", "host")
_WITH_BODY = ("content-length", "content-type", "x-content-sha256")


class BadSignature(Exception):
    """The call is not signed as it must be; the text says why."""


def public_key(pem: str) -> RSAPublicKey:
    """An RSA public key; ValueError when the text is none."""
    try:
        found = load_pem_public_key(pem.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError("not a public key") from error
    if not isinstance(found, RSAPublicKey):
        raise ValueError("not an RSA key")
    return found


def fingerprint(key: RSAPublicKey) -> str:
    """MD5 of the key's DER form in pairs of digits, as OCI's console shows it."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digits = hashlib.md5(der, usedforsecurity=False).hexdigest()
    return ":".join(digits[i : i + 2] for i in range(0, 32, 2))


def check(call: Call, find_key: Callable[[str], RSAPublicKey | None]) -> str:
    """The key id of a well signed call; ``find_key`` gives the key of a fingerprint. Raises BadSignature."""
    scheme, _, rest = call.headers.get("authorization", "").partition(" ")
    given: dict[str, str] = dict(_FIELD.findall(rest))
    key_id, names = given.get("keyId", ""), given.get("headers", "").lower().split()
    if scheme.lower() != "signature" or not given.get("signature") or given.get("version") != "1":
        raise BadSignature("no version 1 signature in the Authorization header")
    if given.get("algorithm") != "rsa-sha256" or len([part for part in key_id.split("/") if part]) != 3:
        raise BadSignature("algorithm or keyId is not valid")
    _check_form(call, names)
    key = find_key(key_id.split("/")[2])
    if key is not None:
        _check_rsa(key, _signing_text(call, names), given["signature"])
    return key_id


def _check_form(call: Call, names: list[str]) -> None:
    needed = _ALWAYS + (_WITH_BODY if call.method in {"POST", "PUT", "PATCH"} else ())
    missing = [name for name in needed if name not in names]
    if missing or not {"date", "x-date"} & set(names):
        raise BadSignature(f"not signed: {', '.join(missing) or 'date'}")
    _check_date(call.headers)
    if "x-content-sha256" in names:
        digest = base64.b64encode(hashlib.sha256(call.body).digest()).decode()
        if call.headers.get("x-content-sha256") != digest:
            raise BadSignature("x-content-sha256 is not the body's")


def _check_date(headers: Mapping[str, str]) -> None:
    try:
        at = parsedate_to_datetime(headers.get("x-date") or headers.get("date", ""))
    except ValueError:
        raise BadSignature("no date") from None
    if abs(datetime.now(UTC) - at.astimezone(UTC)) > MOST_SKEW:
        raise BadSignature("the date is more than five minutes off")


def _signing_text(call: Call, names: list[str]) -> str:
    lines = []
    for name in names:
        if name == "(request-target)":
            lines.append(f"{name}: {call.method.lower()} {call.target}")
        elif name in call.headers:
            lines.append(f"{name}: {call.headers[name]}")
        else:
            raise BadSignature(f"{name} is signed but was not sent")
    return "\n".join(lines)


def _check_rsa(key: RSAPublicKey, text: str, signature: str) -> None:
    try:
        key.verify(base64.b64decode(signature), text.encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError):
        raise BadSignature("the signature does not fit the request") from None
