"""Ids that sort by time, and the tags by which the broker recognises its leases."""

from __future__ import annotations

import hashlib
from datetime import datetime

from ulid import ULID
from ulid.constants import RANDOMNESS_LEN, TIMESTAMP_LEN

ENTROPY_BYTES = RANDOMNESS_LEN
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_ROOM_FOR_STEPS = len("-999-99")
_FEWEST_LETTERS = 9
"""Shortest digest: 45 bits. Among 100,000 reservations two collide with a probability of 0.01 %."""


def make_id(prefix: str, at: datetime, entropy: bytes) -> str:
    """``prefix-`` and a ULID in small letters: milliseconds of ``at``, then 80 random bits."""
    milliseconds = int(at.timestamp() * 1000).to_bytes(TIMESTAMP_LEN, "big")
    return f"{prefix}-{ULID(milliseconds + entropy[:ENTROPY_BYTES])}".lower()


def made_at(made_id: str) -> datetime | None:
    """When ``make_id`` made this id; None for any other text."""
    letters = made_id.rpartition("-")[2]
    try:
        found = ULID.from_str(letters)
        return found.datetime if str(found).lower() == letters else None
    except ValueError:
        return None


def make_tag(
    install_id: str, reservation_id: str, ordinal: int, attempt: int = 1, longest: int | None = None
) -> str:
    """The tag of one provider call: ``broker-<install>-<reservation>-<ordinal>-<attempt>``.

    ``longest`` is the number of characters that the provider keeps. If the tag of unit 999 at attempt 99
    would be longer, the tags of all units carry a digest of the reservation id. Raises ValueError if even
    the digest does not fit.
    """
    mine = f"broker-{install_id}-"
    if longest is not None and len(mine + reservation_id) + _ROOM_FOR_STEPS > longest:
        reservation_id = _short_name(reservation_id, longest - len(mine) - _ROOM_FOR_STEPS)
    return f"{mine}{reservation_id}-{ordinal}-{attempt}"


def stands_for(name: str, reservation_id: str) -> bool:
    """Whether ``name``, taken from a tag, is the id of this reservation or a digest of that id."""
    return name in (reservation_id, _short_name(reservation_id, max(len(name), _FEWEST_LETTERS)))


def _short_name(reservation_id: str, letters: int) -> str:
    """A digest of at most ``letters`` letters and digits."""
    if letters < _FEWEST_LETTERS:
        raise ValueError(
            f"a tag has room for {letters} characters of the reservation id, but needs {_FEWEST_LETTERS}"
        )
    number = int.from_bytes(hashlib.sha256(reservation_id.encode()).digest(), "big")
    digits = []
    for _ in range(min(letters, _LENGTH)):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def next_tag(tag: str) -> str:
    """The tag of the next attempt. An attempt needs a new tag: the old one may return a dead lease."""
    stem, attempt = tag.rsplit("-", 1)
    return f"{stem}-{int(attempt) + 1}"


def stem_of(tag: str) -> str:
    """The prefix that the tags of all units and attempts of one reservation share."""
    return tag.rsplit("-", 2)[0] + "-"


def reservation_of(tag: str, install_id: str) -> str:
    """The reservation id in one of our tags, or its digest in a short tag."""
    return tag.removeprefix(f"broker-{install_id}-").rsplit("-", 2)[0]


def is_ours(tag: str | None, install_id: str) -> bool:
    """Whether this installation made ``tag``."""
    return tag is not None and tag.startswith(f"broker-{install_id}-")
