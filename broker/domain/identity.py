"""Names that the broker makes: ids that sort by time, and the tags that its leases carry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

ENTROPY_BYTES = 10
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_id(prefix: str, at: datetime, entropy: bytes) -> str:
    """``prefix-`` and 26 characters: milliseconds of ``at``, then 80 random bits (the ULID layout)."""
    number = int(at.timestamp() * 1000) << 80 | int.from_bytes(entropy[:ENTROPY_BYTES], "big")
    letters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return f"{prefix}-{''.join(reversed(letters))}"


def made_at(made_id: str) -> datetime | None:
    """When ``make_id`` made it; None for what it did not make."""
    letters = made_id.rpartition("-")[2]
    if len(letters) != _LENGTH or not set(letters) <= set(_ALPHABET):
        return None
    number = 0
    for letter in letters:
        number = number * len(_ALPHABET) + _ALPHABET.index(letter)
    try:
        return _EPOCH + timedelta(milliseconds=number >> 80)
    except OverflowError:
        return None


def make_tag(install_id: str, reservation_id: str, ordinal: int, attempt: int = 1) -> str:
    """The tag of one provider call: ``broker-<install>-<reservation>-<ordinal>-<attempt>``."""
    return f"broker-{install_id}-{reservation_id}-{ordinal}-{attempt}"


def next_tag(tag: str) -> str:
    """The tag of the next attempt at what ``tag`` was for; a used token may give a dead lease back."""
    stem, attempt = tag.rsplit("-", 1)
    return f"{stem}-{int(attempt) + 1}"


def reservation_of(tag: str, install_id: str) -> str:
    """The id of the reservation that a tag of ours was made for."""
    return tag.removeprefix(f"broker-{install_id}-").rsplit("-", 2)[0]


def is_ours(tag: str | None, install_id: str) -> bool:
    """Whether this installation made ``tag``."""
    return tag is not None and tag.startswith(f"broker-{install_id}-")
