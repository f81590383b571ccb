"""Intents become stored reservations with tags, if there is enough stock for them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from broker.domain.basics.account import AuditEntry, IdempotencyKey
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, StockHeld, StockShort
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.machines import AccessWish
from broker.domain.basics.window import Wish, instant_words
from broker.domain.holding.holding_orders import (
    Intent,
    free_nodes,
    opening_state,
    units_of,
    unplaced_order,
)
from broker.domain.holding.machine_setup import MachineSetup
from broker.domain.holding.reservation import Reservation
from broker.domain.holding.startup_run import StartupRun, StartupState
from broker.ports.unit_of_work import Clock, UnitOfWork
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.machine_setups import NO_SETUPS, MachineSetups, StartOf
from broker.services.holding.order_gate import OrderGate
from broker.services.planning.quota_gate import QuotaGate

CAPACITY_ALONE = "the order holds capacity alone: start it in the instances that you launch into it"
NO_ENGINE = FieldProblem("/startup/engine", "true", "a script or an image: only a plan knows its engines")
HOW_TO_ENTER = "a public key of the team or of yourself: `broker ssh-keys --add ~/.ssh/id_ed25519.pub`"


class ReservationCreator:
    """Stores intended reservations. The caller holds ``turn``, so that no stock is taken twice, and no
    budget."""

    def __init__(
        self,
        lease_service: LeaseService,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        quotas: QuotaGate | None = None,
        setups: MachineSetups | None = None,
        orders: OrderGate | None = None,
    ) -> None:
        self._quotas = quotas or QuotaGate()
        self.orders = orders or OrderGate()
        self.setups = setups or MachineSetups()
        self._lease_service = lease_service
        self._clock = clock
        self._random_bytes = random_bytes
        self.turn = asyncio.Lock()

    async def draft(
        self,
        uow: UnitOfWork,
        intents: Iterable[Intent],
        team: str,
        actor: str,
        plan_id: str | None,
        why: str = "",
        *,
        replaces: tuple[str, ...] = (),
        though_none_left: bool = False,
        claim: IdempotencyKey | None = None,
        setups: Mapping[str | None, MachineSetup] = NO_SETUPS,
    ) -> tuple[Reservation, ...]:
        """Stores a reservation with its tags for each intent; does not commit.

        ``why`` goes into the audit trail. ``though_none_left``: intents are stored without stock too, for
        orders that are repeated until there is some. ``replaces``: id of the reservation that they replace.
        ``claim``: the idempotency key of the request. ``setups``: of the machines, by workload; the others
        are those of the plan's document and the keys of the team and ``actor``. Raises Conflict if there is
        too little stock, or if nobody could enter the machines, OrdersBarred, OverCap and OverQuota.
        """
        wanted = tuple(intents)
        sellers = {intent.offer.provider for intent in wanted}
        await self.orders.require_allowed(uow, sellers, None if though_none_left else plan_id)
        await self.orders.take_turn(uow)
        install_id = await uow.accounts.install_id()
        found = await self.setups.find(uow, team, actor, plan_id, {one.workload for one in wanted}, setups)
        own = await uow.accounts.find_own_public_key()
        found = {name: setup.without(own) for name, setup in found.items()}
        for intent in wanted:
            self._require_access(intent, found[intent.workload])
        known = await self._quotas.find_competing(uow, wanted, team, plan_id, check=not though_none_left)
        engines = None
        if any(setup.is_engine for setup in found.values()):
            engines = await self.setups.starts_of_engines(uow, plan_id)
        drafts = []
        for intent in wanted:
            if not though_none_left:
                require_stock(intent, known)
            draft = self._reservation(intent, install_id, team, actor, plan_id)
            reserver = self._lease_service.reserver(intent.offer.provider)
            setup = with_engine(found[intent.workload], intent, engines)
            setup, run = await self._startup_of(uow, intent, setup)
            # A start over SSH lets in the other keys; else the seller takes only the first ones.
            is_let_in = run is not None and run.is_the_brokers
            setup = setup.with_at_most(None if is_let_in else reserver.most_keys)
            units = tuple(replace(unit, startup=run) for unit in draft.units)
            draft = replace(draft, replaces=replaces, setup=setup, units=units)
            known.append(draft)
            drafts.append(draft)
        await self.orders.require_within_caps(uow, drafts, self._clock.now())
        for draft in drafts:
            await uow.reservations.add(draft)
            await uow.accounts.add_audit(self._entry(draft, actor, why))
        await uow.accounts.bind(claim, [draft.reservation_id for draft in drafts])
        return tuple(drafts)

    async def require_orderable(self, uow: UnitOfWork, intent: Intent, team: str) -> None:
        """Raises what ``draft`` raises of an order without a plan, but for the access; stores nothing."""
        now = self._clock.now()
        await self.orders.require_allowed(uow, {intent.offer.provider}, None)
        await self.orders.require_within_caps(uow, (unplaced_order(intent, team, now),), now)
        require_stock(intent, await self._quotas.find_competing(uow, (intent,), team, None))

    async def require_longer(self, uow: UnitOfWork, row: Reservation, end: datetime) -> None:
        """Raises OverQuota if quotas do not allow holding a reservation until ``end``."""
        if row.end is not None:
            more = Intent(row.offer, row.nodes, row.end, end, row.workload)
            await self._quotas.find_competing(uow, (more,), row.team, row.plan_id)

    async def require_earlier(self, uow: UnitOfWork, row: Reservation, now: datetime) -> None:
        """Raises what ``draft`` raises if ``row`` may not be held from ``now`` until its start too, but for
        the caps and the access.
        """
        offer = (await uow.offers.find_offer(row.offer.offer_id)).in_size_of(row.offer)
        before = Intent(offer, row.nodes, now, row.start, row.workload)
        await self.orders.require_allowed(uow, {offer.provider}, row.plan_id)
        require_stock(before, await self._quotas.find_competing(uow, (before,), row.team, row.plan_id))

    def _reservation(
        self, intent: Intent, install_id: str, team: str, actor: str, plan_id: str | None
    ) -> Reservation:
        now = self._clock.now()
        reservation_id = make_id("rsv", now, self._random_bytes(ENTROPY_BYTES))
        reserver = self._lease_service.reserver(intent.offer.provider)
        per_order = reserver.nodes_per_order(intent.offer)
        return Reservation(
            reservation_id=reservation_id,
            team=team,
            state=opening_state(intent, now),
            offer=replace(intent.offer, mode=self.orders.rules.modes.get(intent.offer.provider)),
            nodes=intent.nodes,
            start=intent.start,
            end=intent.end,
            units=units_of(install_id, reservation_id, intent.nodes, per_order, reserver.longest_tag),
            created_at=now,
            workload=intent.workload,
            plan_id=plan_id,
            requested_by=actor,
            requested=intent.requested or Wish(intent.start, intent.end),
            limit_usd_per_node_hour=intent.limit_usd_per_node_hour,
        )

    async def _startup_of(
        self, uow: UnitOfWork, intent: Intent, setup: MachineSetup
    ) -> tuple[MachineSetup, StartupRun | None]:
        """``setup`` with the key for a start over SSH where the seller takes no script, and the run of its
        start."""
        if setup.startup is None:
            return setup, None
        now, offer = self._clock.now(), intent.offer
        reserver = self._lease_service.reserver(offer.provider)
        if reserver.runs_script(offer):
            return setup, StartupRun(StartupState.ORDERED, now)
        if not reserver.opens_to_keys(offer):
            return setup, StartupRun(StartupState.IMPOSSIBLE, now, error=CAPACITY_ALONE)
        own = await uow.accounts.own_public_key()
        # It comes first, as a seller may let in one key alone; the script lets in the others.
        return replace(setup, keys=(own, *setup.keys)), StartupRun(StartupState.WAITING, now)

    def _require_access(self, intent: Intent, setup: MachineSetup) -> None:
        """Raises Conflict if nobody could enter the machines of ``intent``, although somebody is to."""
        if setup.access is AccessWish.NONE:
            return
        offer = intent.offer
        why = self._lease_service.reserver(offer.provider).locked_out(offer, setup.keys)
        if why:
            expected = f"{HOW_TO_ENTER}, or `access: none` where nobody enters"
            raise Conflict(f"nothing was ordered of {offer.offer_id}: {why}; expected {expected}").naming(
                FieldProblem("/access", "ssh", expected)
            )

    def _entry(self, reservation: Reservation, actor: str, why: str) -> AuditEntry:
        tags = ", ".join(unit.tag for unit in reservation.units)
        what = f"{reservation.state}: {reservation.nodes} × {reservation.offer.offer_id}, tags {tags}"
        return AuditEntry(
            at=self._clock.now(),
            actor=actor,
            action="reservation.intend",
            object_kind="reservation",
            object_id=reservation.reservation_id,
            team=reservation.team,
            detail=f"{what}; {why}" if why else what,
        )


def with_engine(setup: MachineSetup, intent: Intent, engines: StartOf | None) -> MachineSetup:
    """``setup`` with the server of the placement that ``intent`` is of, where the document asks for it.

    Nodes of no placement run the server that ``setup`` has. Raises Conflict if the server cannot be started.
    """
    if not setup.is_engine or setup.startup is None:
        return setup
    if engines is None or intent.placement is None:
        if setup.startup.engine:
            raise Conflict(f"nothing was ordered of {intent.offer.offer_id}: {NO_ENGINE.expected}").naming(
                NO_ENGINE
            )
        return setup
    try:
        return replace(setup, startup=engines(intent.placement, setup.startup))
    except InputError as error:
        words = f"nothing was ordered of {intent.offer.offer_id}, whose server cannot be started"
        raise Conflict(f"{words}: {error}").naming(*error.problems) from error


def require_stock(intent: Intent, known: Sequence[Reservation]) -> None:
    """Raises Conflict if ``intent`` outlasts the offer, StockHeld if ``known`` reservations leave too little
    stock, and StockShort if the provider itself has too little."""
    until = intent.offer.available_until
    if until is not None and intent.end is not None and intent.end > until:
        raise Conflict(
            f"offer {intent.offer.offer_id} is only available until {instant_words(until)}"
        ).naming(FieldProblem("/end", instant_words(intent.end), f"at most {instant_words(until)}"))
    free = free_nodes(intent, known)
    if free is not None and intent.nodes > free:
        stock = intent.offer.stock
        has = "" if stock.nodes is None else f" of the provider's {stock.nodes}"
        pool = stock.pool
        of = "" if pool is None or pool.gpus is None else f", cut from {pool.gpus} GPUs with other offers"
        offer_id, left = intent.offer.offer_id, f"{max(0, free)} left{has}{of}"
        words = f"offer {offer_id}: {intent.nodes} nodes were requested, {left}"
        error = StockHeld(f"{words}; other reservations hold the rest", offer_id)
        if free == free_nodes(intent, ()):
            error = StockShort(words, offer_id)
        raise error.naming(
            FieldProblem("/nodes", str(intent.nodes), f"at most {max(0, free)}, or nodes of another offer")
        )
