"""Microsoft Azure: GPU virtual machines on demand, on spot, and in reserved windows.

Sold: ``on_demand`` and ``spot`` sizes (Retail Prices API, no key: dollars per VM and hour, of the whole
VM), and two kinds of ``window``: Block reservations (whole days from 12:00 UTC, at most 56 days ahead) and
Future reservations (open-ended from a date, committed to for the window). On demand is a Targeted capacity
reservation where the size allows one (billed used or not), else, like spot, a scale set, whose VMs share
one InfiniBand fabric. With credentials, ``Microsoft.Compute/skus`` tells which sizes the subscription may
have and which reservations they take; without them ``config/providers/azure.toml`` does. Not said: stock (the
order is the probe), the GPU and the rest of the machine (there, too), the price of a Block (taken as the
size's own rate), interruptions. Prices in another currency are for reference only, Azure says; the table's
rate turns them into dollars.

Unverified: that the price list knows ``contains`` (``eq``, ``and`` and ``or`` are its published operators;
public callers use it), when and how a Block is billed, the hour at which a Future reservation starts (its
examples show 12:00), and which error code refuses the deletion of a Block (its state decides here).
A count that a Block does not sell (1, 2, 4 … 64 are sold) is refused when it is ordered.

Environment: ``BROKER_AZURE_TENANT_ID``, ``…_SUBSCRIPTION_ID``, ``…_CLIENT_ID``, ``…_CLIENT_SECRET`` (an app
registration that may manage the resource group, read the subscription's sizes and validate deployments);
``…_RESOURCE_GROUP`` (default ``broker``, which must exist); ``…_REGIONS`` (comma-separated; default all),
``…_CURRENCY``; ``…_SIZES_MAX_AGE_S`` (how long a region's sizes count as current); for scale sets ``…_IMAGE``
(publisher:offer:sku:version), ``…_SUBNET`` (network/subnet; default: the one that ``broker providers
setup azure`` made in the region) and ``…_SSH_PUBLIC_KEY`` (for orders without a key of their own);
``…_LOGIN_URL`` and ``…_PRICES_URL`` (the other two hosts: where ``…_BASE_URL`` is not Azure's own, it takes
their place).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from broker.domain.holding.reservation import Idempotency
from broker.domain.market.offer import OfferBatch
from providers.azure import prices, sizes
from providers.azure.adapter import Azure, AzureOptions
from providers.azure.arm import Arm, classify
from providers.azure.prices import Hold, parse_rows, read_page
from providers.azure.scale_sets import Machine
from providers.azure.windows import PROVIDER
from providers.http import HttpFactory, HttpPolicy, Operation, is_loopback
from providers.spec import HOLDING, Capability, NamedPayload, Need, ProviderSettings, ProviderSpec

__all__ = ["SPEC", "build", "parse"]

BASE_URL = "https://management.azure.com"
LOGIN_URL = "https://login.microsoftonline.com"
PRICES_URL = "https://prices.azure.com"
STANDING_SUBNET = "broker/default"
"""The subnet that a test market has in every region."""
POLICY = HttpPolicy(
    interval_s={
        Operation.OFFERS: 0.2,
        Operation.LEASES: 0.05,
        Operation.ORDER: 0.5,
        Operation.RELEASE: 0.35,
    },
    read_s=60.0,
)
"""Compute allows 125 new scale sets and 175 deletions a minute and region ("Compute throttling limits");
the price list publishes no limit but answers 429."""


def build(settings: ProviderSettings, http_factory: HttpFactory) -> Azure:
    """The adapter of one resource group; without credentials only its prices can be read."""
    http = http_factory(
        PROVIDER, settings.base_url, classify, settings.tuned(POLICY), secrets=settings.secrets
    )
    names = ("tenant_id", "subscription_id", "client_id", "client_secret")
    credentials = {name: settings.secret(name) for name in names}
    options = settings.options
    is_test_market = settings.sandbox or is_loopback(settings.base_url)
    arm = Arm(http, _host(settings, "login_url", LOGIN_URL), credentials, options["resource_group"])
    adapter = Azure(
        http,
        arm,
        AzureOptions(
            prices_url=_host(settings, "prices_url", PRICES_URL),
            currency=options["currency"],
            regions=tuple(name.strip().lower() for name in options["regions"].split(",") if name.strip()),
            machine=Machine(
                options["image"],
                options["subnet"],
                options["ssh_public_key"],
                standing_subnet=STANDING_SUBNET if is_test_market else "",
            ),
            sizes_max_age=timedelta(seconds=0.0 if is_test_market else float(options["sizes_max_age_s"])),
            keyless=settings.keyless,
        ),
    )
    adapter.set_access(settings)
    return adapter


def _host(settings: ProviderSettings, option: str, real: str) -> str:
    """The option's host; else Azure's own host, or the base URL that replaces it."""
    return (
        settings.options[option] or (real if settings.base_url == BASE_URL else settings.base_url)
    ).rstrip("/")


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded pages of the price list."""
    return parse_rows([row for _, raw in payloads for row in read_page(raw).rows], observed_at)


SPEC = ProviderSpec(
    name=PROVIDER,
    title="Microsoft Azure",
    base_url=BASE_URL,
    credentials={
        "tenant_id": "the directory's id",
        "subscription_id": "the subscription's id",
        "client_id": "an app registration's id",
        "client_secret": "its secret",
    },
    options={
        "resource_group": "broker",
        "regions": "",
        "currency": "USD",
        "image": "microsoft-dsvm:ubuntu-hpc:2204:latest",
        "subnet": "",
        "ssh_public_key": "",
        "sizes_max_age_s": "21600",
        "login_url": "",
        "prices_url": "",
    },
    capabilities=HOLDING | {Capability.MULTI_NODE, Capability.SPOT, Capability.WINDOWS, Capability.DRY_RUN},
    idempotency=Idempotency.TOKEN,
    adapter=Azure,
    build=build,
    parse=parse,
    rows=(prices.ROWS, sizes.ROWS),
    needs=(
        Need(
            ("ssh_public_key",),
            "a public SSH key, as in an authorized_keys file; spot, and what takes no capacity reservation,"
            " boots with it",
            "ssh-rsa AAAA",
            in_order=True,
            only=lambda offer: offer.reference.get("hold") == Hold.SCALE_SET,
        ),
    ),
    keyless=True,
)
