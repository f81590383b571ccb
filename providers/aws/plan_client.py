"""Buys and lists SageMaker training plans.

The plan's name is the order's tag and serves as idempotency token: a second ``CreateTrainingPlan`` of the
same name creates nothing and is refused, and the existing plan is then the answer. Lists do not show
resource tags, so a plan is found by its name; the tag is set too, for the bill.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import Field

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
)
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch, RejectedRow
from broker.together import all_or_none
from providers.aws import plans
from providers.aws.ec2 import CallBudget
from providers.aws.errors import CallRefused, NameTaken
from providers.aws.nodes import PROVIDER
from providers.aws.query import TAG_KEY
from providers.aws.reservations import console
from providers.aws.sagemaker import SageMaker, instant_of
from providers.http import Operation
from providers.payload import Name, PayloadModel, RowRejected, as_payload

NOT_ASKED = "none"
"""The value of the option for an account that buys no plans."""
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}")
_LONGEST_NAME = 64
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:training-plan/(?P<name>.+)")
_MOST_PAGES = 100
_PAGE_ROWS = 100
_MARGIN = timedelta(minutes=1)
"""Margin around the search's bounds, which are "after" and "before".

AWS does not say whether the bound itself counts.
"""
SLIP = timedelta(minutes=15)
"""How far a plan's start may have moved since it was offered, if it starts at once."""

STATES: Mapping[str, LeaseState] = {
    "Pending": LeaseState.PROVISIONING,
    "Scheduled": LeaseState.SCHEDULED,
    "Active": LeaseState.ACTIVE,
    "Expired": LeaseState.ENDED,
    "Failed": LeaseState.FAILED,
}


class _Capacity(PayloadModel):
    InstanceType: str = ""
    TotalInstanceCount: int = Field(default=0, ge=0, le=100_000)


class _Plan(PayloadModel):
    TrainingPlanArn: Name
    TrainingPlanName: Name
    Status: Name
    StatusMessage: str | None = None
    StartTime: Any = None
    EndTime: Any = None
    TotalInstanceCount: int | None = Field(default=None, ge=0, le=100_000)
    ReservedCapacitySummaries: tuple[_Capacity, ...] = ()


