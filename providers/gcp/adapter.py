"""The Google Cloud adapter: prices joined with machine types and calendar advice; orders and leases.

``reserve`` means: a future reservation in calendar mode for a ``window`` offer, a reservation for
``on_demand`` (billed used or not; instances are started into it), one instance for ``spot`` and for
flex-start (a ``window`` that begins when capacity appears). Names are the
tags and every order carries a request id made of its tag, so that the same order twice buys once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.domain.basics.errors import (
    CredentialsRejected,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ReleaseRefused,
)
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.holding.seller_network import EVERY_REGION, NetworkRules
from broker.domain.market.offer import Offer, OfferBatch, RejectedRow, Tier
from broker.provider_facts import load_provider_facts
from broker.together import all_or_none
from providers.client import Entry, Seller, found_again, tells_all_or_fails
from providers.gcp import leases, networks
from providers.gcp.calendar import Question, parse_advice, priced_again, questions
from providers.gcp.compute import Compute, NameTaken, OperationPage, request_id
from providers.gcp.flex import flex_parts, is_flex, parse_flex
from providers.gcp.machines import Machine, card_shares, machine_rows, parse_machines, read_machine
from providers.gcp.prices import PROVIDER, SERVICE, Rates
from providers.http import Operation
from providers.network_setup import NetworkSetup, NetworkStep
from providers.payload import RowRejected, join_batches

MOST_PAGES = 100
GPU_TYPES = 'name eq "(a2|a3|a4|a4x|g2|g4)-.*"'
"""Filter of machineTypes.aggregatedList: the accelerator-optimized series."""
DEFAULT_NETWORK = "global/networks/default"
"""Google makes it with a new project, unless an organisation forbids that."""
GONE_STATES = frozenset({LeaseState.ENDED, LeaseState.FAILED})


@dataclass(frozen=True, slots=True)
class GcpOptions:
    """Settings of the adapter.

    ``billing_url``: host of the price list. ``api_key``: used for the price list in place of the token.
    ``price_max_age_s``: how long the price list (tens of megabytes) is valid.
    """

    billing_url: str
    api_key: str
    regions: frozenset[str]
    image: str
    network: str
    price_max_age_s: float


def parse_all(
    rates: Rates, machines: Sequence[bytes], advice: Sequence[bytes], observed_at: datetime
) -> OfferBatch:
    """Offers from prices, pages of machine types and calendar advice together."""
    rows = machine_rows(machines)
    sold = parse_machines(rows, rates, observed_at)
    windows = parse_advice(advice, _known_machines(rows), rates, observed_at)
    flex = parse_flex(rows, rates, observed_at)
    return join_batches((OfferBatch((), rates.all_rejected()), sold, flex, windows))


def _known_machines(rows: Sequence[tuple[str, tuple[str, Any]]]) -> dict[str, Machine]:
    facts, shares = load_provider_facts(PROVIDER), card_shares(rows)
    found: dict[str, Machine] = {}
    for _, (_, row) in rows:
        try:
            machine = read_machine(row, facts, shares)
        except (RowRejected, ValueError):
            continue
        found.setdefault(machine.sku.name, machine)
    return found


class Gcp(Seller, NetworkSetup):
    """One project."""

    provider = PROVIDER
    idempotency = Idempotency.TOKEN
    network_setting = "BROKER_GCP_NETWORK"

    def __init__(self, compute: Compute, options: GcpOptions) -> None:
        self._compute, self._options = compute, options
        self.names_network = bool(options.network)
        self._search = load_provider_facts(PROVIDER).search["calendar"]
        self._prices: tuple[datetime, Rates] | None = None

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._compute.http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every zone's machine types at list prices, and the windows of the calendar."""
        rates = await self._price_list(observed_at)
        pages = await self._compute.pages("aggregated/machineTypes", Operation.OFFERS, {"filter": GPU_TYPES})
        advice, unasked = await self._advice(observed_at)
        batch = parse_all(rates, [page.body for page in pages], advice, observed_at)
        return OfferBatch(batch.offers, (*batch.rejected, *unasked))

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """The offer from price list and machine types; a calendar window is not requested, only priced."""
        rates = await self._price_list(asked_at)
        pages = await self._compute.pages("aggregated/machineTypes", Operation.OFFERS, {"filter": GPU_TYPES})
        bodies = [page.body for page in pages]
        if offer.tier is Tier.WINDOW and not is_flex(offer):
            machine = _known_machines(machine_rows(bodies)).get(offer.reference["machine_type"])
            return None if machine is None else priced_again(offer, machine, rates)
        return found_again(offer, parse_all(rates, bodies, [], asked_at))

    async def _price_list(self, observed_at: datetime) -> Rates:
        if self._prices is not None:
            age_s = (observed_at - self._prices[0]).total_seconds()
            if 0 <= age_s < self._options.price_max_age_s:
                return self._prices[1]
        rates, token = Rates(), ""
        for _ in range(MOST_PAGES):
            token = rates.feed(await self._price_page(token))
            if not token:
                self._prices = (observed_at, rates)
                return rates
        raise PayloadUnreadable(PROVIDER, f"more than {MOST_PAGES} pages of SKUs")

    async def _price_page(self, token: str) -> bytes:
        url = f"{self._options.billing_url}/v1/services/{SERVICE}/skus"
        params = {"pageSize": "5000", "currencyCode": "USD", **({"pageToken": token} if token else {})}
        if not self._options.api_key:
            return (await self._compute.call("GET", url, Operation.OFFERS, params=params)).body
        headers = {"X-Goog-Api-Key": self._options.api_key}
        reply = await self._compute.http.request(
            "GET", url, operation=Operation.OFFERS, params=params, headers=headers
        )
        return reply.body

    async def _advice(self, observed_at: datetime) -> tuple[list[bytes], list[RejectedRow]]:
        """The answers to the configured questions, and the questions without an answer."""
        asked = questions(self._search, self._options.regions)
        most = int(self._search["max_calls"])
        answers = await all_or_none(self._ask(question, observed_at) for question in asked[:most])
        found = [answer for answer in answers if isinstance(answer, bytes)]
        unasked = [answer for answer in answers if isinstance(answer, RejectedRow)]
        unasked += [
            RejectedRow(str(question), "not requested: the call limit of a poll was reached")
            for question in asked[most:]
        ]
        return found, unasked

    async def _ask(self, question: Question, observed_at: datetime) -> bytes | RejectedRow:
        path = f"regions/{question.region}/advice/calendarMode"
        body = question.body(observed_at, self._search)
        try:
            reply = await self._compute.call("POST", path, Operation.OFFERS, repeatable=True, json=body)
        except (CredentialsRejected, PayloadUnreadable) as error:
            return RejectedRow(str(question), str(error).removeprefix(f"{PROVIDER}: ")[:200])
        return reply.body

    def entry_of(self, offer: Offer) -> Entry:
        """Spot and flex-start are machines; all else is capacity for instances of the project's own."""
        return Entry.KEYS if self.runs_script(offer) else Entry.OWN

    def runs_script(self, offer: Offer) -> bool:
        """Spot and flex-start instances do."""
        return offer.tier is Tier.SPOT or is_flex(offer)

    def network_regions(self) -> tuple[str, ...]:
        """One network serves every region."""
        return (EVERY_REGION,)

    def network_steps(self, region: str, rules: NetworkRules) -> Sequence[NetworkStep]:
        """A network with subnets in every region, and a firewall rule."""
        return networks.ProjectNetwork(self._compute, rules).steps()

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One spot or flex-start instance per call; any number in reservations and calendar windows."""
        return 1 if offer.tier is Tier.SPOT or is_flex(offer) else None

    async def reserve(self, order: Order) -> Lease:
        """Asks for one window, makes one reservation, or one spot or flex-start instance."""
        zone = order.offer.reference["zone"]
        kind, body = self._what(order, zone)
        name = leases.resource_name(order.tag)
        params = {"requestId": request_id(order.tag, "create")}
        try:
            reply = await self._compute.call(
                "POST", f"zones/{zone}/{kind}", Operation.ORDER, repeatable=False, params=params, json=body
            )
            await self._compute.settled(reply, zone, Operation.ORDER)
        except NameTaken:
            return await self._ordered_before(zone, kind, name)
        return Lease(
            provider=PROVIDER,
            reference=leases.reference(zone, kind, name),
            state=LeaseState.PROVISIONING,
            tag=order.tag,
            nodes=order.nodes,
            sku=order.offer.sku.name,
            region=order.offer.region,
            window=order.window if kind == leases.FUTURE else None,
        )

    async def _ordered_before(self, zone: str, kind: str, name: str) -> Lease:
        """What an earlier attempt of the order created; OutcomeUnknown when that cannot be read."""
        try:
            return await self._find(zone, kind, name)
        except ProviderError as error:
            message = f"the name {name} is taken, and what has it cannot be read"
            raise OutcomeUnknown(PROVIDER, message) from error

    def _what(self, order: Order, zone: str) -> tuple[str, dict[str, Any]]:
        image = self._options.image
        network = self._options.network or order.network.get(networks.NETWORK) or DEFAULT_NETWORK
        if is_flex(order.offer):
            return leases.INSTANCE, leases.instance_body(order, zone, image, network, flex_parts(order))
        if order.offer.tier is Tier.WINDOW:
            return leases.FUTURE, leases.future_body(order)
        if order.offer.tier is Tier.ON_DEMAND:
            return leases.HELD, leases.held_body(order)
        if order.offer.tier is Tier.SPOT and order.nodes == 1:
            body = leases.instance_body(order, zone, image, network, leases.SPOT_PARTS)
            return leases.INSTANCE, body
        raise OrderRejected(PROVIDER, f"cannot order {order.nodes} nodes of tier {order.offer.tier}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """A future reservation, reservation or instance by its partial URL."""
        parts = leases.parted(reference)
        if parts is None:
            raise LeaseNotFound(PROVIDER, f"{reference[:80]!r} is no reference of ours")
        try:
            return await self._find(*parts)
        except LeaseNotFound:
            failed = await self._failed_order(*parts)
            if failed is None:
                raise
            return failed

    async def _find(self, zone: str, kind: str, name: str) -> Lease:
        reply = await self._compute.call("GET", f"zones/{zone}/{kind}/{name}", Operation.LEASES)
        project = self._compute.project
        if kind == leases.FUTURE:
            return leases.future_lease(reply.read(leases.FutureReservation), reply.answered_at, project)
        if kind == leases.HELD:
            return leases.held_lease(reply.read(leases.Reservation), project)
        return leases.instance_lease(reply.read(leases.Instance), project)

    async def _failed_order(self, zone: str, kind: str, name: str) -> Lease | None:
        """The error of a missing resource's order, when its operation failed after it was accepted."""
        params = {"filter": f'targetLink eq ".*/{kind}/{name}"'}
        for page in await self._compute.pages(f"zones/{zone}/operations", Operation.LEASES, params):
            for change in page.read(OperationPage).items:
                if change.operationType == "insert" and change.problem is not None:
                    detail = f"{change.problem.code}: {change.problem.message}"[:300]
                    return Lease(
                        PROVIDER,
                        leases.reference(zone, kind, name),
                        LeaseState.FAILED,
                        region=zone.rpartition("-")[0],
                        detail=detail,
                    )
        return None

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Everything held in the project; a reservation of a calendar window is counted once."""
        pages = {
            kind: await self._compute.pages(f"aggregated/{kind}", Operation.LEASES) for kind in leases.KINDS
        }
        scopes = {kind: [scope for page in pages[kind] for scope in leases.scopes_of(page)] for kind in pages}
        futures = [row for scope in scopes[leases.FUTURE] for row in scope.futureReservations]
        made = {(row.zone.rpartition("/")[2], row.reservationName) for row in futures}
        made |= {_zone_and_name(url) for row in futures for url in row.status.autoCreatedReservations}
        held = [
            row
            for scope in scopes[leases.HELD]
            for row in scope.reservations
            if (row.zone.rpartition("/")[2], row.name) not in made
        ]
        instances = [row for scope in scopes[leases.INSTANCE] for row in scope.instances]
        now, project = pages[leases.FUTURE][0].answered_at, self._compute.project
        return (
            *(leases.future_lease(row, now, project) for row in futures),
            *(leases.held_lease(row, project) for row in held),
            *(leases.instance_lease(row, project) for row in instances),
        )

    async def release(self, lease: Lease) -> None:
        """Deletes the resource.

        A window is cancelled first, which Google may refuse once it is locked.
        """
        parts = leases.parted(lease.reference)
        if parts is None:
            return
        zone, kind, name = parts
        path = f"zones/{zone}/{kind}/{name}"
        try:
            if kind == leases.FUTURE:
                await self._cancel(zone, name)
            await self._compute.call("DELETE", path, Operation.RELEASE, repeatable=True)
        except LeaseNotFound:
            return

    async def _cancel(self, zone: str, name: str) -> None:
        """Cancels a window that has not begun; one that is over or was declined needs no cancelling."""
        held = await self._find(zone, leases.FUTURE, name)
        if held.state in GONE_STATES:
            return
        path = f"zones/{zone}/{leases.FUTURE}/{name}/cancel"
        try:
            reply = await self._compute.call("POST", path, Operation.RELEASE, repeatable=True)
            await self._compute.settled(reply, zone, Operation.RELEASE)
        except (OrderRejected, ReleaseRefused) as error:
            forever = held.detail in leases.LOCKED
            raise ReleaseRefused(PROVIDER, f"{held.detail}: {error}", forever=forever) from error


def _zone_and_name(url: str) -> tuple[str, str]:
    """(zone, name) of ``…/zones/Z/reservations/NAME``."""
    parts = url.split("/")
    return (parts[-3], parts[-1]) if len(parts) >= 4 else ("", url)
