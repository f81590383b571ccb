"""A view tells every field of the dataclasses that it flattens, or one list here says why it does not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from types import CodeType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

import api
from api.cli.plans.backtest_view import Compared, _policy, compared_to_document, sums_of
from api.export.endpoints import Endpoint, EndpointForm, EndpointsForm
from api.reserved_fleets import _FleetWithMoney
from api.schemas.accounts.calendars import CalendarForm, NewCalendar
from api.schemas.accounts.keys import CallerForm, KeyForm, NewKey
from api.schemas.accounts.ssh_keys import NewSshKey, SshKeyForm
from api.schemas.accounts.webhooks import (
    DeliveryForm,
    EventDataForm,
    EventForm,
    EventMoneyForm,
    EventObjectForm,
    NewWebhook,
    TestDeliveryForm,
    WebhookForm,
)
from api.schemas.base.forms import From, PageForm
from api.schemas.base.parts import JsonPart
from api.schemas.base.problem import FieldProblemForm, Problem
from api.schemas.finance.economics import ChangesForm, IntervalForm, MonthCloseForm, UnitsForm, _Asked, _Bands
from api.schemas.finance.exports import ExportForm
from api.schemas.finance.finance import (
    ApprovalForm,
    BudgetEffectForm,
    BudgetForm,
    LaterPeriodForm,
    NewBudget,
    Word,
)
from api.schemas.finance.spend import CSV_COLUMNS, ITEM, ManifestForm, SpendForm, SpendItem, spend_csv_rows
from api.schemas.holding.reconciliation import ProspectsForm, UnreadForm
from api.schemas.holding.reservation import (
    AccessForm,
    ExtensionQuoteForm,
    ExtensionRequest,
    FleetForm,
    HoldQuoteForm,
    OrderQuoteForm,
    PlanQuoteForm,
    PlanReleaseForm,
    PlanReleaseRequest,
    PlanReservationRequest,
    QuotedExtension,
    QuotedHold,
    QuotedOrder,
    QuotedPlan,
    RefusalForm,
    ReservationForm,
    ReservationRequest,
    ReservationsForm,
    SizeForm,
    StartupRunForm,
    UnitForm,
)
from api.schemas.imports.answers import StartingPointQuestion
from api.schemas.market import history
from api.schemas.market.contract_prices import _Line
from api.schemas.market.gpus import GpuForm, GpuOnSale
from api.schemas.market.market import Market, MarketForm, MarketHead, market_to_document
from api.schemas.market.models import KnownModel, ModelForm
from api.schemas.market.networks import NetworkRequest
from api.schemas.plans.comparison import AcceptedComparisonForm
from api.schemas.plans.division import _divided, division_to_document
from api.schemas.plans.plan import ConfidencePricesForm, EstimateForm, _metrics
from api.schemas.plans.plan_record import (
    AcceptedPlanForm,
    IntentionForm,
    NodesHeldForm,
    PlanHoldingForm,
    StandingForm,
    _Shown,
)
from api.schemas.plans.reoptimization import RunningForm
from api.schemas.plans.simulation import PlanCheckForm, SimulationRequest
from api.schemas.workloads import what_if
from api.schemas.workloads.document_form import WorkloadPart
from broker.domain.basics.account import ApiKey, Caller
from broker.domain.basics.errors import FieldProblem
from broker.domain.basics.estimate import Estimate
from broker.domain.basics.export_jobs import ExportJob
from broker.domain.basics.machines import Machine, SshKey
from broker.domain.basics.webhook import Delivery, Webhook
from broker.domain.holding.plan_holding import NodesHeld, PlanHolding
from broker.domain.holding.reservation import Reservation, Unit
from broker.domain.holding.startup_run import StartupRun
from broker.domain.market.market import PricePoint
from broker.domain.planning.lanes import DividedService, Division
from broker.domain.spend.budget_effects import BudgetEffect
from broker.domain.spend.budgets import BudgetStatus
from broker.domain.spend.month_close import MonthClose
from broker.domain.spend.spend import SpendRow
from broker.ports.planning import PlanCheck
from broker.services.holding.reserving_requests import PartRelease
from broker.services.moving.all_knowing import AllKnowing
from broker.services.moving.backtest import Outcome
from broker.services.spend.approvals import Approval
from broker.services.spend.economics import Economics
from tests.fakes import market_csv

VIEWS: Mapping[type[BaseModel], type] = {
    AccessForm: Machine,
    EndpointForm: Endpoint,
    PlanReleaseForm: PartRelease,
    ApprovalForm: Approval,
    BudgetEffectForm: BudgetEffect,
    BudgetForm: BudgetStatus,
    CallerForm: Caller,
    ChangesForm: _Asked,
    DeliveryForm: Delivery,
    ExportForm: ExportJob,
    FieldProblemForm: FieldProblem,
    FleetForm: _FleetWithMoney,
    ExtensionQuoteForm: QuotedExtension,
    HoldQuoteForm: QuotedHold,
    PlanCheckForm: PlanCheck,
    GpuForm: GpuOnSale,
    ModelForm: KnownModel,
    IntervalForm: _Bands,
    KeyForm: ApiKey,
    MonthCloseForm: MonthClose,
    OrderQuoteForm: QuotedOrder,
    PlanQuoteForm: QuotedPlan,
    SshKeyForm: SshKey,
    UnitForm: Unit,
    StartupRunForm: StartupRun,
    ReservationForm: Reservation,
    StandingForm: _Shown,
    PlanHoldingForm: PlanHolding,
    NodesHeldForm: NodesHeld,
    UnitsForm: Economics,
    WebhookForm: Webhook,
}
"""Each view, and whose fields it shows."""
WRITERS: Mapping[Any, tuple[Callable[..., Any], ...]] = {
    AllKnowing: (compared_to_document,),
    Compared: (compared_to_document,),
    DividedService: (_divided,),
    Division: (division_to_document,),
    Estimate: (_metrics,),
    Market: (market_to_document,),
    Outcome: (compared_to_document, _policy, sums_of),
    PricePoint: (market_csv._row,),
    SpendItem: (spend_csv_rows,),
    SpendRow: (spend_csv_rows,),
}
"""Each dataclass that a document written out by hand holds, and the functions that write it."""

OFFER = "the offer stands under /v1/offers by its offer_id"
HOW_MADE = "how a plan is made is no part of where it stands"
MEASURED = "the performance core alone uses it"
SOURCES = "config/gpus.csv has the sources"
UNIT_MONEY = "told of the whole reservation: its price, what it owes and what it was credited"
UNIT_TIMES = "told of the whole reservation: start, active_at, end, released_at"
NOT_TOLD: Mapping[str, str] = {
    "AccessForm.Machine.ready_at": "EndpointForm tells it, as since",
    "AccessForm.Access.is_entered": "a machine that nobody enters is not told",
    "AccessForm.Access.server_port": "EndpointForm tells it, as port",
    "AccessForm.Access.ssh_host_key": "told as expected_host_key has it, also as first seen",
    "ApprovalForm.PlanRecord": "plan_id names the plan, which has a document of its own",
    "BudgetEffectForm.BudgetEffect.hides_others": "limit_usd and counted_usd are null where it does",
    "BudgetEffectForm.BudgetEffect.hides_period": "no plan adds to a period beyond its own end",
    "BudgetForm.Budget.horizon": "it is the window",
    "BudgetForm.Budget.thresholds": "each is told with its status",
    "CallerForm.Caller.claim": "it is the request's own header",
    "CallerForm.Caller.owner": "the document of the key tells whose it is",
    "ChangesForm.PlanChanges.changes": "they are the first fields",
    "DeliveryForm.Delivery.body": "what was sent is the receiver's",
    "DeliveryForm.Delivery.event_id": "message_id is made of it",
    "DeliveryForm.Delivery.webhook_id": "it stands in the webhook's document",
    "ExportForm.ExportJob.media_type": "the file has it as its header",
    "ExportForm.ExportJob.team": "the team that asks sees its own alone",
    "FleetForm.Offer": OFFER,
    "FleetForm.ReservedFleet.promises": "counted in promises",
    "FleetForm.Reservation": "reservation_ids name them, and each has a document of its own",
    "FleetForm.Sku": OFFER,
    "GpuForm.GpuSpec.matmul_best_bf16_tflops": MEASURED,
    "GpuForm.GpuSpec.matmul_best_fp8_tflops": MEASURED,
    "GpuForm.GpuSpec.class_source": SOURCES,
    "GpuForm.GpuSpec.source": SOURCES,
    "GpuForm.GpuSpec.status": SOURCES,
    "KeyForm.ApiKey.sha256": "a hash of the secret",
    "ModelForm.ModelShape": "config/models.csv has the sizes of layers, with their sources",
    "MonthCloseForm.ClosedMonth.month": "it is told as YYYY-MM",
    "OrderQuoteForm.Intent.placement": "an order of one offer is of no plan",
    "OrderQuoteForm.Intent.requested": "the caller asked for it",
    "OrderQuoteForm.Intent.workload": "the caller named it",
    "OrderQuoteForm.Offer": OFFER,
    "ExtensionQuoteForm.Reservation": "the reservation has a document of its own",
    "PlanCheckForm.Plan": "the plan has a document of its own",
    "HoldQuoteForm.Reservation": "the reservation has a document of its own",
    "PlanQuoteForm.Plan": "the plan has a document of its own",
    "ReservationForm.MachineSetup.is_engine": "the workload of the plan says it",
    "ReservationForm.MachineSetup.keys": "ssh_keys, as names and fingerprints",
    "ReservationForm.MachineSetup.left_keys": "ssh_keys_left_out, as names and fingerprints",
    "ReservationForm.MachineSetup.served": "EndpointForm tells what it leads to",
    "ReservationForm.MachineSetup.startup": "what was asked for, with values of variables",
    "ReservationForm.Offer": OFFER,
    "ReservationForm.Reservation.requested_by": "the history of the reservation names who",
    "ReservationForm.Reservation.version": "guards writes of the store",
    "ReservationForm.Sku": OFFER,
    "ReservationForm.WindowUse.billed": OFFER,
    "ReservationForm.WindowUse.bought": "start and end",
    "ReservationForm.WindowUse.usable": "told of the reservation, which knows what was granted",
    "ReservationForm.WindowUse.wanted": "requested",
    "StandingForm.PlanRecord.created_at": "beside it in the plan's document",
    "StandingForm.PlanRecord.document": "beside it in the plan's document, as workloads",
    "StandingForm.PlanRecord.market_sha256": "it only tells whether a continued plan has the same market",
    "StandingForm.PlanRecord.options": HOW_MADE,
    "StandingForm.PlanRecord.plan_id": "beside it in the plan's document",
    "StandingForm.PlanRecord.requested_by": "the history of the plan names who",
    "StandingForm.PlanRecord.reserved_at": "standing follows from it",
    "StandingForm.PlanRecord.team": "beside it in the plan's document",
    "StandingForm.PlanRecord.version": "guards writes of the store",
    "StandingForm.Variant.position": "the comparison has its plans in this order",
    "WebhookForm.Webhook.created_by": "the history of the webhook names who",
    "WebhookForm.Webhook.secret": "it is in the answer that makes the webhook alone",
    "StartupRunForm.StartupRun.tries": "the wait for the next try counts them",
    "UnitForm.Unit.tag": "the broker's own name for an order",
    "UnitForm.Unit.price_usd_per_node_hour": UNIT_MONEY,
    "UnitForm.Unit.paid_usd": UNIT_MONEY,
    "UnitForm.Unit.credit_usd": UNIT_MONEY,
    "UnitForm.Unit.is_price_confirmed": UNIT_MONEY,
    "UnitForm.Unit.ordered_at": UNIT_TIMES,
    "UnitForm.Unit.gone_at": UNIT_TIMES,
    "UnitForm.Unit.began_at": UNIT_TIMES,
    "UnitForm.Unit.leaving_at": UNIT_TIMES,
    "UnitForm.Unit.seen_at": UNIT_TIMES,
}
"""What a view does not tell, a field or all else of a class, and why."""

ENVELOPES = {
    AcceptedComparisonForm, AcceptedPlanForm, CalendarForm, ConfidencePricesForm, ManifestForm, MarketForm,
    MarketHead, PageForm, Problem, ProspectsForm, RefusalForm, ReservationsForm, RunningForm, SizeForm,
    SpendForm, TestDeliveryForm, UnreadForm,
}  # fmt: skip
"""Lists of what has a form or view, and pairs of words: they flatten no dataclass."""
REQUESTS = {
    ExtensionRequest, IntentionForm, NetworkRequest, NewBudget, NewCalendar, NewKey, NewSshKey, NewWebhook,
    PlanReleaseRequest, PlanReservationRequest, ReservationRequest, SimulationRequest, StartingPointQuestion,
    Word,
    _Line, what_if.QuestionPart,
}  # fmt: skip
ELSEWHERE = {
    EndpointsForm: "the envelope of EndpointForm",
    EstimateForm: "written by _metrics",
    JsonPart: "the base of forms",
    LaterPeriodForm: "the figures of a budget in a later period; BudgetForm tells the rest",
    **dict.fromkeys(
        (EventDataForm, EventForm, EventMoneyForm, EventObjectForm), "written where webhooks are delivered"
    ),
}


def models() -> Iterator[type[BaseModel]]:
    """Every pydantic model that a module of the API defines, but those of workloads documents, and those of
    tools of assistants, which tell chosen figures."""
    for found in pkgutil.walk_packages(api.__path__, "api."):
        if found.name.startswith("api.mcp"):
            continue
        for one in vars(importlib.import_module(found.name)).values():
            own = inspect.isclass(one) and one.__module__ == found.name
            if own and issubclass(one, BaseModel) and not issubclass(one, WorkloadPart):
                yield one


def test_every_model_of_the_api_is_a_view_or_flattens_nothing() -> None:
    known: set[type] = {*VIEWS, *ENVELOPES, *REQUESTS, *ELSEWHERE}
    strange = {one for one in models() if known.isdisjoint(one.__mro__)}
    assert {one.__name__ for one in strange} == set()


def untold_by_views() -> Iterator[str]:
    for view, whole in VIEWS.items():
        for cls, names in told_by(view, whole).items():
            if f"{view.__name__}.{cls.__name__}" in NOT_TOLD:
                yield f"{view.__name__}.{cls.__name__}"
            else:
                yield from (f"{view.__name__}.{cls.__name__}.{name}" for name in missing(cls, names))


def untold_by_writers() -> Iterator[str]:
    for cls, writers in WRITERS.items():
        names = set().union(*(named_in(one) for one in writers))
        yield from (f"{cls.__name__}.{name}" for name in missing(cls, names))


def missing(cls: type, names: Collection[str]) -> set[str]:
    return {one.name for one in fields(cls)} - set(names)


def test_every_field_is_told_or_one_list_says_why_not() -> None:
    untold = {*untold_by_views(), *untold_by_writers()}
    assert untold - set(NOT_TOLD) == set()
    assert set(NOT_TOLD) - untold == set()


def test_a_new_field_of_a_flattened_dataclass_is_missed() -> None:
    more = make_dataclass("More", [("carbon_g", float, 0.0)], bases=(BudgetStatus,), frozen=True)
    told = told_by(BudgetForm, more)[more]
    assert missing(more, told) == {"carbon_g"}
    longer = make_dataclass("Longer", [("carbon_g", float, 0.0)], bases=(Division,), frozen=True)
    assert missing(longer, named_in(division_to_document)) == {"carbon_g"}


def test_files_have_the_columns_of_their_rows() -> None:
    assert {entry.name for entry in ITEM.entries} <= set(CSV_COLUMNS)
    assert {one.name for one in fields(PricePoint)} == set(history.COLUMNS)


def told_by(view: type[BaseModel], whole: type) -> dict[type, set[str]]:
    """The fields that a view's paths, properties and functions read, by the dataclass that has them."""
    read: defaultdict[type, set[str]] = defaultdict(set)
    read[whole] = set()
    for name, field in view.model_fields.items():
        source = next((one.source for one in field.metadata if isinstance(one, From)), name)
        if callable(source):
            read[whole] |= named_in(source)
            continue
        at: Any = whole
        for step in source.replace("?", "").split("."):
            read[at] |= {step} | named_in(getattr(at, step, None))
            at = type_of(at, step)
    return {cls: names for cls, names in read.items() if is_dataclass(cls)}


def named_in(told: Any) -> set[str]:
    """Names of attributes, and words, in the code of a property or function."""
    told = told.fget if isinstance(told, property) else told
    return set(words_of(told.__code__)) if inspect.isfunction(told) else set()


def words_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from words_of(one)
        elif isinstance(one, tuple):  # names that a loop takes one after the other
            yield from (word for word in one if isinstance(word, str))


def type_of(cls: type, name: str) -> Any:
    """The class of a field or property, without None."""
    own = getattr(cls, name, None)
    hints = get_type_hints(own.fget if isinstance(own, property) else cls)
    hint = hints["return" if isinstance(own, property) else name]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = {one for one in get_args(hint) if one is not NoneType}
    return hint.__constraints__[0] if isinstance(hint, TypeVar) else get_origin(hint) or hint
