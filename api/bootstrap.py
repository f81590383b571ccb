"""The wiring: providers, optimizer, store and use cases are joined into a product here only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import cast

from api.background import Background, Readiness
from api.clocks import SystemClock
from api.export.engine_start import engine_start
from api.export.jobs import ExportJobs
from api.identity.configured import people_of, provider_of
from api.identity.openid import OpenIdProvider
from api.machine_probe import MachineProbe
from api.machine_start import MachineStarter
from api.notices.events import PlanEvents
from api.notices.notifier import LoggedNotifier, WakeSignal
from api.notices.webhook_sender import HttpWebhookSender
from api.one_time_links import OneTimeLinks
from api.planning.planning_call import (
    build_estimator,
    build_planner,
    check_call,
    estimate_call,
    installed_quotas,
    plan_call,
    price_call,
    replan_call,
    simulate_call,
)
from api.planning.workers import PlannerProcesses, Planners, PlannerThread
from api.schemas.market.contract_prices import read_contract_prices
from api.schemas.workloads.workloads import read_workloads
from api.sign_in_attempts import FailedAttempts
from broker.catalogue import (
    load_energy_facts,
    load_exchange_rates,
    load_gate_rules,
    load_launch_table,
    load_moving_terms,
    load_operators,
    load_provider_classes,
    load_spot_prior,
    use_exchange_rates,
)
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.near_words import with_nearest
from broker.domain.holding.order_rules import OrderRules, Orders
from broker.domain.market.contract_prices import ContractPrice
from broker.domain.market.polling import PollPlan
from broker.domain.market.seller_mode import Modes, real_sellers
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.intervals import IntervalRules
from broker.domain.spend.spending_caps import SpendingCap, SpendingCaps
from broker.domain.workloads.startup import StartupSecrets
from broker.ports.unit_of_work import Clock
from broker.services.accounts.accounts import AccountsService
from broker.services.accounts.keys import KeysService
from broker.services.accounts.people import PeopleService
from broker.services.accounts.retention import RetentionRules, RetentionService
from broker.services.accounts.ssh_keys import SshKeysService
from broker.services.accounts.webhooks import WebhooksService
from broker.services.holding.buyer import Buyer
from broker.services.holding.changes import ChangesService
from broker.services.holding.early_holding import EarlyHoldingService
from broker.services.holding.fallback_offer import FallbackOffers, FallbackRules
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.machine_setups import MachineSetups
from broker.services.holding.machine_starts import MachineStarts
from broker.services.holding.machines import MachinesService
from broker.services.holding.networks import NetworksService
from broker.services.holding.order_gate import OrderGate
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from broker.services.holding.reservation_creator import ReservationCreator
from broker.services.holding.reservations import ReservationsService, ReservingRules
from broker.services.market.forecasting import ForecastSources
from broker.services.market.offers import OffersService
from broker.services.market.price_forecasts import PlanPriceForecasts
from broker.services.market.prices import HistoryRules, PricesService
from broker.services.market.probes import Probe, ProbesService
from broker.services.market.usable_offers import OfferRules
from broker.services.moving.moves import MoveRules, MovesService
from broker.services.moving.proposals import ProposalsService
from broker.services.moving.reoptimize import ReoptimizeRules, ReoptimizeService
from broker.services.planning.confidence_pricing import ConfidencePricing
from broker.services.planning.estimating import EstimatingService
from broker.services.planning.plan_queue import PlanQueue
from broker.services.planning.planning import PlanningRules, PlanningService
from broker.services.planning.quota_gate import QuotaGate
from broker.services.spend.approvals import ApprovalsService
from broker.services.spend.budget_gate import BudgetGate
from broker.services.spend.budgets import BudgetsService
from broker.services.spend.economics import EconomicsService
from broker.services.spend.intervals import IntervalsService
from broker.services.spend.known_names import KnownNamesService
from broker.services.spend.spend import SpendService
from broker.services.spend.spend_futures import SpendFutures
from broker.services.spend.summaries import Summaries
from broker.settings import Settings, networks_of
from broker.store.engine import Store, create_store
from optimizer.spend_interval import MonteCarlo
from providers.http import ProviderHttp
from providers.market_clock import MarketClock
from providers.probe import probe
from providers.registry import (
    build_adapters,
    can_be_ordered,
    configured,
    is_sold,
    missing_settings,
    network_builders,
    not_planned,
    poll_intervals,
    seller_modes,
    sellers,
)
from providers.spec import Feed, Missing, ProviderSettings

__all__ = ["Product", "build_estimator", "build_planner", "build_product"]

STALE_AFTER_POLLS = 5
LEAST_STALE_AFTER = timedelta(minutes=2)


@dataclass
class Product:
    """All parts that the user interfaces need. ``close`` it at the end.

    ``missing`` has, by provider, the settings that are missing for sending orders. ``modes``: whether a
    seller is the sandbox's or real. ``orders``: what orders are held to.
    """

    settings: Settings
    store: Store
    clock: Clock
    adapters: Mapping[str, Feed]
    poll_plan: PollPlan
    executor: Planners
    estimator: Planners
    plan_queue: PlanQueue
    events: PlanEvents
    accounts: AccountsService
    keys: KeysService
    ssh_keys: SshKeysService
    people: PeopleService
    offers: OffersService
    prices: PricesService
    retention: RetentionService
    probes: ProbesService
    planning: PlanningService
    estimating: EstimatingService
    confidence_pricing: ConfidencePricing
    reservations: ReservationsService
    early_holding: EarlyHoldingService
    reconcile: ReconcileService
    machines: MachinesService
    networks: NetworksService
    moves: MovesService
    proposals: ProposalsService
    reoptimize: ReoptimizeService
    spend: SpendService
    budgets: BudgetsService
    names: KnownNamesService
    approvals: ApprovalsService
    intervals: IntervalsService
    changes: ChangesService
    economics: EconomicsService
    webhooks: WebhooksService
    exports: ExportJobs
    orders: OrderGate = field(default_factory=OrderGate)
    identity: OpenIdProvider | None = None
    missing: Mapping[str, tuple[Missing, ...]] = field(default_factory=dict)
    modes: Modes = field(default_factory=dict)
    background: Background = field(default_factory=Background)
    readiness: Readiness = field(default_factory=Readiness)
    failed_sign_ins: FailedAttempts = field(default_factory=FailedAttempts)
    links: OneTimeLinks = field(default_factory=OneTimeLinks)

    async def close(self) -> None:
        """Ends tasks, connections and worker processes, and releases the database, in that order.

        A failure to close one part does not prevent the others from closing. Closing twice is no error.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            stack.callback(self.executor.shutdown, wait=False, cancel_futures=True)
            stack.callback(self.estimator.shutdown, wait=False, cancel_futures=True)
            if isinstance(self.clock, MarketClock):
                stack.push_async_callback(self.clock.aclose)
            if self.identity is not None:
                stack.push_async_callback(self.identity.aclose)
            for adapter in self.adapters.values():
                stack.push_async_callback(adapter.aclose)
            stack.push_async_callback(self.background.stop)


