"""Amazon Web Services: EC2 GPU instances on demand, on spot, and in windows of four kinds.

Sold: ``on_demand`` (bulk price list, unsigned CSV, USD per instance-hour), ``spot`` (signed XML, one
price a zone) and ``window``: Capacity Blocks and SageMaker training plans (fixed windows for a fee paid up
front), and capacity reservations that start later (asked for, at the on-demand price). A capacity reservation
from now on is what an ``on_demand`` offer buys. Not said: stock (the create call is the probe), spot
interruptions, and nearly everything about the machine, which is why ``config/providers/aws.toml`` holds the
instance types; GPU types it does not know are rejected.

Environment: ``BROKER_AWS_ACCESS_KEY_ID``, ``BROKER_AWS_SECRET_ACCESS_KEY``, and with a temporary key
``BROKER_AWS_SESSION_TOKEN``; ``BROKER_AWS_REGIONS`` (comma-separated); ``BROKER_AWS_IMAGE_ID`` (what a
spot instance boots: an AMI id, or ``resolve:ssm:`` and the name of a public parameter),
``BROKER_AWS_IMAGE_USER`` (who logs in there), ``BROKER_AWS_SECURITY_GROUPS`` (ids of those that a spot
instance joins; default: the one that ``broker providers setup aws`` made in its region, else that of the VPC,
which lets in nobody from outside);
``BROKER_AWS_TRAINING_PLANS`` (what training plans are asked for: ``hyperpod-cluster``, ``training-job`` …, or
``none`` for an account without SageMaker); ``BROKER_AWS_PRICE_LIST_MAX_AGE_S`` (how long a region's price
list, hundreds of megabytes, counts as current); ``BROKER_AWS_BASE_URL`` takes the place of all of AWS's
hosts. Without keys only the price lists can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.holding.reservation import Idempotency
from broker.domain.market.offer import OfferBatch, RejectedRow
from broker.provider_facts import load_provider_facts
from providers.aws import blocks, plans, spot
from providers.aws.adapter import AwsAdapter, AwsClients, AwsOptions
from providers.aws.blocks import ACTION as BLOCK_ACTION
from providers.aws.blocks import parse_blocks
from providers.aws.ec2 import REAL_ROOT, Ec2
from providers.aws.errors import classify
from providers.aws.nodes import PROVIDER
from providers.aws.plan_client import TrainingPlanClient
from providers.aws.price_lists import PriceLists
from providers.aws.prices import parse_price_list
from providers.aws.query import Node, parse_xml
from providers.aws.reservations import SpotMachine
from providers.aws.sagemaker import SageMaker
from providers.aws.signing import AwsKeys
from providers.aws.spot import ACTION as SPOT_ACTION
from providers.aws.spot import parse_spot
from providers.http import HttpFactory, HttpPolicy, Operation, is_loopback
from providers.payload import as_dict, decode_json, join_batches
from providers.spec import HOLDING, Capability, NamedPayload, ProviderSettings, ProviderSpec

__all__ = ["SPEC", "build", "parse"]

POLICY = HttpPolicy(interval_s={Operation.OFFERS: 0.05}, concurrency=6)
"""EC2 throttles per action and region, at rates it does not publish; 20 calls a second stay well below."""
LISTS_POLICY = HttpPolicy(concurrency=2, longest_wait_s=120.0)
"""Two price lists are read at a time, apart from polls, so that a wish to wait may be kept for longer."""
PRICES_ROOT = "https://pricing.us-east-1.amazonaws.com"
DEFAULT_IMAGE = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)


def build(settings: ProviderSettings, http_factory: HttpFactory) -> AwsAdapter:
    """The adapter of one account."""
    http = http_factory(
        PROVIDER, settings.base_url, classify, settings.tuned(POLICY), secrets=settings.secrets
    )
    keys = AwsKeys(
        settings.secret("access_key_id"),
        settings.secret("secret_access_key"),
        settings.secret("session_token") or None,
    )
    sagemaker = SageMaker(http, settings.base_url, keys)
    search = load_provider_facts(PROVIDER).search
    clients = AwsClients(
        Ec2(http, settings.base_url, keys),
        TrainingPlanClient(sagemaker, settings.options["training_plans"], search),
        _price_lists(settings, http_factory),
    )
    machine = SpotMachine(
        settings.options["image_id"],
        settings.options["image_user"],
        _names(settings.options["security_groups"]),
    )
    options = AwsOptions(_names(settings.options["regions"]), machine, settings.keyless)
    adapter = AwsAdapter(http, clients, options)
    adapter.set_access(settings)
    return adapter


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _price_lists(settings: ProviderSettings, http_factory: HttpFactory) -> PriceLists:
    """A client of its own for the price host.

    Its long downloads never delay calls to EC2, and it has a circuit breaker of its own.
    """
    root = PRICES_ROOT if settings.base_url == REAL_ROOT else settings.base_url
    is_test_market = settings.sandbox or is_loopback(settings.base_url)
    max_age_s = 0.0 if is_test_market else float(settings.options["price_list_max_age_s"])
    http = http_factory(PROVIDER, root, classify, settings.tuned(LISTS_POLICY), secrets=settings.secrets)
    return PriceLists(http, max_age_s)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers by content: price lists (CSV), spot and block searches (XML), plan searches (JSON)."""
    pages: dict[str, list[Node]] = {f"{SPOT_ACTION}Response": [], f"{BLOCK_ACTION}Response": []}
    found: list[plans.PlanOffering | RejectedRow] = []
    lists: list[OfferBatch] = []
    for name, raw in payloads:
        start = raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if start == b"<":
            root = parse_xml(raw)
            if root.name not in pages:
                raise PayloadUnreadable(PROVIDER, f"{name} is a {root.name}, which sells nothing")
            pages[root.name].append(root)
        elif start == b"{":
            answer = as_dict(PROVIDER, decode_json(PROVIDER, raw), name)
            found += plans.parse_offerings(answer)
        else:
            lines = raw.decode("utf-8", "replace").splitlines()
            lists.append(parse_price_list(lines, observed_at))
    spot_pages, block_pages = pages.values()
    windows = (parse_blocks(block_pages, observed_at), plans.parse_plans(found, observed_at))
    return join_batches((*lists, parse_spot(spot_pages, observed_at), *windows))


SPEC = ProviderSpec(
    name=PROVIDER,
    title="Amazon Web Services",
    base_url=REAL_ROOT,
    credentials={
        "access_key_id": "id of an IAM access key",
        "secret_access_key": "its secret",
    },
    optional_credentials={"session_token": "token of a temporary access key"},
    options={
        "regions": "us-east-1,us-east-2,us-west-2",
        "image_id": DEFAULT_IMAGE,
        "image_user": "ubuntu",
        "security_groups": "",
        "training_plans": "hyperpod-cluster",
        "price_list_max_age_s": "21600",
    },
    capabilities=HOLDING | {Capability.MULTI_NODE, Capability.SPOT, Capability.WINDOWS, Capability.DRY_RUN},
    idempotency=Idempotency.TAG,
    adapter=AwsAdapter,
    build=build,
    parse=parse,
    rows=(spot.ROWS, blocks.ROWS, plans.ROWS),
    keyless=True,
)
