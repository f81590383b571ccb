"""Probes a seller: makes its harmless calls and compares each answer with what its adapter declares.

The probe lists what is on sale and what is held. Where a seller has dry runs (``RunsDry``), it sends one
order of each hourly tier as a dry run. The adapter makes the calls through a client that records them, so
the same few lines probe every seller; nothing is bought, changed or released. If a seller executes a dry
run, the list of what is held, which is read afterwards, shows it. Answers to token calls are not kept, and
known secrets are removed from the report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from pydantic import BaseModel

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeasesUnreadable,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, StockLevel, Tier
from broker.domain.market.probing import ComparedCall, Finding, FindingKind, ProbeReport
from providers.http import Exchange, HttpFactory, ProviderHttp
from providers.registry import find_spec
from providers.reply import Operation, Reply
from providers.shapes import Differences, compare_model, compare_rows, decoded, rows_at
from providers.spec import Capability, Missing, ProviderAdapter, ProviderSettings, ProviderSpec, RunsDry

TAG = "broker-probe"
"""The tag of the orders that are sent as dry runs."""
LISTS = frozenset({Operation.OFFERS, Operation.LEASES})
MOST_BYTES = 512 * 1024 * 1024
"""Answers beyond this many bytes in total are not kept, and so not compared."""
MOST_FINDINGS = 200
MOST_CHARACTERS = 300
_ID = re.compile(r"(?!v\d)(?=.*\d).{8,}|\*{3}")
"""A part of a path that contains digits or a removed secret."""


@dataclass(slots=True)
class _Heard:
    """One answer, and the models by which the adapter read it."""

    exchange: Exchange
    models: list[type[BaseModel]] = field(default_factory=list)

    @property
    def reply(self) -> Reply:
        return self.exchange.reply


class Recorder:
    """Records the calls of one adapter.

    ``http_factory`` makes its clients.
    """

    def __init__(self, made: Callable[..., ProviderHttp] = ProviderHttp) -> None:
        self.http_factory: HttpFactory = partial(made, hears=self._hear)
        self.heard: list[_Heard] = []
        self._bytes = 0

    def _hear(self, exchange: Exchange) -> Reply:
        if exchange.reply.operation not in LISTS:
            return exchange.reply
        self._bytes += len(exchange.reply.body)
        if self._bytes > MOST_BYTES:
            exchange = replace(exchange, reply=replace(exchange.reply, body=b""))
        heard = _Heard(exchange)
        self.heard.append(heard)
        return replace(exchange.reply, noted=heard.models.append)


async def probe(
    settings: ProviderSettings, at: datetime, made: Callable[..., ProviderHttp] = ProviderHttp
) -> ProbeReport:
    """Probes a seller.

    No error of the seller escapes: each becomes a finding.
    """
    spec, recorder = find_spec(settings.provider), Recorder(made)
    adapter = spec.build(settings, recorder.http_factory)
    failed: list[Finding] = []
    try:
        try:
            offers = (await adapter.list_offers(at)).offers
        except ProviderError as error:
            offers = ()
            failed.append(_failed(error, "what is on sale"))
        ran: dict[str, Finding | None] = {}
        if isinstance(adapter, RunsDry) and not settings.keyless:
            ran = {
                dry_run(order): await _run_dry(adapter, order)
                for order in dry_orders(offers, spec.missing(settings))
            }
        if isinstance(adapter, ProviderAdapter) and not settings.keyless:
            try:
                failed += [_bought(lease) for lease in await adapter.list_leases() if _is_live_probe(lease)]
            except ProviderError as error:
                failed.append(_failed(error, "what is held"))
    finally:
        await adapter.aclose()
    compared, findings = compare(spec, recorder.heard)
    compared = (*compared, *(ComparedCall(call, 1) for call in ran))
    failed += [finding for finding in ran.values() if finding is not None]
    gone = {finding.call for finding in findings if finding.kind is FindingKind.GONE}
    told = (*findings, *(one for one in failed if one.call not in gone))
    cleaned = dict.fromkeys(_cleaned(one, settings.secrets) for one in told)
    return ProbeReport(spec.name, at, compared, tuple(cleaned)[:MOST_FINDINGS])


@dataclass(frozen=True, slots=True)
class Held:
    """A seller's answer to the question what is held: the calls, how many leases, and how far its clock is
    ahead of ours (None: it did not say). ``error``: why there is no answer.
    """

    calls: tuple[str, ...]
    leases: int = 0
    ahead: timedelta | None = None
    error: ProviderError | None = None


async def ask_what_is_held(
    settings: ProviderSettings, made: Callable[..., ProviderHttp] = ProviderHttp
) -> Held:
    """Asks a seller what is held, as a probe does at its end; a price list is asked for its prices."""
    recorder = Recorder(made)
    adapter = find_spec(settings.provider).build(settings, recorder.http_factory)
    leases, failed = 0, None
    try:
        if isinstance(adapter, ProviderAdapter) and not settings.keyless:
            leases = len(await adapter.list_leases())
        else:
            await adapter.list_offers(datetime.now(UTC))
    except ProviderError as error:
        failed = error
    finally:
        await adapter.aclose()
    now, replies = datetime.now(UTC), [one.reply for one in recorder.heard]
    dated = [reply.answered_at - now for reply in replies[-1:] if "date" in reply.headers]
    calls = tuple(dict.fromkeys(_without_ids(reply.endpoint) for reply in replies))
    return Held(calls, leases, dated[0] if dated else None, failed)


def probe_calls(spec: ProviderSpec) -> tuple[str, ...]:
    """What a probe of a seller calls, but for tokens: the lists that it compares, and its dry runs."""
    calls = [rows.call.partition(" (")[0] for rows in spec.rows]
    calls += ["the list of leases"] if Capability.LIST_LEASES in spec.capabilities else []
    calls += ["orders as dry runs"] if Capability.DRY_RUN in spec.capabilities else []
    return tuple(dict.fromkeys(calls or ["its price list"]))


def dry_orders(offers: Sequence[Offer], missing: Sequence[Missing]) -> list[Order]:
    """For each hourly tier, an order of one node of its first offer in stock.

    Offers whose orders lack a setting are left out, because such an order is refused anyway.
    """
    found: dict[Tier, Order] = {}
    for offer in offers:
        is_on_sale = offer.tier is not Tier.WINDOW and offer.stock.level is not StockLevel.NONE
        if is_on_sale and not any(one.bars(offer) for one in missing):
            found.setdefault(offer.tier, Order(TAG, offer, 1))
    return list(found.values())


def dry_run(order: Order) -> str:
    """The name of a dry run of ``order`` in a report."""
    return f"an order {order.offer.tier.value.replace('_', ' ')}, as a dry run"


async def _run_dry(seller: RunsDry, order: Order) -> Finding | None:
    """The findings of a dry run; lack of capacity or quota is an ordinary answer to an order."""
    try:
        await seller.dry_run(order)
    except (InsufficientCapacity, QuotaExceeded):
        return None
    except ProviderError as error:
        kind = FindingKind.ORDER_REFUSED
        if isinstance(error, OutcomeUnknown | ProviderUnavailable | RateLimited):
            kind = FindingKind.UNANSWERED
        return Finding(kind, dry_run(order), "", str(error).removeprefix(f"{error.provider}: "))
    return None


def _is_live_probe(lease: Lease) -> bool:
    return lease.tag == TAG and lease.state not in {LeaseState.ENDED, LeaseState.FAILED}


def _bought(lease: Lease) -> Finding:
    return Finding(FindingKind.BOUGHT, "what is held", "", f"{lease.reference} came of a dry run: release it")


def _failed(error: ProviderError, asked: str) -> Finding:
    is_form = isinstance(error, PayloadUnreadable | LeasesUnreadable)
    kind = FindingKind.UNREADABLE if is_form else FindingKind.UNANSWERED
    call = _without_ids(error.endpoint) if error.endpoint else asked
    return Finding(kind, call, "", str(error).removeprefix(f"{error.provider}: "))


def _cleaned(finding: Finding, secrets: tuple[str, ...]) -> Finding:
    """The text without secrets, cut to the length that can be shown."""
    texts = [finding.call, finding.field, finding.says]
    for secret in filter(None, secrets):
        texts = [text.replace(secret, "***") for text in texts]
    call, name, says = (text[:MOST_CHARACTERS] for text in texts)
    return Finding(finding.kind, call, name, says)


def compare(spec: ProviderSpec, heard: list[_Heard]) -> tuple[tuple[ComparedCall, ...], tuple[Finding, ...]]:
    """Compares every answer with the declared rows, or else with the models by which it was read.

    Only the adapter knows where rows of held resources stand, since it may read several forms of a list.
    """
    findings: dict[Finding, None] = {}
    for one in heard:
        findings.update(dict.fromkeys(_notices(one.reply)))
    has_xml = any(not rows.at for rows in spec.rows)
    good = [one for one in heard if one.reply.status < 300 and one.reply.body]
    values = {id(one): value for one in good if (value := _value(one.reply, has_xml)) is not None}
    read = [one for one in good if id(one) in values]
    compared: list[ComparedCall] = []
    for declared in spec.rows:
        call, at = declared.call, declared.at
        answers = [values[id(one)] for one in read if is_call(call, one.exchange)]
        if not answers:
            continue
        differences = Differences(call)
        rows = [row for answer in answers for row in rows_at(answer, _at(at, answer))]
        compare_rows(declared, rows, differences)
        compared.append(ComparedCall(call, len(rows)))
        findings.update(dict.fromkeys(differences.findings()))
    held: dict[str, list[_Heard]] = {}
    for one in read:
        is_declared = any(is_call(rows.call, one.exchange) for rows in spec.rows if rows.held)
        if one.reply.operation is Operation.LEASES and not is_declared:
            held.setdefault(_without_ids(one.reply.endpoint), []).append(one)
    for endpoint, answers_ in held.items():
        differences = Differences(endpoint)
        for one in answers_:
            value = values[id(one)]
            for model in dict.fromkeys(one.models):
                compare_model(model, _objects(value), differences)
        compared.append(ComparedCall(endpoint, len(answers_)))
        findings.update(dict.fromkeys(differences.findings()))
    return tuple(compared), tuple(findings)


def _without_ids(endpoint: str) -> str:
    """The endpoint without names of instances, regions and accounts, so that it stays the same."""
    method, _, path = endpoint.partition(" ")
    return f"{method} {'/'.join('{…}' if _ID.fullmatch(part) else part for part in path.split('/'))}"


def _value(reply: Reply, has_xml: bool) -> Any:
    """An answer as data; None if unreadable."""
    try:
        return decoded(reply.provider, reply.body) if has_xml else reply.json_or_none()
    except PayloadUnreadable:
        return None


def _objects(value: object) -> list[dict[str, object]]:
    """The objects of an answer: itself, or the objects in its list."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]


