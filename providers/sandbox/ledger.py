"""The ledger: every purchase, how long it was held, and what it cost.

An entry's state follows from its times; nothing runs in the background.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from pydantic import TypeAdapter

from broker.domain.basics.money import MICRO, ZERO, format_usd
from providers.sandbox.store import Store

VOLUME = "volume"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def zulu(instant: datetime) -> str:
    """ISO 8601 in UTC with ``Z`` and whole seconds."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def zulu_ms(instant: datetime) -> str:
    """ISO 8601 in UTC with ``Z`` and milliseconds."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_of(text: object) -> datetime:
    """An ISO 8601 time in UTC; a time without a zone is taken as UTC. ValueError for anything else."""
    found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Tariff:
    """A price: USD per hour for the whole entry, in whole increments, plus an upfront part."""

    usd_per_hour: Decimal = ZERO
    increment_s: int = 1
    minimum_s: int = 0
    upfront_usd: Decimal = ZERO

    def billed_usd(self, held: timedelta) -> Decimal:
        """The cost of ``held`` so far, to the millionth of a dollar (an increment that has begun is owed
        whole)."""
        micros = max(held // _MICROSECOND, self.minimum_s * 1_000_000)
        increments = -(-micros // (self.increment_s * 1_000_000))
        running = self.usd_per_hour * increments * self.increment_s / 3600
        return (self.upfront_usd + running).quantize(MICRO, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Entry:
    """One purchase: ``nodes`` of ``sku``, from ``starts_at`` until the first of its ends.

    ``units`` is taken from the stock under ``stock_key``. ``released_at``: released by the customer.
    ``ends_at``: scheduled end. ``failed_at``: never came up, nothing is owed. ``refund_usd``: proceeds of a
    resale. ``detail`` belongs to the seller's protocol.
    """

    provider: str
    instance_id: str
    tag: str
    sku: str
    region: str
    zone: str
    tier: str
    nodes: int
    units: int
    stock_key: str
    created_at: datetime
    starts_at: datetime
    tariff: Tariff
    ends_at: datetime | None = None
    released_at: datetime | None = None
    failed_at: datetime | None = None
    refund_usd: Decimal = ZERO
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def over_at(self) -> datetime | None:
        """When it stops holding stock, as far as is known."""
        ends = [end for end in (self.ends_at, self.released_at, self.failed_at) if end is not None]
        return min(ends, default=None)

    def is_live(self, now: datetime) -> bool:
        """Whether it is still held or yet to start."""
        return self.over_at is None or self.over_at > now

    def failed(self, now: datetime) -> bool:
        """Whether it has failed for lack of capacity."""
        return self.failed_at is not None and self.failed_at <= now

    def billed_usd(self, now: datetime) -> Decimal:
        """The amount owed by ``now``."""
        if self.failed_at is not None:
            return ZERO
        until = min(now, self.over_at or now)
        held = max(until - self.starts_at, timedelta(0))
        started = now >= self.starts_at
        running = self.tariff if started else replace(self.tariff, usd_per_hour=ZERO)
        return running.billed_usd(held) - self.refund_usd

    def volume_left(self, volume_id: str, tariff: Tariff, **detail: Any) -> Entry:
        """The entry of a disk that outlives its machine, and is billed until it is deleted."""
        return replace(
            self,
            instance_id=volume_id,
            tag=f"{VOLUME} of {self.tag}",
            sku=VOLUME,
            units=0,
            starts_at=self.released_at or self.starts_at,
            ends_at=None,
            released_at=None,
            failed_at=None,
            tariff=tariff,
            refund_usd=ZERO,
            detail=detail,
        )

    @property
    def is_volume(self) -> bool:
        """Whether it is a disk without a machine."""
        return self.sku == VOLUME

    def with_detail(self, **changes: Any) -> Entry:
        """The entry with changes to its ``detail``."""
        return replace(self, detail={**self.detail, **changes})


_ENTRIES = TypeAdapter(Entry)
"""Reads and writes entries as JSON."""


class Ledger:
    """Reads and writes entries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, entry: Entry) -> Entry:
        """Stores a new entry, or the next version of one."""
        over_at = entry.over_at
        self._store.put_row(
            entry.provider,
            entry.instance_id,
            entry.stock_key,
            None if over_at is None else _to_us(over_at),
            _ENTRIES.dump_python(entry, mode="json"),
        )
        return entry

    def find(self, provider: str, instance_id: str) -> Entry | None:
        """One entry."""
        row = self._store.row(provider, instance_id)
        return None if row is None else _ENTRIES.validate_python(row)

    def entries(self, provider: str | None = None) -> list[Entry]:
        """Every entry, oldest first."""
        return [_ENTRIES.validate_python(row) for row in self._store.rows(provider)]

    def live(self, provider: str | None, now: datetime) -> list[Entry]:
        """Entries that hold stock now or will."""
        return [_ENTRIES.validate_python(row) for row in self._store.rows(provider, _to_us(now))]

    def held_units(self, provider: str | None, now: datetime) -> Counter[str]:
        """Units taken from each stock."""
        held: Counter[str] = Counter()
        for entry in self.live(provider, now):
            held[entry.stock_key] += entry.units
        return held


def ledger_row(entry: Entry, now: datetime) -> dict[str, Any]:
    """An entry as ``GET /_sandbox/ledger`` shows it."""
    over_at = entry.over_at
    return {
        "provider": entry.provider,
        "instance_id": entry.instance_id,
        "tag": entry.tag,
        "sku": entry.sku,
        "region": entry.region,
        "zone": entry.zone or None,
        "tier": entry.tier,
        "nodes": entry.nodes,
        "created_at": zulu(entry.created_at),
        "starts_at": zulu(entry.starts_at),
        "ends_at": None if entry.ends_at is None else zulu(entry.ends_at),
        "released_at": zulu(over_at) if over_at is not None and over_at <= now else None,
        "failed": entry.failed(now),
        "billed_usd": format_usd(entry.billed_usd(now)),
        "billed": _invoiced(entry, now),
        "also_known_as": list(entry.detail.get("also_known_as", [])),
    }


def _invoiced(entry: Entry, now: datetime) -> dict[str, str]:
    """The bill as the seller's invoice has it; who prices in another currency states it in ``detail``."""
    rate = Decimal(entry.detail.get("usd_per_unit", 1))
    amount = (entry.billed_usd(now) / rate).quantize(Decimal("0.0001"))
    return {"currency": entry.detail.get("currency", "USD"), "amount": str(amount)}


def _to_us(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND
