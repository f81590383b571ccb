"""What must not stand in a log: secrets that are known, and what looks like one.

``register_secret`` makes a text known, in the forms in which it travels (as it is, in a URL, in base64, in
JSON and in a Python string). ``redacted`` strikes out the known ones, then what has the form of a secret: our
keys, what follows ``Bearer`` or a name such as ``token=``, the user of a URL, and what follows its host.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

MARK = "[redacted]"
SHORTEST = 8
"""Characters of the shortest text that is struck out wherever it stands: ``broker`` may be a password too."""
ALONE_BELOW = 16
"""Shorter secrets than that are struck out as words, not as parts of words."""
LONGEST = 4096
"""No form of a secret that is known is taken for longer than that."""

_NAMES = (
    r"(?:pass(?:word|wd|phrase)|secret|(?:access|api|auth|bearer|refresh|session|id|security|csrf)[_-]?token"
    r"|token|credentials?|signature|(?:api|access|admin|private|secrets?|account|subscription|idempotency)[_-]?key)"
)
_HEADERS = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,40}(?:key|token|secret|signature)"
    r"|idempotency-key|webhook-signature"
)
_VALUE = r"[^\s\"'`,;&|<>(){}\[\]\\]"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\bhttps?://[^\s\"'`<>\\]+"), ""),
    (re.compile(r"(?i)\bhttps?%3A%2F%2F[^\s\"'`<>\\]+"), MARK),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/\"'`@]*(?:/[^\s\"'`@]*)?@"), rf"\1{MARK}@"),
    (re.compile(r"(broker_live_[A-Za-z0-9]+_)[A-Za-z0-9_-]+"), rf"\1{MARK}"),
    (re.compile(r"(whsec_)[A-Za-z0-9+/=_-]+"), rf"\1{MARK}"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+|%20|\+)[A-Za-z0-9._~+/=%-]{8,}"), rf"\1 {MARK}"),
    (
        re.compile(rf"(?i)\b({_HEADERS})(b?[\"']?\s*[:=,]\s*b?[\"'])[^\"']*"),
        rf"\1\2{MARK}",
    ),
    (re.compile(rf"(?i)\b({_HEADERS})(\s*[:=]\s*)[^\s\"'][^\"'\n]*"), rf"\1\2{MARK}"),
    (re.compile(r"(?i)\b(broker_session)(=|%3D)[^\s\"';,]+"), rf"\1\2{MARK}"),
    (
        re.compile(rf"(?i)((?:\b|_){_NAMES})(b?[\"']?\s*(?:[:=]|%3D)\s*b?)([\"'])[^\"']*"),
        rf"\1\2\3{MARK}",
    ),
    (re.compile(rf"(?i)((?:\b|_){_NAMES})(\s*(?:=|:|%3D)\s*)(?!found\s){_VALUE}+"), rf"\1\2{MARK}"),
    (re.compile(rf"(?i)([?&](?:key|code|sig|auth|pwd|token|session))=({_VALUE}+)"), rf"\1={MARK}"),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"), MARK),
    (re.compile(r"(?s)\binput_value=.*?(?=, input_type=|$)"), f"input_value={MARK}"),
    # PostgreSQL names the row that it refused.
    (re.compile(r"(?i)\b(DETAIL|CONTEXT):\s[^\n]*"), rf"\1: {MARK}"),
    (re.compile(r"(?s)\[parameters: .*?\](?=\n|\s*\(Background|$)"), f"[parameters: {MARK}]"),
)
_HINT = re.compile(r"(?i)[:=@,%]|broker_live|whsec_|bearer|basic|-----BEGIN")
"""What every one of the patterns needs: most texts have none of it."""
_SECRET_NAME = re.compile(rf"(?i)(?:^|[_-])(?:{_NAMES}|pwd|cookie|authorization)$|^(?:{_HEADERS})$")
_OF_ENVIRONMENT = re.compile(
    r"(?i)(?:^|_)(?:key|token|secret|password|passwd|passphrase|credentials?)(?:_id)?$"
)

Known = Mapping[str, re.Pattern[str] | None]
"""Forms of secrets, the longest first; with a pattern where one counts only as a word of its own."""
_known: Known = {}


def register_secret(*texts: str | None) -> None:
    """Makes texts known, which no log shows from now on. Texts below SHORTEST are left to the patterns."""
    global _known
    found = dict(_known)
    for text in texts:
        secret = (text or "").strip()
        if SHORTEST <= len(secret) <= LONGEST:
            for form in _spellings(secret):
                alone = rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"
                found[form] = re.compile(alone) if len(form) < ALONE_BELOW else None
            found.update(dict.fromkeys(_in_base64(secret)))
    # A new table in place of the old one: another thread may be reading that.
    _known = {form: found[form] for form in sorted(found, key=len, reverse=True)}


def register_environment(environ: Mapping[str, str]) -> None:
    """Makes the values of variables known whose names say that they are secret, and passwords in URLs."""
    for name, value in environ.items():
        if _OF_ENVIRONMENT.search(name):
            register_secret(value, *value.split(","))
        register_secret(password_of(value))


def known_secrets() -> Known:
    """What is known, for a process that we start."""
    return _known


def know(known: Known) -> None:
    """Makes known what another process knows."""
    global _known
    _known = {**known, **_known}


def password_of(url: str) -> str | None:
    """The password in a URL; None where there is none, or no URL."""
    try:
        password = urlsplit(url).password if "://" in url else None
    except ValueError:
        return None
    return unquote(password) if password else None


def origin_of(url: str) -> str:
    """Scheme and host of a URL: what may be shown of an address whose path may be a secret."""
    scheme, found, rest = url.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}" if found and host else MARK


def is_secret_name(name: str) -> bool:
    """Whether a field of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(text: str) -> str:
    """``text`` without secrets."""
    text = without_known(text)
    if _HINT.search(text) is None:
        return text
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead or _origin, text)
    return text


def without_known(text: str) -> str:
    """``text`` without the secrets that are known."""
    for form, alone in _known.items():
        if form in text:
            text = alone.sub(MARK, text) if alone is not None else text.replace(form, MARK)
    return text


def _origin(found: re.Match[str]) -> str:
    url = found.group()
    shown = origin_of(url)
    if url.rstrip("/.,;:)") == shown:
        return url
    return f"{shown}/{MARK}"


def _spellings(text: str) -> Iterable[str]:
    """``text`` as URLs, JSON and Python write it."""
    return {
        text,
        quote(text, safe=""),
        quote(text),
        quote_plus(text),
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        repr(text.encode())[2:-1],
    }


def _in_base64(text: str) -> Iterable[str]:
    """What base64 makes of ``text`` wherever it stands in something longer: that depends on the place."""
    raw = text.encode()
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).decode()
        inner = coded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")
