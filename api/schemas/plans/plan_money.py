"""Spend lines of a plan and copies of data as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base.parts import JsonPart, Money
from api.schemas.base.times import Instant, format_time
from broker.domain.basics.money import format_usd
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import SpendKind, SpendLine
from broker.domain.planning.transfer import Transfer, TransferKind

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SpendLineForm(JsonPart):
    """Money of one workload, provider and tier in one part of a day.

    ``kind`` and ``billed_by`` are additions of ours: data that leaves ``billed_by`` for ``provider``.
    """

    start: Instant
    end: Instant
    workload: str
    provider: str
    tier: Tier
    usd: Money
    kind: SpendKind = SpendKind.CAPACITY
    billed_by: str | None = None

    def to_line(self) -> SpendLine:
        """The domain's spend line."""
        return SpendLine(
            self.start.astimezone(UTC),
            self.end.astimezone(UTC),
            self.workload,
            self.provider,
            self.tier,
            self.usd,
            self.kind,
            self.billed_by,
        )


class TransferForm(JsonPart):
    """Data that leaves a provider for a placement; in its ``cost_usd``."""

    what: TransferKind
    gb: NotNegative
    provider: str
    region: str
    usd: Money
    hours: NotNegative

    def to_transfer(self) -> Transfer:
        """The domain's transfer."""
        return Transfer(self.what, self.gb, self.provider, self.region, self.usd, self.hours)


def transfers_to_document(transfers: Iterable[Transfer]) -> list[dict[str, Any]]:
    """The JSON form of what is copied."""
    return [
        {
            "what": str(one.what),
            "gb": one.gb,
            "provider": one.provider,
            "region": one.region,
            "usd": format_usd(one.usd),
            "hours": one.hours,
        }
        for one in transfers
    ]


def spend_line_to_document(line: SpendLine) -> dict[str, Any]:
    """The JSON form of a line of spend."""
    return {
        "start": format_time(line.start),
        "end": format_time(line.end),
        "workload": line.workload,
        "provider": line.provider,
        "tier": str(line.tier),
        "usd": format_usd(line.usd),
        "kind": str(line.kind),
        "billed_by": line.billed_by,
    }
