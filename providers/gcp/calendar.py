"""Calendar mode: windows that ``advice.calendarMode`` recommends, bought as future reservations.

A question names one machine type, a count, a region and a range of starts. The answer names a zone, a start
and an end for that count, and the reasons why other zones have none. It holds no capacity and has no price;
the price list's calendar SKUs have it, and it is owed for the whole window. An answer does not repeat the
question. So type and count are encoded in the question's name, which the answer repeats.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from itertools import pairwise
from typing import Any

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
from broker.provider_facts import load_provider_facts
from providers.gcp.machines import PRICED_AS, Machine, region_of, zone_of
from providers.gcp.prices import PROVIDER, Mode, Rates
from providers.payload import PayloadModel, RowRejected, as_dict, as_list, collect, decode_json
from providers.rows import time_text
from providers.schema import Rows

SOURCE = "POST advice/calendarMode, GET skus"
MOST_NODES = 80
STEP_HOURS = 24.0
_DAY = timedelta(days=1)
_QUESTION = re.compile(r"(?P<machine>[a-z0-9-]{3,60})_n(?P<nodes>\d{1,3})")


class _OtherLocation(PayloadModel):
    status: str = ""
    details: str = ""


class _Recommendation(PayloadModel):
    location: str = ""
    startTime: datetime | None = None
    endTime: datetime | None = None
    otherLocations: Mapping[str, _OtherLocation] = {}


@dataclass(frozen=True, slots=True)
class Question:
    """A request for advice: nodes of a type in a region, with the fewest and the most days."""

    machine_type: str
    region: str
    nodes: int
    days: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.region} {self.nodes} x {self.machine_type} for {self.days[0]} to {self.days[1]} days"

    def body(self, at: datetime, search: Mapping[str, Any]) -> dict[str, Any]:
        """The request body at ``at``: starts on whole days, from the lead time to the end of the calendar."""
        earliest = _midnight_after(at + timedelta(hours=search["lead_hours"]))
        latest = max(earliest, at + timedelta(days=search["ahead_days"]))
        spec = {
            "deploymentType": "DENSE",
            "targetResources": {
                "specificSkuResources": {
                    "machineType": self.machine_type,
                    "instanceCount": str(self.nodes),
                }
            },
            "timeRangeSpec": {
                "startTimeNotEarlierThan": time_text(earliest),
                "startTimeNotLaterThan": time_text(latest),
                "minDuration": f"{self.days[0] * 86400}s",
                "maxDuration": f"{self.days[1] * 86400}s",
            },
        }
        return {"futureResourcesSpecs": {f"{self.machine_type}_n{self.nodes}": spec}}


def questions(search: Mapping[str, Any], regions: frozenset[str]) -> tuple[Question, ...]:
    """Every configured question in ``regions`` (empty: all).

    Types take turns, so that a limit on calls affects all of them alike.
    """
    columns = [
        [
            Question(entry["machine_type"], region, count, (least, most))
            for least, most in search["days"]
            for count in entry["counts"]
            for region in entry["regions"]
            if not regions or region in regions
        ]
        for entry in search["menu"]
    ]
    rounds = range(max((len(column) for column in columns), default=0))
    return tuple(column[i] for i in rounds for column in columns if i < len(column))


def _midnight_after(at: datetime) -> datetime:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == at else midnight + _DAY


def parse_advice(
    answers: Iterable[bytes], machines: Mapping[str, Machine], rates: Rates, observed_at: datetime
) -> OfferBatch:
    """Offers from any number of answers, one per zone and type; at each time, the largest count is kept."""
    found: defaultdict[tuple[str, str], list[Segment]] = defaultdict(list)
    rejected: list[RejectedRow] = []
    for question, row in _recommendations(answers):
        for item in _read(question, row, observed_at):
            if isinstance(item, RejectedRow):
                rejected.append(item)
            else:
                key, segment = item
                found[key].append(segment)
    rows = [(" ".join(key), (key, found[key])) for key in sorted(found)]
    batch = collect(rows, lambda row: (_offer(row[0], row[1], machines, rates, observed_at),))
    return OfferBatch(batch.offers, (*dict.fromkeys(rejected), *batch.rejected))


def _recommendations(answers: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    for answer in answers:
        envelope = as_dict(PROVIDER, decode_json(PROVIDER, answer), "an advice")
        for row in as_list(PROVIDER, envelope.get("recommendations", []), "recommendations"):
            per_spec = as_dict(PROVIDER, row, "a recommendation").get("recommendationsPerSpec", {})
            yield from as_dict(PROVIDER, per_spec, "recommendationsPerSpec").items()


def _read(
    question: str, row: Any, observed_at: datetime
) -> Iterator[tuple[tuple[str, str], Segment] | RejectedRow]:
    asked = _QUESTION.fullmatch(question)
    if asked is None or not 1 <= int(asked["nodes"]) <= MOST_NODES:
        yield RejectedRow(question[:80] or "advice", "the answer belongs to another question")
        return
    machine, nodes = asked["machine"], int(asked["nodes"])
    try:
        read = _Recommendation.model_validate(row)
        for scope, other in sorted(read.otherLocations.items()):
            if other.status != "RECOMMENDED":
                name = f"{zone_of(scope)} {nodes} x {machine}"
                yield RejectedRow(name, f"{other.status}: {other.details}".strip(": ")[:200] or "no reason")
        if read.location:
            zone = zone_of(read.location)
            region_of(zone)
            yield (zone, machine), _segment(read, nodes, observed_at)
    except (RowRejected, ValueError) as error:
        yield RejectedRow(f"{nodes} x {machine}", str(error).partition("\n")[0][:200])


def _segment(read: _Recommendation, nodes: int, observed_at: datetime) -> Segment:
    if read.startTime is None or read.endTime is None:
        raise RowRejected("the recommendation has no start or no end")
    if read.startTime.tzinfo is None or read.endTime.tzinfo is None:
        raise RowRejected("the times of the recommendation have no zone")
    if read.endTime <= max(read.startTime, observed_at):
        raise RowRejected("the window of the recommendation is empty or over")
    return Segment(read.startTime, read.endTime, nodes)


def highest_steps(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The largest count of any segment at each instant, as steps that do not overlap."""
    known = tuple(segments)
    edges = sorted({edge for segment in known for edge in (segment.start, segment.end)})
    steps: list[Segment] = []
    for start, end in pairwise(edges):
        nodes = max((s.nodes for s in known if s.start <= start and end <= s.end), default=0)
        if steps and steps[-1].end == start and steps[-1].nodes == nodes:
            steps[-1] = Segment(steps[-1].start, end, nodes)
        elif nodes:
            steps.append(Segment(start, end, nodes))
    return tuple(steps)