class TrainingPlanClient:
    """Training plans of one account for one kind of resource (``hyperpod-cluster``, ``training-job`` …)."""

    def __init__(self, sagemaker: SageMaker, target: str, search: Mapping[str, Any]) -> None:
        self._sagemaker, self._target, self._search = sagemaker, target, search

    async def list_offers(self, regions: Sequence[str], observed_at: datetime) -> OfferBatch:
        """The offerings of all configured searches; a refused search is reported as a rejected row."""
        if self._target == NOT_ASKED:
            return OfferBatch(())
        budget = CallBudget(plans.most_calls(self._search))
        searches = plans.menu(self._search, regions)
        answers = await all_or_none(self._find(search, budget) for search in searches)
        return plans.parse_plans([found for answer in answers for found in answer], observed_at)

    async def _find(
        self, search: plans.PlanSearch, budget: CallBudget
    ) -> tuple[plans.PlanOffering | RejectedRow, ...]:
        if not budget.take():
            return (RejectedRow(str(search), "not requested: the call limit of a poll was reached"),)
        wish = search.wish(self._target)
        try:
            answer = await self._sagemaker.call(search.region, plans.ACTION, wish, Operation.OFFERS)
        except CallRefused as error:
            return (RejectedRow(str(search), str(error)),)
        return tuple(plans.parse_offerings(answer, search.region))

    async def offering_to_buy(self, order: Order, segment: Segment) -> plans.PlanOffering:
        """Searches again for the cheapest offering of exactly this window and node count."""
        hours = float(order.offer.reference.get("plan_hours", segment.hours))
        search = plans.PlanSearch(
            order.offer.region, order.offer.sku.name, order.nodes, plans.whole_days_hours(hours)
        )
        slip = SLIP if plans.starts_at_once(segment, order.offer.observed_at) else timedelta(0)
        is_whole = hours <= segment.hours
        within = (segment.start - _MARGIN, segment.end + _MARGIN) if is_whole else None
        wish = search.wish(self._target, within)
        answer = await self._sagemaker.call(search.region, plans.ACTION, wish, Operation.LEASES)
        fitting = [
            found
            for found in plans.parse_offerings(answer, search.region)
            if isinstance(found, plans.PlanOffering) and _fits(found, order, segment, slip)
        ]
        if not fitting:
            words = f"no training plan of {search} from {segment.start:%Y-%m-%d %H:%M}Z"
            raise InsufficientCapacity(PROVIDER, words)
        return min(fitting, key=lambda found: (found.upfront_usd, found.offering_id))

    async def buy(self, order: Order, offering: plans.PlanOffering) -> Lease:
        """Creates the plan; if a plan of this name exists already, that one is the answer."""
        if len(order.tag) > _LONGEST_NAME or not _NAME.fullmatch(order.tag):
            raise OrderRejected(PROVIDER, f"tag {order.tag[:80]!r} cannot be the name of a training plan")
        wish = {
            "TrainingPlanName": order.tag,
            "TrainingPlanOfferingId": offering.offering_id,
            "Tags": [{"Key": TAG_KEY, "Value": order.tag}],
        }
        region = order.offer.region
        try:
            answer = await self._sagemaker.call(
                region, "CreateTrainingPlan", wish, Operation.ORDER, repeatable=False
            )
        except NameTaken:
            return await self._standing(order.tag, region)
        reference = answer.get("TrainingPlanArn")
        if not isinstance(reference, str) or not _ARN.fullmatch(reference):
            raise OutcomeUnknown(PROVIDER, "CreateTrainingPlan answered without a plan")
        return Lease(
            provider=PROVIDER,
            reference=reference,
            state=LeaseState.PROVISIONING,
            tag=order.tag,
            nodes=offering.count,
            sku=offering.instance_type,
            region=region,
            window=offering.main.window,
            detail="training plan, made",
        )

    async def _standing(self, name: str, region: str) -> Lease:
        try:
            return await self.find(name, region)
        except ProviderError as error:
            words = f"a training plan {name} stands already and cannot be read: {error}"
            raise OutcomeUnknown(PROVIDER, words) from error

    async def find(self, name_or_arn: str, region: str) -> Lease:
        """One plan; raises LeaseNotFound."""
        wish = {"TrainingPlanName": name_or_arn}
        answer = await self._sagemaker.call(region, "DescribeTrainingPlan", wish, Operation.LEASES)
        return lease_of(answer, region)

    async def list_leases(self, region: str) -> tuple[Lease, ...]:
        """Every plan of a region, including long expired ones.

        PayloadUnreadable when the list does not end.
        """
        if self._target == NOT_ASKED:
            return ()
        found: list[Lease] = []
        wish: dict[str, Any] = {"MaxResults": _PAGE_ROWS}
        for _ in range(_MOST_PAGES):
            answer = await self._sagemaker.call(
                region, "ListTrainingPlans", wish, Operation.LEASES, rows="TrainingPlanSummaries"
            )
            found += (lease_of(row, region) for row in answer["TrainingPlanSummaries"])
            token = answer.get("NextToken")
            if not token:
                return tuple(found)
            wish = {**wish, "NextToken": token}
        raise PayloadUnreadable(PROVIDER, f"ListTrainingPlans in {region} does not end")


def is_plan(reference: str) -> bool:
    """Whether a lease's reference names a training plan."""
    return _ARN.fullmatch(reference) is not None


def lease_of(row: Any, region: str) -> Lease:
    """A plan as a lease; PayloadUnreadable when its identity cannot be read."""
    plan = as_payload(PROVIDER, row, _Plan)
    counts = [each.TotalInstanceCount for each in plan.ReservedCapacitySummaries]
    types = [each.InstanceType for each in plan.ReservedCapacitySummaries]
    return Lease(
        provider=PROVIDER,
        reference=plan.TrainingPlanArn,
        state=STATES.get(plan.Status, LeaseState.UNKNOWN),
        tag=plan.TrainingPlanName,
        nodes=max(counts, default=plan.TotalInstanceCount or 1) or 1,
        sku=types[0] if types else "",
        region=region,
        window=_window(plan),
        access_note=(
            "it holds capacity of SageMaker in your AWS account: name it in a HyperPod cluster or a training"
            f" job ({console(region, 'sagemaker')}#/training-plans)"
        ),
        detail=" ".join(word for word in ("training plan", plan.Status, plan.StatusMessage) if word)[:300],
    )


def _window(plan: _Plan) -> Window | None:
    """From the first start to the last end, gaps included; None while the answer has neither."""
    try:
        start, end = instant_of(plan.StartTime, "StartTime"), instant_of(plan.EndTime, "EndTime")
    except RowRejected:
        return None
    return Window(start, end) if start < end else None


def _fits(found: plans.PlanOffering, order: Order, segment: Segment, slip: timedelta) -> bool:
    return (
        found.zone == order.offer.zone
        and found.instance_type == order.offer.sku.name
        and found.count == order.nodes
        and found.main.end == segment.end
        and segment.start <= found.main.start <= segment.start + slip
    )