def build_executor(wish: str, events: PlanEvents, *, processes: int = 2, memory_gib: float = 4.0) -> Planners:
    """The executor of the planner: by default separate processes, so that the server stays responsive."""
    if wish == "thread":
        return PlannerThread()
    if wish == "process":
        return PlannerProcesses(processes, memory_gib, events.publish)
    address = wish.removeprefix("dask://")
    try:
        planners = import_module("api.planning.dask_workers").DaskPlanners(address, events.publish)
    except ModuleNotFoundError as error:
        raise _no_cluster(
            wish, "the extra `dask` installed: pip install 'gpu-capacity-broker[dask]'"
        ) from error
    except OSError as error:
        raise _no_cluster(wish, f"a Dask scheduler that answers at {address}") from error
    return cast("Planners", planners)


def _no_cluster(wish: str, expected: str) -> InputError:
    return InputError("settings", (FieldProblem("BROKER_SOLVER_EXECUTOR", repr(wish), expected),))


def _contracts(path: Path | None) -> tuple[ContractPrice, ...]:
    """The contract prices of the file; none without a file. Raises InputError."""
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = FieldProblem("BROKER_CONTRACT_PRICES", f"{str(path)!r} ({error})", "a readable CSV file")
        raise InputError("settings", (problem,)) from error
    return read_contract_prices(text, str(path))


def _probes(reached: Mapping[str, ProviderSettings]) -> Mapping[str, Probe]:
    """A probe for each provider that is called with the installation's own credentials."""
    own = {
        name: each for name, each in reached.items() if not each.sandbox and not each.keyless and each.secrets
    }
    return {name: partial(probe, each) for name, each in own.items()}


def spending_caps(settings: Settings) -> SpendingCaps:
    """The caps that the settings state."""
    own = {team: SpendingCap(cap.usd_per_hour, cap.usd_per_day) for team, cap in settings.team_caps.items()}
    return SpendingCaps(SpendingCap(settings.max_usd_per_hour, settings.max_usd_per_day), own)


