"""Redaction of logs: known secrets, and texts that look like secrets.

``register_secret`` registers a secret in all encodings in which it occurs (plain, URL, base64, JSON and
Python string). ``redacted`` removes registered secrets, and then texts with the form of a secret: our keys,
values after ``Bearer`` or names such as ``token=``, and users of URLs and what follows their hosts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

MARK = "[redacted]"
SHORTEST = 8
"""Minimum length of a registered secret; shorter ones, such as ``broker``, may be ordinary words."""
ALONE_BELOW = 16
"""Secrets shorter than this are redacted only as whole words."""
LONGEST = 4096
"""Maximum length of a registered encoding of a secret."""

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
    # PostgreSQL reports the values of a refused row.
    (re.compile(r"(?i)\b(DETAIL|CONTEXT):\s[^\n]*"), rf"\1: {MARK}"),
    (re.compile(r"(?s)\[parameters: .*?\](?=\n|\s*\(Background|$)"), f"[parameters: {MARK}]"),
)
_HINT = re.compile(r"(?i)[:=@,%]|broker_live|whsec_|bearer|basic|-----BEGIN")
"""Parts of which each pattern needs one; most texts have none."""
_SECRET_NAME = re.compile(rf"(?i)(?:^|[_-])(?:{_NAMES}|pwd|cookie|authorization)$|^(?:{_HEADERS})$")
_OF_ENVIRONMENT = re.compile(
    r"(?i)^BROKER_SECRET_|(?:^|_)(?:key|token|secret|password|passwd|passphrase|credentials?)(?:_id)?$"
)

Known = Mapping[str, re.Pattern[str] | None]
"""Encodings of secrets, longest first; with a pattern for those that match only as whole words."""
_known: Known = {}


def register_secret(*texts: str | None) -> None:
    """Registers secrets, which no log shows from now on. Texts below SHORTEST are not registered."""
    global _known
    found = dict(_known)
    for text in texts:
        secret = (text or "").strip()
        if SHORTEST <= len(secret) <= LONGEST:
            for form in _spellings(secret):
                alone = rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"
                found[form] = re.compile(alone) if len(form) < ALONE_BELOW else None
            found.update(dict.fromkeys(_in_base64(secret)))
    # It replaces the old table, because another thread may be reading that.
    _known = {form: found[form] for form in sorted(found, key=len, reverse=True)}


def register_environment(environ: Mapping[str, str]) -> None:
    """Registers the values of variables with secret names, and passwords in URLs."""
    for name, value in environ.items():
        if _OF_ENVIRONMENT.search(name):
            register_secret(value, *value.split(","))
        register_secret(password_of(value))


def known_secrets() -> Known:
    """Registered secrets, for a child process."""
    return _known


def know(known: Known) -> None:
    """Registers the secrets of another process."""
    global _known
    _known = {**known, **_known}


def password_of(url: str) -> str | None:
    """The password in a URL; None if there is none, or it is not a URL."""
    try:
        password = urlsplit(url).password if "://" in url else None
    except ValueError:
        return None
    return unquote(password) if password else None


def origin_of(url: str) -> str:
    """Scheme and host of a URL, which may be shown although its path may be secret."""
    scheme, found, rest = url.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}" if found and host else MARK


def is_secret_name(name: str) -> bool:
    """Whether a field with this name contains a secret."""
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
    """``text`` without registered secrets."""
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
    """``text`` in the encodings of URLs, JSON and Python."""
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
    """The base64 encodings of ``text`` inside a longer text, which depend on its position."""
    raw = text.encode()
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).decode()
        inner = coded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")
