"""Webhooks: subscriptions, and delivery of the events in the outbox."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.money import ZERO, format_usd, to_cents
from broker.domain.basics.page import Page
from broker.domain.basics.webhook import (
    ALL_TEAMS,
    EVERYTHING,
    FAMILIES,
    SECRET_BYTES,
    TEST,
    Delivery,
    DeliveryState,
    MoneyChange,
    OutboxEvent,
    SendOutcome,
    Webhook,
    WebhookFormat,
    can_match,
    make_secret,
    next_try,
    sign,
)
from broker.domain.moving.reoptimization import ProposalState
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.ports.webhooks import WebhookSender
from broker.redaction import origin_of
from broker.services.accounts.chat_messages import mattermost_message, slack_message, teams_message
from broker.together import all_ended

BATCH = 100
EACH = 10
"""Messages to one webhook before the other webhooks get their turn."""
PAGE = 200
MOST_PATTERNS = 20
CLAIMED_FOR = timedelta(minutes=2)
GONE = 410
AT_ONCE = 32


class WebhooksService:
    """Use cases of webhooks. They need the scope to read spend, because events contain amounts."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        sender: WebhookSender,
        clock: Clock,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._units = units
        self._sender = sender
        self._clock = clock
        self._random_bytes = random_bytes
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def create(
        self,
        caller: Caller,
        url: str,
        events: Sequence[str] = EVERYTHING,
        message_format: WebhookFormat = WebhookFormat.JSON,
    ) -> Webhook:
        """A new webhook for events of the caller's team; an administrator's gets the events of all teams.

        Raises InputError for an address that is not public, and for a pattern that matches no event.
        """
        require_scope(caller, Scope.SPEND_READ)
        if not 0 < len(events) <= MOST_PATTERNS:
            problem = FieldProblem("/events", f"{len(events)} patterns", f"1 to {MOST_PATTERNS}")
            raise InputError("webhook", (problem,))
        for place, pattern in enumerate(events):
            if not can_match(pattern):
                expected = f"{', '.join(f'{family}.*' for family in FAMILIES)} or *"
                raise InputError("webhook", (FieldProblem(f"/events/{place}", repr(pattern), expected),))
        await self._sender.require_allowed(url)
        now = self._clock.now()
        webhook = Webhook(
            webhook_id=make_id("whk", now, self._random_bytes(ENTROPY_BYTES)),
            team=ALL_TEAMS if caller.may(Scope.ADMIN) else caller.team,
            url=url,
            events=tuple(events),
            secret=make_secret(self._random_bytes(SECRET_BYTES)),
            created_at=now,
            created_by=caller.key_id,
            format=message_format,
        )
        async with self._units(scope_of(caller)) as uow:
            await uow.webhooks.add(webhook)
            await uow.accounts.bind(caller.claim, (webhook.webhook_id,))
            await uow.accounts.add_audit(self._entry(webhook, caller, "webhook.create"))
            await uow.commit()
        return webhook

    async def find_webhooks(
        self, caller: Caller, limit: int = 50, cursor: str | None = None
    ) -> Page[Webhook]:
        """Webhooks, newest first; other teams' only for administrators."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            return await uow.webhooks.find_page(limit, cursor)

    async def find(self, caller: Caller, webhook_id: str) -> tuple[Webhook, tuple[Delivery, ...]]:
        """One webhook with its newest deliveries. Raises NotFound, also for one of another team."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            webhook = await uow.webhooks.find(webhook_id)
            return webhook, await uow.webhooks.find_deliveries(webhook_id, BATCH)

    async def remove(self, caller: Caller, webhook_id: str) -> None:
        """Removes a webhook. Its pending deliveries are not sent."""
        webhook, _ = await self.find(caller, webhook_id)
        async with self._units(scope_of(caller)) as uow:
            await uow.webhooks.remove(webhook_id)
            await uow.accounts.add_audit(self._entry(webhook, caller, "webhook.delete"))
            await uow.commit()

    async def test(self, caller: Caller, webhook_id: str) -> str:
        """Puts a test event for one webhook into the outbox; the id of the message that will be sent.

        NotFound for another team's, Conflict for one that has ended.
        """
        webhook, _ = await self.find(caller, webhook_id)
        if webhook.disabled_at is not None:
            raise Conflict(f"webhook {webhook_id} has ended: its address answered 410 (gone); make a new one")
        team = caller.team if webhook.team == ALL_TEAMS else webhook.team
        entry = replace(
            self._entry(webhook, caller, TEST), team=team, detail="A test, asked for by its owner"
        )
        async with self._units(scope_of(caller)) as uow:
            event_id = await uow.webhooks.add_event(entry)
            await uow.commit()
        return message_id_of(event_id, webhook_id)

    async def deliver(self) -> int:
        """Empties the outbox and tries all due deliveries, in order per webhook. Returns their number."""
        async with self._sending:
            while await self._fan_out():
                pass
            tries = 0
            while due := await self._claim():
                by_webhook: defaultdict[str, list[Delivery]] = defaultdict(list)
                for delivery in due:
                    by_webhook[delivery.webhook_id].append(delivery)
                await all_ended(self._try(line) for line in by_webhook.values())
                tries += len(due)
            return tries

    async def _fan_out(self) -> bool:
        """Turns one batch of events into deliveries, in one transaction.

        Of several events of one object only the newest has amounts, which are those of its current state.
        """
        async with self._units(EVERY_TEAM) as uow:
            events = await uow.webhooks.take_events(BATCH)
            newest = {event.object_id: event.event_id for event in events}
            for event in events:
                last = newest[event.object_id] == event.event_id
                money = await _money(uow, event) if last else None
                wanted = [w for w in await uow.webhooks.find_of_team(event.team) if w.wants(event)]
                bodies = {one: _BODIES[one](event, money) for one in {w.format for w in wanted}}
                await uow.webhooks.add_deliveries(
                    [self._delivery(event, w, bodies[w.format]) for w in wanted]
                )
            await uow.commit()
        return len(events) == BATCH

    def _delivery(self, event: OutboxEvent, webhook: Webhook, body: str) -> Delivery:
        message_id = message_id_of(event.event_id, webhook.webhook_id)
        now = self._clock.now()
        return Delivery(event.event_id, webhook.webhook_id, message_id, body, DeliveryState.PENDING, 0, now)

    async def _claim(self) -> tuple[Delivery, ...]:
        now = self._clock.now()
        async with self._units(EVERY_TEAM) as uow:
            due = await uow.webhooks.claim_due(now, now + CLAIMED_FOR, BATCH, EACH)
            await uow.commit()
        return due

    async def _try(self, line: Sequence[Delivery]) -> None:
        """Tries the deliveries to one webhook in order, and stops at the first failure.

        The later ones wait too, so that a dead server costs one timeout per try.
        """
        async with self._slots:
            for delivery in line:
                if not await self._send(delivery):
                    return

    async def _send(self, delivery: Delivery) -> bool:
        """Tries one delivery outside any transaction, then stores the outcome. Whether it succeeded."""
        async with self._units(EVERY_TEAM) as uow:
            try:
                webhook = await uow.webhooks.find(delivery.webhook_id)
            except NotFound:
                return False
        now = self._clock.now()
        headers = {"content-type": "application/json"}
        headers |= sign(webhook.secret, delivery.message_id, now, delivery.body)
        if webhook.disabled_at is None:
            outcome = await self._sender.send(webhook.url, headers, delivery.body)
        else:
            outcome = SendOutcome(GONE, "the webhook is disabled")
        attempts = delivery.attempts + 1
        again = next_try(attempts, now) if outcome.status != GONE else None
        state = DeliveryState.DELIVERED
        if outcome.error:
            state = DeliveryState.FAILED if again is None else DeliveryState.PENDING
        done = replace(delivery, attempts=attempts, state=state, error=outcome.error, next_at=again or now)
        async with self._units(EVERY_TEAM) as uow:
            await uow.webhooks.finish(done)
            if state is DeliveryState.PENDING:
                await uow.webhooks.put_off(webhook.webhook_id, done.next_at)
            if outcome.status == GONE:
                await uow.webhooks.disable(replace(webhook, disabled_at=webhook.disabled_at or now))
            await uow.commit()
        return not outcome.error

    def _entry(self, webhook: Webhook, caller: Caller, action: str) -> AuditEntry:
        return AuditEntry(
            at=self._clock.now(),
            actor=caller.key_id,
            action=action,
            object_kind="webhook",
            object_id=webhook.webhook_id,
            team=webhook.team,
            detail=origin_of(webhook.url),  # the rest of the address may be a secret
        )