def open_orders_warning(settings: Settings, modes: Modes) -> str:
    """The warning while a real seller may be ordered from without a cap; empty for none."""
    real = real_sellers(modes, modes)
    if (
        Orders(settings.orders) is not Orders.ON
        or not real
        or spending_caps(settings).all_teams != SpendingCap()
    ):
        return ""
    return (
        f"orders at real sellers ({', '.join(real)}) are on, and no cap over all teams is set: set "
        "BROKER_MAX_USD_PER_HOUR or BROKER_MAX_USD_PER_DAY"
    )


def startup_secrets(environ: Mapping[str, str], teams: Mapping[str, Sequence[str]]) -> StartupSecrets:
    """The secrets for the start of machines: the variables ``BROKER_SECRET_<NAME>``.

    ``teams``: who may use each name. Raises InputError for a name without a variable, since a slip there
    would leave the secret that was meant to every team.
    """
    prefix = "BROKER_SECRET_"
    values = {name.removeprefix(prefix): value for name, value in environ.items() if name.startswith(prefix)}
    problems = tuple(
        FieldProblem(
            "BROKER_TEAM_SECRETS",
            f"{name!r}, and {prefix}{name} is not set",
            with_nearest("the name of a secret that is set", name, values),
        )
        for name in sorted(teams.keys() - values.keys())
    )
    if problems:
        raise InputError("environment or broker.toml", problems)
    return StartupSecrets(values, {name: frozenset(allowed) for name, allowed in teams.items()})