def priced_again(offer: Offer, machine: Machine, rates: Rates) -> Offer | None:
    """A window ``offer`` of ``machine`` at its price in ``rates``; None without one."""
    try:
        usd = machine.usd_per_hour(rates, Mode.CALENDAR, offer.region)
    except RowRejected:
        return None
    return replace(offer, price_usd_per_node_hour=usd, native=NativePrice(usd, "USD", PRICED_AS))


def _offer(
    key: tuple[str, str],
    segments: list[Segment],
    machines: Mapping[str, Machine],
    rates: Rates,
    observed_at: datetime,
) -> Offer:
    zone, machine_type = key
    facts = load_provider_facts(PROVIDER)
    machine, region = machines.get(machine_type), region_of(zone)
    if machine is None:
        raise RowRejected(f"machine type {machine_type!r} is not listed")
    usd = machine.usd_per_hour(rates, Mode.CALENDAR, region)
    steps = highest_steps(segments)
    start = steps[0].start
    return Offer(
        offer_id=f"{PROVIDER}/calendar/{zone}/{machine_type}",
        provider=PROVIDER,
        sku=machine.sku,
        region=region,
        zone=zone,
        country=facts.country_of(region),
        tier=Tier.WINDOW,
        price_usd_per_node_hour=usd,
        observed_at=observed_at,
        source=SOURCE,
        native=NativePrice(usd, "USD", PRICED_AS),
        min_hours=STEP_HOURS,
        billing_increment_s=facts.billed.increment_s,
        window=WindowTerms(
            kind=WindowKind.SLOTS,
            segments=steps,
            anchor_utc=time(start.hour, start.minute),
            step_hours=STEP_HOURS,
            lead_hours=float(facts.search["calendar"]["lead_hours"]),
            cancel=CancelRule.UNTIL,
            billed=facts.billed.window_billed("calendar"),
        ),
        stock=Stock(StockLevel.UNKNOWN, max(step.nodes for step in steps)),
        compliance=facts.compliance,
        reference={"zone": zone, "machine_type": machine_type},
    )


ROWS = Rows(
    "POST regions/{region}/advice/calendarMode", "recommendations[].recommendationsPerSpec.*", _Recommendation
)