def message_id_of(event_id: int, webhook_id: str) -> str:
    """The id of the message of one event to one webhook, in all its attempts."""
    return f"msg-{event_id}-{webhook_id}"


async def _money(uow: UnitOfWork, event: OutboxEvent) -> MoneyChange | None:
    """The cost of the event's object now, and in the last event about it."""
    if event.object_kind == "reoptimization":
        return await _reoptimization_money(uow, event)
    last = await uow.webhooks.last_expected(event.object_id)
    try:
        money = await _MONEY[event.object_kind](uow, event) if event.object_kind in _MONEY else None
    except NotFound:
        return None
    if money is None:
        return None
    if last is not None:
        money = replace(money, before_usd=last.after_usd)
    await uow.webhooks.put_expected(event.object_id, money)
    return money


async def _reoptimization_money(uow: UnitOfWork, event: OutboxEvent) -> MoneyChange | None:
    """The remaining cost of its plan without the moves, and with them, including one-time costs."""
    try:
        look = await uow.reoptimizations.find(event.object_id)
    except NotFound:
        return None
    if look.after_usd is None or look.state is ProposalState.UNCHANGED:
        return None
    return MoneyChange(look.before_usd, look.after_usd + look.cost_usd, ZERO)


async def _plan_money(uow: UnitOfWork, event: OutboxEvent) -> MoneyChange | None:
    record = await uow.plans.find(event.object_id)
    if record.plan is None:
        return None
    before = None
    if record.supersedes is not None:
        old = await uow.plans.find(record.supersedes)
        before = None if old.plan is None else old.plan.cost_usd
    return MoneyChange(before, record.plan.cost_usd, ZERO)