def _at(at: str, answer: object) -> str:
    """The place of the rows; XML becomes a list of rows."""
    return "[]" if not at and isinstance(answer, list) else at


def _notices(reply: Reply) -> list[Finding]:
    found, endpoint = [], _without_ids(reply.endpoint)
    if reply.retirement:
        says = ", ".join(f"{name}: {value}" for name, value in sorted(reply.retirement.items()))
        found.append(Finding(FindingKind.RETIRES, endpoint, "", says))
    if reply.is_gone:
        found.append(Finding(FindingKind.GONE, endpoint, "", "HTTP 410: the endpoint is retired"))
    return found


def is_call(call: str, exchange: Exchange) -> bool:
    """Whether an exchange matches ``Rows.call``.

    The form is ``GET /a/{x}/b`` (``…`` for any prefix, a comma between several paths). Text after ``?`` or
    ``: `` must be part of the call; a single word is the name of an action; words in brackets are comments.
    """
    written = call.partition(" (")[0]
    method, _, paths = written.partition(" ")
    if not paths:
        return re.search(rf"\b{re.escape(method)}\b", exchange.sent) is not None
    return any(_is_path(method, path, exchange) for path in paths.split(", "))


def _is_path(method: str, path: str, exchange: Exchange) -> bool:
    path, _, word = path.partition(": ")
    path, _, query = path.partition("?")
    wished = [one for one in (word, query) if one]
    asked, _, where = exchange.reply.endpoint.partition(" ")
    is_there = _pattern(path).search(where.rstrip("/")) is not None
    return asked == method and is_there and all(one in exchange.sent for one in wished)


@cache
def _pattern(path: str) -> re.Pattern[str]:
    """A regular expression for the end of a called path, from its form in the schema."""
    known = path.rpartition("…")[2].rstrip("/")
    parts = (re.escape(part) for part in re.split(r"\{[^}]*\}", known))
    return re.compile("[^/]+".join(parts) + "$")
