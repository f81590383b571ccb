"""Damage to recorded payloads: what a parser must survive with rejected rows or ``PayloadUnreadable``."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.just(["x"]),
    st.just({"x": 1}),
)
NUMBERS = ("", "-1", "0", "0.0", "NaN", "inf", "-0", "1e400", "1e-400", "9" * 40, "1,5")
TEXTS = ("True", "null", "\x00", "é☃", " ", "x" * 300, "../..", '"', "''", "<a>", "\ud800")
DATES = ("2026-02-30T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00")
WORDS = st.sampled_from((*NUMBERS, *TEXTS, *DATES))
"""Words in place of one: numbers out of every scale, dates that are none, signs of the format itself."""
_TOKEN = re.compile(rb"[^,<>\r\n\t\"]+")
Damage = st.SearchStrategy[bytes]


def damages(body: bytes) -> Damage:
    """One damage: cut short, one byte changed, or (in JSON) one value replaced."""
    cut = st.integers(0, len(body)).map(lambda end: body[:end])
    flipped = st.tuples(st.integers(0, max(0, len(body) - 1)), st.integers(0, 255)).map(
        lambda pair: body[: pair[0]] + bytes([pair[1]]) + body[pair[0] + 1 :]
    )
    try:
        decoded = json.loads(body)
    except ValueError:
        return cut | flipped
    places = _places(decoded)
    rebuilt = st.tuples(st.integers(0, len(places) - 1), JUNK).map(
        lambda pair: json.dumps(_replaced(decoded, places[pair[0]], pair[1])).encode()
    )
    return rebuilt | cut | flipped


@cache
def many_damages(body: bytes) -> Damage:
    """Those, and values gone, said twice or exchanged for odd words; in zipped files the same within."""
    if body.startswith(b"PK"):
        return damages(body) | _inside(body)
    try:
        decoded = json.loads(body)
    except ValueError:
        return damages(body) | _words(body)
    places = _places(decoded)[1:]
    if not places:
        return damages(body)
    place = st.sampled_from(places)
    gone = place.map(lambda at: _dumped(_without(decoded, at)))
    worded = st.tuples(place, WORDS).map(lambda pair: _dumped(_replaced(decoded, *pair)))
    pairs = st.tuples(place, place)
    moved = pairs.map(lambda pair: _dumped(_replaced(decoded, pair[0], _at(decoded, pair[1]))))
    twice = st.tuples(place, JUNK, place, JUNK | WORDS).map(lambda found: _dumped(_twice(decoded, *found)))
    return st.one_of(damages(body), gone, worded, moved, twice)


def _words(body: bytes) -> Damage:
    """Text with one or two of its words exchanged."""
    spans = [match.span() for match in _TOKEN.finditer(body)]
    if not spans:
        return st.just(body)
    return st.lists(st.tuples(st.sampled_from(spans), WORDS), min_size=1, max_size=2).map(
        lambda found: _spelled(body, found)
    )


def _spelled(body: bytes, found: list[tuple[tuple[int, int], str]]) -> bytes:
    for (start, end), word in sorted(found, reverse=True):
        body = body[:start] + word.encode("utf-8", "surrogatepass") + body[end:]
    return body


def _inside(body: bytes) -> Damage:
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return st.sampled_from(sorted(files)).flatmap(
        lambda name: (damages(files[name]) | _words(files[name])).map(
            lambda damaged: _zipped({**files, name: damaged})
        )
    )


def _zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _places(value: Any) -> list[tuple[Any, ...]]:
    """Where values stand, the whole first."""
    return list(_walked(value, ()))


def _walked(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    for key, child in children:
        yield from _walked(child, (*path, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _replaced(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    key, rest = place[0], place[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _replaced(copy[key], rest, junk)
    return copy


def _without(value: Any, place: tuple[Any, ...]) -> Any:
    *parent, key = place
    inner = _at(value, tuple(parent))
    rest = (
        {name: child for name, child in inner.items() if name != key}
        if isinstance(inner, dict)
        else [child for number, child in enumerate(inner) if number != key]
    )
    return _replaced(value, tuple(parent), rest)


def _twice(value: Any, first: tuple[Any, ...], junk: Any, second: tuple[Any, ...], other: Any) -> Any:
    once = _replaced(value, first, junk)
    try:
        _at(once, second)
    except (KeyError, IndexError, TypeError):
        return once
    return _replaced(once, second, other)