async def _reservation_money(uow: UnitOfWork, event: OutboxEvent) -> MoneyChange | None:
    row = await uow.reservations.find(event.object_id)
    whole = [row]
    if row.plan_id is not None:
        page = await uow.reservations.find_page(PAGE, None, row.plan_id)
        whole = list(page.items)
    charges = [c for c in reservation_charges(whole, {}, event.at) if c.reservation_id == row.reservation_id]
    owed = sum((c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), ZERO)
    return MoneyChange(None, sum((c.usd for c in charges), ZERO), owed)


_MONEY: Mapping[str, Callable[[UnitOfWork, OutboxEvent], Awaitable[MoneyChange | None]]] = {
    "plan": _plan_money,
    "reservation": _reservation_money,
}


def _body(event: OutboxEvent, money: MoneyChange | None) -> str:
    told = None
    if money is not None:
        told = {
            "before_usd": None if money.before_usd is None else format_usd(to_cents(money.before_usd)),
            "after_usd": format_usd(to_cents(money.after_usd)),
            "change_usd": format_usd(to_cents(money.change_usd)),
            "owed_usd": format_usd(to_cents(money.owed_usd)),
        }
    data = {
        "team": event.team,
        "object": {"kind": event.object_kind, "id": event.object_id},
        "actor": event.actor,
        "detail": event.detail,
        "money": told,
    }
    at = event.at.isoformat().replace("+00:00", "Z")
    return json.dumps({"type": event.event, "timestamp": at, "data": data}, ensure_ascii=False)


def _chat_body(
    message: Callable[[OutboxEvent, MoneyChange | None], Mapping[str, object]],
) -> Callable[[OutboxEvent, MoneyChange | None], str]:
    return lambda event, money: json.dumps(message(event, money), ensure_ascii=False)


_BODIES: Mapping[WebhookFormat, Callable[[OutboxEvent, MoneyChange | None], str]] = {
    WebhookFormat.JSON: _body,
    WebhookFormat.SLACK: _chat_body(slack_message),
    WebhookFormat.MATTERMOST: _chat_body(mattermost_message),
    WebhookFormat.TEAMS: _chat_body(teams_message),
}
