"""Google Cloud: Compute Engine GPU machines on demand, on spot, as calendar-mode windows, and flex-start.

Sold: ``on_demand`` (a reservation, billed used or not), ``spot`` (one instance) and ``window`` (a future
reservation in calendar mode, which Google approves or declines; or flex-start, one instance that begins when
capacity appears within a requested wait and runs for a bought time, ``providers/gcp/flex.py``). On the wire:
prices of parts (GPU, core, GiB of memory) in whole dollars and nanos per hour, summed to a node by its
machine type; memory in MiB.
Not said: stock (the create call is the probe, and its answer of HTTP 200 is an operation that may still
fail), spot interruptions, networks between nodes (``config/providers/gcp.toml``), and the local SSD of a3
and a4 types, which is billed apart.

Not verified against the live service: the least lead time of a window (87 h), until when it can be
cancelled (before its lock is assumed), how long a request id is remembered (the name guards besides), the
words of some calendar-mode and flex-start SKUs (unknown words are reported as rejected), the least and
longest wait of a flex-start request, and what becomes of the record of one that lapsed.

Environment: ``BROKER_GCP_CREDENTIALS`` (a service account's JSON key, the path of its ``.json`` file, or an
access token); ``BROKER_GCP_API_KEY`` (asks the price list, in place of the token);
``BROKER_GCP_PROJECT`` (default: the key's own), ``BROKER_GCP_REGIONS`` (comma-separated: where windows are
looked for; default: the whole menu of the configuration), ``BROKER_GCP_IMAGE`` and ``BROKER_GCP_NETWORK``
(what a spot instance boots from and joins; default: the network that ``broker providers setup gcp`` made,
else the project's ``default``; keys and scripts need an image with Google's guest agent),
``BROKER_GCP_PRICE_MAX_AGE_S``, ``BROKER_GCP_BILLING_URL`` and
``BROKER_GCP_TOKEN_URL`` (other hosts). ``BROKER_GCP_BASE_URL`` takes the place of all hosts that are not set.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.holding.reservation import Idempotency
from broker.domain.market.offer import OfferBatch
from providers.gcp import calendar, machines, prices
from providers.gcp.adapter import Gcp, GcpOptions, parse_all
from providers.gcp.auth import ServiceAccount, TokenSource, read_credentials
from providers.gcp.compute import REAL_ROOT, Compute, classify
from providers.gcp.prices import PROVIDER, parse_catalogue
from providers.http import HttpFactory, HttpPolicy, Operation, is_loopback
from providers.payload import as_dict, decode_json
from providers.spec import HOLDING, Capability, NamedPayload, Need, ProviderSettings, ProviderSpec

__all__ = ["SPEC", "build", "parse"]

POLICY = HttpPolicy(interval_s={Operation.OFFERS: 0.05}, concurrency=6)
"""Compute Engine allows 1,500 reads a minute and region to a project; 20 a second stay below."""
BILLING_ROOT = "https://cloudbilling.googleapis.com"
TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105  an address


def build(settings: ProviderSettings, http_factory: HttpFactory) -> Gcp:
    """The adapter of one project. Raises InputError for a key that cannot be read."""
    http = http_factory(
        PROVIDER, settings.base_url, classify, settings.tuned(POLICY), secrets=settings.secrets
    )
    credentials = read_credentials(settings.secret("credentials"))
    own_project = _own_project(settings)
    tokens = TokenSource(http, credentials, _host(settings, "token_url", TOKEN_URL, "/token"))
    project = settings.options["project"] or own_project
    is_test_market = settings.sandbox or is_loopback(settings.base_url)
    options = GcpOptions(
        billing_url=_host(settings, "billing_url", BILLING_ROOT, ""),
        api_key=settings.secret("api_key"),
        regions=frozenset(name.strip() for name in settings.options["regions"].split(",") if name.strip()),
        image=settings.options["image"],
        network=settings.options["network"],
        price_max_age_s=0.0 if is_test_market else float(settings.options["price_max_age_s"]),
    )
    adapter = Gcp(Compute(http, tokens, project), options)
    adapter.set_access(settings)
    return adapter


def _own_project(settings: ProviderSettings) -> str:
    """The project that the service account's key names; an access token names none."""
    credentials = read_credentials(settings.secret("credentials"))
    return credentials.project_id if isinstance(credentials, ServiceAccount) else ""


def _host(settings: ProviderSettings, option: str, real: str, path: str) -> str:
    """The option's host; else Google's own host, or a path below the base URL that replaces it."""
    wished = settings.options[option]
    if wished != real or settings.base_url == REAL_ROOT:
        return wished.rstrip("/")
    return f"{settings.base_url}{path}"


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers, told apart by content: pages of SKUs, of machine types, and calendar advice."""
    found: dict[str, list[bytes]] = {"skus": [], "items": [], "recommendations": []}
    for name, raw in payloads:
        body = as_dict(PROVIDER, decode_json(PROVIDER, raw), name)
        kind = next((key for key in found if key in body), None)
        if kind is None:
            raise PayloadUnreadable(PROVIDER, f"{name} holds no SKUs, machine types or recommendations")
        found[kind].append(raw)
    return parse_all(parse_catalogue(found["skus"]), found["items"], found["recommendations"], observed_at)


SPEC = ProviderSpec(
    name=PROVIDER,
    title="Google Cloud",
    base_url=REAL_ROOT,
    credentials={"credentials": "JSON key of a service account, the path of its file, or an access token"},
    optional_credentials={"api_key": "an API key for the price list"},
    options={
        "project": "",
        "regions": "",
        "image": "projects/debian-cloud/global/images/family/debian-12",
        "network": "",
        "price_max_age_s": "21600",
        "billing_url": BILLING_ROOT,
        "token_url": TOKEN_URL,
    },
    needs=(
        Need(
            ("project",),
            "id of the project that pays; an access token names none",
            "broker",
            is_met=lambda settings: bool(_own_project(settings)),
        ),
    ),
    capabilities=HOLDING | {Capability.MULTI_NODE, Capability.SPOT, Capability.WINDOWS},
    idempotency=Idempotency.TOKEN,
    adapter=Gcp,
    build=build,
    parse=parse,
    rows=(prices.ROWS, machines.ROWS, calendar.ROWS),
)
