"""Flex-start: one machine that begins when capacity appears, at most a requested wait after the order.

Ordered as an instance of ``provisioningModel`` FLEX_START with ``maxRunDuration`` and a wait
(``requestValidForDuration``); it waits as PENDING and is deleted at the end of its run. Google promises no
wait: the one that is asked for, and planned with, is the configuration's, an assumption. Several machines are
several requests that begin at different times (a group's resize request could join them), so one is sold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from broker.domain.basics.errors import OrderRejected
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import (
    CancelRule,
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Tier,
    WindowBegin,
    WindowKind,
    WindowTerms,
)
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.gcp.machines import (
    PRICED_AS,
    Machine,
    card_shares,
    read_machine,
    region_of,
    with_boot_disk,
)
from providers.gcp.prices import PROVIDER, SOURCE, Mode, Rates
from providers.payload import RowRejected, with_address

MODEL = "FLEX_START"
START_STEP_HOURS = 0.25
LEAST_WAIT_S = 90
"""The shortest allowed wait of a request (from the command-line reference; unverified)."""


def is_flex(offer: Offer) -> bool:
    """Whether an offer is a flex-start machine."""
    return offer.reference.get("model") == MODEL


def parse_flex(
    rows: Iterable[tuple[str, tuple[str, Any]]], rates: Rates, observed_at: datetime
) -> OfferBatch:
    """Offers of machine types with a flex-start price; parts without one are rejected by name.

    Rows that are no machine are reported by ``machines.parse_machines``.
    """
    facts = load_provider_facts(PROVIDER)
    offers: list[Offer] = []
    rejected: list[RejectedRow] = []
    for name, zone, machine in _machines(list(rows), facts):
        try:
            region = region_of(zone)
            if rates.sells_gpu(Mode.FLEX, region, machine.sku.name):
                offers.append(_offer(zone, region, machine, rates, facts, observed_at))
        except RowRejected as error:
            rejected.append(RejectedRow(f"{name} flex-start", str(error)))
    return OfferBatch(tuple(offers), tuple(rejected))


def _machines(
    rows: Sequence[tuple[str, tuple[str, Any]]], facts: ProviderFacts
) -> Iterator[tuple[str, str, Machine]]:
    shares = card_shares(rows)
    for name, (zone, row) in rows:
        try:
            yield name, zone, read_machine(row, facts, shares)
        except (RowRejected, ValidationError):
            continue


def _offer(
    zone: str, region: str, machine: Machine, rates: Rates, facts: ProviderFacts, observed_at: datetime
) -> Offer:
    usd = machine.usd_per_hour(rates, Mode.FLEX, region)
    search = facts.search["flex"]
    wait_hours = float(search["longest_wait_hours"])
    offer = Offer(
        offer_id=f"{PROVIDER}/flex/{zone}/{machine.sku.name}",
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
        min_hours=facts.billed.min_hours,
        billing_increment_s=facts.billed.increment_s,
        window=WindowTerms(
            kind=WindowKind.REQUEST,
            segments=(),
            step_hours=START_STEP_HOURS,
            durations_hours=tuple(float(hours) for hours in range(1, int(search["most_hours"]) + 1)),
            lead_hours=wait_hours,
            cancel=CancelRule.ANY_TIME,
            node_counts=(1,),
            begins=WindowBegin.WHEN_AVAILABLE,
            longest_wait_hours=wait_hours,
            wait_source=str(search["wait_source"]),
            billed=facts.billed.window_billed("flex"),
        ),
        compliance=facts.compliance,
        reference={"zone": zone, "machine_type": machine.sku.name, "model": MODEL},
    )
    return with_address(with_boot_disk(offer, machine, rates), facts)


def flex_parts(order: Order) -> dict[str, Any]:
    """The fields that make an instance a flex-start request.

    OrderRejected without a window or for several nodes.
    """
    if order.window is None:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} needs a window, and the order has none")
    if order.nodes != 1:
        raise OrderRejected(PROVIDER, f"a flex-start order takes one machine, not {order.nodes}")
    run_s = round(order.window.hours * 3600)
    return {
        "scheduling": {
            "provisioningModel": MODEL,
            "maxRunDuration": {"seconds": str(run_s)},
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
        },
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
        "params": {"requestValidForDuration": {"seconds": str(max(LEAST_WAIT_S, order.wait_s))}},
    }
