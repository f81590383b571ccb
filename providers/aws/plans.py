"""SageMaker training plans: whole windows of GPU capacity for HyperPod clusters or training jobs.

Units: ``UpfrontFee`` is a decimal string for all instances of the whole plan; times are seconds since 1970.
A plan holds one or more *reserved capacities* of one instance type (``ml.`` and the EC2 type's name: the
same machine, run by SageMaker), one after the other, often with days between them; AWS takes the instances
back 30 minutes before the end of each (SageMaker developer guide, training plans). It cannot be cancelled.

A plan is bought whole, but a window offer is sold by the segment. So the offer is the plan's longest
segment at the price of the whole plan; its other segments are paid with it, no plan of ours counts on them,
and a row names them. The search is not paged; when an offering goes stale is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic import Field, ValidationError

from broker.domain.basics.money import MICRO
from broker.domain.basics.window import Segment
from broker.domain.market.offer import (
    CancelRule,
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from providers.aws.menu import asked
from providers.aws.nodes import PROVIDER, billing, compliance, country_of, ml_sku_of, region_of
from providers.aws.sagemaker import instant_of, rows_of, seconds_of
from providers.payload import Name, PayloadModel, RowRejected, first_problem, require_price
from providers.schema import Rows

ACTION = "SearchTrainingPlanOfferings"
TEARDOWN_S = 30 * 60
MOST_NODES = 256
STARTS_AT_ONCE = "now"
_SOON = timedelta(hours=2)
_DAY_HOURS = 24
_MOST_USD = Decimal(10) ** 9


class _Capacity(PayloadModel):
    InstanceType: Name
    InstanceCount: int = Field(ge=1, le=MOST_NODES)
    AvailabilityZone: str | None = None
    UltraServerType: str | None = None
    StartTime: Any = None
    EndTime: Any = None


class _Offering(PayloadModel):
    TrainingPlanOfferingId: Name
    UpfrontFee: str | None = Field(default=None, max_length=256)
    CurrencyCode: str | None = None
    ReservedCapacityOfferings: tuple[_Capacity, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """One search request: a number of instances of an ``ml.`` type, for a duration, in one region."""

    region: str
    instance_type: str
    count: int
    duration_hours: int

    def __str__(self) -> str:
        return f"{self.region} {self.count} x {self.instance_type} for {self.duration_hours} h"

    def wish(self, target: str, within: tuple[datetime, datetime] | None = None) -> Mapping[str, Any]:
        """The request body; ``within`` bounds start and end."""
        times = {}
        if within is not None:
            times = {"StartTimeAfter": seconds_of(within[0]), "EndTimeBefore": seconds_of(within[1])}
        return {
            "InstanceType": self.instance_type,
            "InstanceCount": self.count,
            "DurationHours": self.duration_hours,
            "TargetResources": [target],
            **times,
        }


@dataclass(frozen=True, slots=True)
class PlanOffering:
    """One offering of an answer.

    ``segments`` are in order of time; ``zone`` is None where the answer has none.
    """

    offering_id: str
    instance_type: str
    zone: str | None
    region: str
    segments: tuple[Segment, ...]
    upfront_usd: Decimal

    @property
    def count(self) -> int:
        """Instances, the same in every segment."""
        return self.segments[0].nodes

    @property
    def main(self) -> Segment:
        """The longest segment; of equally long ones the first."""
        return max(self.segments, key=lambda segment: segment.hours)

    @property
    def hours(self) -> float:
        """Hours of all segments."""
        return sum(segment.hours for segment in self.segments)

    @property
    def usd_per_node(self) -> Decimal:
        """One instance's share of the fee for the whole plan."""
        return self.upfront_usd / self.count


def menu(search: Mapping[str, Any], regions: Iterable[str]) -> tuple[PlanSearch, ...]:
    """Every search of ``search.plans.menu`` in ``config/providers/aws.toml``, in ``regions`` alone."""
    return tuple(PlanSearch(*each) for each in asked(search.get("plans", {}), regions))


def most_calls(search: Mapping[str, Any]) -> int:
    """The largest number of search calls in one poll."""
    return int(search.get("plans", {}).get("max_calls", 0))