def build_product(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    sandbox_url: str | None = None,
    live: bool = False,
    exclusive: bool = True,
    clock: Clock | None = None,
) -> Product:
    """The product for ``settings``, with the providers that ``environ`` configures.

    ``sandbox_url`` serves providers without credentials if no setting names a sandbox; ``live`` adds public
    price feeds. ``clock`` None: the sandbox's clock if there is a sandbox, else the system clock. Raises
    InputError, and Conflict if another process holds the SQLite file.
    """
    use_exchange_rates(settings.exchange_rates)
    sandbox = settings.sandbox_url or (None if live else sandbox_url)
    reached = configured(environ, sandbox, keyless=live)
    adapters = build_adapters(reached)
    plan = PollPlan(timedelta(seconds=settings.poll_seconds), poll_intervals(reached))
    selling = sellers(adapters)
    price_lists = frozenset(adapters) - frozenset(selling)
    clock = clock or (MarketClock(sandbox, ProviderHttp) if sandbox else SystemClock())
    # What a setting may refuse comes before the store, whose lock only its end frees.
    secrets = startup_secrets(environ, settings.team_secrets)
    sealing = settings.secrets_key.get_secret_value() if settings.secrets_key is not None else None
    store = create_store(settings.database_url, exclusive=exclusive, secrets_key=sealing)
    units, events, background = store.unit_of_work, PlanEvents(), Background()
    sender = HttpWebhookSender(
        allow_loopback=settings.webhook_allow_loopback, networks=networks_of(settings.webhook_networks)
    )
    webhooks = WebhooksService(units, sender, clock)
    notifier = LoggedNotifier(WakeSignal(background, webhooks.deliver))
    executor = build_executor(
        settings.solver_executor,
        events,
        processes=settings.planner_processes,
        memory_gib=settings.planner_memory_gib,
    )
    plan_queue = PlanQueue(executor)
    estimator = PlannerThread()
    true_time = SystemClock()
    identity = provider_of(settings, true_time)
    stale_after = max(LEAST_STALE_AFTER, timedelta(seconds=STALE_AFTER_POLLS * settings.poll_seconds))
    usable = OfferRules(
        stale_after, not_planned(reached), can_be_ordered(reached), load_spot_prior(), load_launch_table()
    )

    def read_request(document: str, at: datetime | None = None) -> PlanRequest:
        now = at or clock.now()
        request = read_workloads(document, source="stored plan", base=None, now=now, stored=True)
        return replace(request, quotas=installed_quotas(settings))

    modes = seller_modes(reached)
    order_rules = OrderRules(Orders(settings.orders), modes)
    lease_service = LeaseService(units, selling, clock, secrets, order_rules)
    orders = OrderGate(order_rules, spending_caps(settings), read_request)
    creator = ReservationCreator(
        lease_service,
        clock,
        quotas=QuotaGate(installed_quotas(settings), read_request),
        setups=MachineSetups(read_request, secrets, engine_start),
        orders=orders,
    )
    summaries = Summaries(units, clock)
    limit = None if settings.approval_limit_usd is None else Decimal(str(settings.approval_limit_usd))
    gate = BudgetGate(units, clock, summaries, limit)
    fallback_offers = FallbackOffers(
        units,
        plan_call,
        plan_queue,
        clock,
        read_request=read_request,
        rules=FallbackRules(price_tolerance=settings.price_tolerance, offers=usable),
        budgets=gate,
        orders=order_rules,
    )
    buying = Buyer(units, lease_service, creator, clock, fallback_offers)
    moves = MovesService(
        units, buying, clock, notifier, rules=MoveRules(price_tolerance=settings.price_tolerance)
    )
    rules = PlanningRules(
        limit,
        usable,
        plans_at_once=settings.team_plans_at_once,
        workloads_at_once=settings.team_workloads_at_once,
    )
    sources = ForecastSources(load_provider_classes())
    price_forecasts = PlanPriceForecasts(units, sources)
    traffic = IntervalRules(settings.traffic_growth, settings.traffic_spread)
    futures = SpendFutures(MonteCarlo(), sources, traffic)
    return Product(
        settings=settings,
        store=store,
        clock=clock,
        adapters=adapters,
        missing=missing_settings(reached),
        modes=modes,
        orders=orders,
        poll_plan=plan,
        executor=executor,
        estimator=estimator,
        plan_queue=plan_queue,
        events=events,
        accounts=AccountsService(units, clock),
        keys=KeysService(units, clock),
        ssh_keys=SshKeysService(units, clock),
        people=people_of(settings, units, true_time, identity),
        identity=identity,
        offers=OffersService(
            units,
            adapters,
            clock,
            stale_after=stale_after,
            gate=load_gate_rules(),
            contracts=_contracts(settings.contract_prices),
            price_lists=price_lists,
            plan=plan,
            operators=load_operators(),
            takes_orders=lambda offer: is_sold(offer, reached),
            modes=modes,
        ),
        prices=PricesService(
            units,
            clock,
            rules=HistoryRules(settings.history_full_days, settings.history_kept_days),
            sources=sources,
        ),
        retention=RetentionService(
            units,
            clock,
            rules=RetentionRules(
                settings.answers_kept_days,
                settings.deliveries_kept_days,
                settings.audit_kept_days,
                settings.rounds_kept_days,
            ),
        ),
        probes=ProbesService(units, _probes(reached), clock, notifier),
        planning=PlanningService(
            units,
            plan_call,
            plan_queue,
            clock,
            notifier,
            events,
            read_request=read_request,
            replan_call=replan_call,
            rules=rules,
            budgets=gate,
            price_forecasts=price_forecasts,
        ),
        estimating=EstimatingService(
            units, estimate_call, estimator, clock, usable, simulate_call, read_request, check_call
        ),
        confidence_pricing=ConfidencePricing(units, price_call, plan_queue, clock, usable, read_request),
        reservations=ReservationsService(
            units,
            buying,
            clock,
            notifier,
            rules=ReservingRules(price_tolerance=settings.price_tolerance),
            read_request=read_request,
            budgets=gate,
            resale_share=load_moving_terms().resale_share,
        ),
        early_holding=EarlyHoldingService(units, buying, clock, notifier, gate),
        reconcile=ReconcileService(
            units,
            buying,
            clock,
            notifier,
            rules=ReconcileRules(keep_orphans=settings.strays == "keep"),
            rates=load_exchange_rates,
        ),
        networks=NetworksService(units, network_builders(adapters), clock, adapters),
        machines=MachinesService(
            units,
            selling,
            MachineProbe(),
            clock,
            notifier,
            MachineStarts(units, lease_service, MachineStarter(), clock, secrets),
        ),
        moves=moves,
        proposals=ProposalsService(units, moves, clock, notifier, read_request=read_request, budgets=gate),
        reoptimize=ReoptimizeService(
            units,
            replan_call,
            plan_queue,
            clock,
            notifier,
            read_request=read_request,
            price_forecasts=price_forecasts,
            budgets=gate,
            rules=ReoptimizeRules(
                terms=load_moving_terms(),
                time_limit_s=settings.replan_time_limit_s,
                approval_limit_usd=rules.approval_limit_usd,
                offers=usable,
            ),
        ),
        spend=SpendService(units, clock, summaries, read_request=read_request),
        budgets=BudgetsService(units, clock, summaries),
        names=KnownNamesService(units, settings.oidc_teams.values()),
        approvals=ApprovalsService(
            units, clock, notifier, futures, four_eyes=settings.four_eyes, summaries=summaries
        ),
        intervals=IntervalsService(units, clock, futures, summaries),
        changes=ChangesService(units, clock, summaries),
        economics=EconomicsService(
            units, clock, summaries, read_request=read_request, energy=load_energy_facts()
        ),
        webhooks=webhooks,
        exports=ExportJobs(units, clock, background),
        background=background,
    )