def whole_days_hours(hours: float) -> int:
    """The duration to search for in order to find a plan of ``hours`` hours: its whole days."""
    return max(1, int(hours // _DAY_HOURS)) * _DAY_HOURS


def parse_offerings(
    answer: Mapping[str, Any], region: str | None = None
) -> Iterator[PlanOffering | RejectedRow]:
    """The rows of one answer.

    ``region``: the region that was asked; None when it is only known from the zones.
    """
    for row in rows_of(answer, "TrainingPlanOfferings"):
        name = str(row.get("TrainingPlanOfferingId"))[:80] if isinstance(row, dict) else "offering"
        try:
            yield _offering(_Offering.model_validate(row), region)
        except RowRejected as error:
            yield RejectedRow(name, str(error))
        except ValidationError as error:
            yield RejectedRow(name, first_problem(error))


def parse_plans(found: Iterable[PlanOffering | RejectedRow], observed_at: datetime) -> OfferBatch:
    """Offers from any number of answers.

    Of one type, place, start and end, only the largest count is kept.
    """
    largest: dict[str, PlanOffering] = {}
    rejected: list[RejectedRow] = []
    for each in found:
        if isinstance(each, RejectedRow):
            rejected.append(each)
            continue
        key = offer_id(each, observed_at)
        if key not in largest or _rank(each) > _rank(largest[key]):
            largest[key] = each
    for key in sorted(largest):
        rejected += _paid_along(largest[key])
    offers = tuple(_offer(key, largest[key], observed_at) for key in sorted(largest))
    return OfferBatch(offers, tuple(dict.fromkeys(rejected)))


def offer_id(offering: PlanOffering, observed_at: datetime) -> str:
    """An id that stays the same while the window is on sale.

    A start within two hours is left out, since it moves.
    """
    main = offering.main
    start = STARTS_AT_ONCE if starts_at_once(main, observed_at) else f"{main.start:%Y%m%dT%H%MZ}"
    place = offering.zone or offering.region
    return f"aws/plan/{place}/{offering.instance_type}/{start}/{main.end:%Y%m%dT%H%MZ}"


def starts_at_once(segment: Segment, observed_at: datetime) -> bool:
    """Whether the start is so near that the next search will show a later one."""
    return segment.start < observed_at + _SOON


def _rank(offering: PlanOffering) -> tuple[int, Decimal, str]:
    return offering.count, -offering.upfront_usd, offering.offering_id


def _paid_along(offering: PlanOffering) -> Iterator[RejectedRow]:
    for segment in offering.segments:
        if segment != offering.main:
            words = f"{segment.start:%Y-%m-%d %H:%M} to {segment.end:%Y-%m-%d %H:%M} UTC"
            reason = f"{words} is sold with the plan's longest segment, not by itself"
            yield RejectedRow(offering.offering_id, reason)


def _offering(row: _Offering, region: str | None) -> PlanOffering:
    capacities = row.ReservedCapacityOfferings
    if not capacities:
        raise RowRejected("no reserved capacity")
    first = capacities[0]
    for each in capacities:
        if each.UltraServerType is not None:
            raise RowRejected(f"UltraServers ({each.UltraServerType}) are not read")
        if (each.InstanceType, each.InstanceCount) != (first.InstanceType, first.InstanceCount):
            raise RowRejected("reserved capacities of several types or counts")
    ml_sku_of(first.InstanceType)
    zone, place = _place({each.AvailabilityZone for each in capacities}, region)
    segments = tuple(sorted(_segment(each) for each in capacities))
    offering = PlanOffering(row.TrainingPlanOfferingId, first.InstanceType, zone, place, segments, _fee(row))
    require_price(_usd_per_node_hour(offering), "the fee spread over the longest segment")
    return offering


def _place(zones: set[str | None], region: str | None) -> tuple[str | None, str]:
    """Zone and region; a plan that spans several zones has no zone."""
    zone = next(iter(zones)) if len(zones) == 1 else None
    known = region or (region_of(zone) if zone else None)
    if known is None:
        raise RowRejected("AvailabilityZone is missing")
    if zone is not None and region_of(zone) != known:
        raise RowRejected(f"zone {zone} in an answer of {known}")
    return zone, known


def _segment(capacity: _Capacity) -> Segment:
    start = instant_of(capacity.StartTime, "StartTime")
    end = instant_of(capacity.EndTime, "EndTime")
    if end - start <= timedelta(seconds=TEARDOWN_S):
        raise RowRejected(f"nothing usable between {start:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M}")
    return Segment(start, end, capacity.InstanceCount)


def _fee(row: _Offering) -> Decimal:
    if row.CurrencyCode != "USD":
        raise RowRejected(f"currency is {row.CurrencyCode}, not USD")
    text = row.UpfrontFee or ""
    try:
        fee = Decimal(text)
    except InvalidOperation:
        raise RowRejected(f"UpfrontFee {text[:40]!r} is not a number") from None
    if not fee.is_finite() or not 0 < fee < _MOST_USD:
        raise RowRejected(f"UpfrontFee {text[:40]!r} is not a fee")
    return fee


def _usd_per_node_hour(offering: PlanOffering) -> Decimal:
    seconds = (offering.main.end - offering.main.start) // timedelta(seconds=1)
    return (offering.usd_per_node * 3600 / max(1, seconds)).quantize(MICRO)


def _offer(key: str, offering: PlanOffering, observed_at: datetime) -> Offer:
    main = offering.main
    return Offer(
        offer_id=key,
        provider=PROVIDER,
        sku=ml_sku_of(offering.instance_type),
        region=offering.region,
        zone=offering.zone,
        tier=Tier.WINDOW,
        price_usd_per_node_hour=_usd_per_node_hour(offering),
        upfront_usd=offering.upfront_usd,
        observed_at=observed_at,
        source=ACTION,
        native=NativePrice(offering.upfront_usd, "USD", "training plan"),
        country=country_of(offering.region),
        min_hours=main.hours,
        window=WindowTerms(
            kind=WindowKind.LISTED,
            segments=(main,),
            step_hours=float(_DAY_HOURS),
            durations_hours=(main.hours,),
            cancel=CancelRule.NEVER,
            teardown_s=TEARDOWN_S,
            billed=billing().window_billed("plan"),
        ),
        stock=Stock(StockLevel.UNKNOWN, offering.count),
        compliance=compliance(),
        reference={"plan_offering_id": offering.offering_id, "plan_hours": f"{offering.hours:g}"},
    )


ROWS = Rows(
    ACTION, "TrainingPlanOfferings[]", _Offering, at_times=("ReservedCapacityOfferings.UltraServerType",)
)
