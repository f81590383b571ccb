"""Planning instances drawn by seed: scarce dense capacity, so that cheapest-first is not a plan.

Prices are drawn from ranges of 2026 price lists (``fixtures/market/SOURCE.md``), not quoted.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import (
    HostKind,
    NativePrice,
    Offer,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, FabricKind, Form, GpuVendor, IntraNode, LinkKind, Sku
from broker.domain.planning.workload import (
    PlanRequest,
    Policy,
    Precision,
    Redundancy,
    Serving,
    Slo,
    Training,
    Workload,
)
from broker.domain.workloads.gpu_rules import GpuRules
from broker.domain.workloads.traffic import Traffic, TrafficShape

START = datetime(2026, 11, 23, tzinfo=UTC)
DAYS = 30


@dataclass(frozen=True, slots=True)
class Size:
    """Runs, services and offers of an instance."""

    runs: int
    services: int
    offers: int


SIZES = {
    "small": Size(2, 2, 1_000),
    "XS": Size(20, 20, 5_000),
    "S": Size(100, 100, 5_000),
    "M": Size(500, 500, 20_000),
    "L": Size(1_000, 1_000, 50_000),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A node type: GPUs, link, fabric (Gbit/s a node, 0: none) and a range of USD per GPU-hour."""

    gpu: str
    gpus: int
    link: LinkKind
    link_gbyte_s: float
    fabric_gbit_s: float
    low_usd: float
    high_usd: float
    weight: float


KINDS = (
    Kind("H100-SXM-80GB", 8, LinkKind.NVLINK, 900, 3200, 1.9, 9.0, 0.20),
    Kind("H200-SXM-141GB", 8, LinkKind.NVLINK, 900, 3200, 2.4, 9.5, 0.10),
    Kind("B200-SXM-180GB", 8, LinkKind.NVLINK, 1800, 3200, 3.6, 14.0, 0.07),
    Kind("MI300X-192GB", 8, LinkKind.XGMI, 896, 3200, 1.6, 6.0, 0.05),
    Kind("A100-SXM-80GB", 8, LinkKind.NVLINK, 600, 1600, 0.8, 4.0, 0.16),
    Kind("L40S", 8, LinkKind.PCIE, 64, 0, 0.5, 2.0, 0.14),
    Kind("L40S", 1, LinkKind.PCIE, 64, 0, 0.5, 2.0, 0.08),
    Kind("H100-SXM-80GB", 1, LinkKind.NVLINK, 900, 0, 1.9, 4.0, 0.08),
    Kind("RTX-6000-Ada", 4, LinkKind.PCIE, 64, 0, 0.5, 1.4, 0.06),
    Kind("L4", 4, LinkKind.PCIE, 64, 0, 0.2, 0.8, 0.06),
)
PLACES = (
    ("us-east", "US"),
    ("us-west", "US"),
    ("ca-east", "CA"),
    ("eu-west", "IE"),
    ("eu-central", "DE"),
    ("eu-north", "FI"),
    ("ap-south", "IN"),
    ("ap-northeast", "JP"),
)
TIER_WEIGHTS = {Tier.ON_DEMAND: 50, Tier.SPOT: 22, Tier.WINDOW: 14, Tier.COMMITTED: 14}
DISCOUNT = {
    Tier.ON_DEMAND: (1.0, 1.0),
    Tier.SPOT: (0.35, 0.65),
    Tier.WINDOW: (0.75, 0.95),
    Tier.COMMITTED: (0.55, 0.75),
}
TRAINED = (
    ("Llama-3.1-8B", 2e9, 2e11),
    ("Qwen3-14B", 1e9, 8e10),
    ("Llama-3.1-70B", 5e8, 2e10),
    ("Mistral-7B", 5e8, 1e11),
)
SERVED = (("Llama-3.1-8B", 8, 60), ("Llama-3.1-70B", 2, 40), ("Qwen3-32B", 2, 40), ("Mistral-7B", 8, 60))


def make_offers(rng: random.Random, count: int) -> tuple[Offer, ...]:
    """``count`` offers of 16 providers."""
    providers = {f"provider-{i:02d}": math.exp(rng.gauss(0, 0.25)) for i in range(16)}
    return tuple(_offer(rng, providers, i) for i in range(count))


def _offer(rng: random.Random, providers: dict[str, float], index: int) -> Offer:
    kind = rng.choices(KINDS, [k.weight for k in KINDS])[0]
    provider = rng.choice(sorted(providers))
    region, country = rng.choice(PLACES)
    tier = rng.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
    if tier is Tier.WINDOW and not kind.fabric_gbit_s:
        tier = Tier.ON_DEMAND
    middle = math.sqrt(kind.low_usd * kind.high_usd) * providers[provider] * math.exp(rng.gauss(0, 0.2))
    per_gpu = min(kind.high_usd, max(kind.low_usd, middle)) * rng.uniform(*DISCOUNT[tier])
    price = Decimal(f"{per_gpu * kind.gpus:.4f}")
    nodes = max(1, min(64, round(math.exp(rng.gauss(1.5, 1.0)))))
    window, upfront = _window(rng, tier, price, nodes)
    fabric = Fabric(FabricKind.INFINIBAND, kind.fabric_gbit_s, 64) if kind.fabric_gbit_s else None
    form = Form.BARE_METAL if fabric is not None and rng.random() < 0.6 else Form.VM
    memory = load_gpus()[kind.gpu].memory_gb
    link = IntraNode(kind.link, kind.link_gbyte_s)
    return Offer(
        offer_id=f"{provider}/{region}/{index}",
        provider=provider,
        sku=Sku(
            f"{kind.gpu}-x{kind.gpus}", kind.gpu, kind.gpus, memory, form=form, intra_node=link, fabric=fabric
        ),
        region=region,
        zone=f"{region}-{rng.choice('abc')}",
        country=country,
        tier=tier,
        price_usd_per_node_hour=price,
        upfront_usd=upfront,
        min_hours=float(rng.choice((168, 720))) if tier is Tier.COMMITTED else 0.0,
        observed_at=START,
        source="drawn",
        host=HostKind.DATACENTER,
        native=NativePrice(price, "USD", "node_hour"),
        window=window,
        stock=Stock(StockLevel.MEDIUM, nodes),
        interruptions_per_hour=rng.uniform(0.002, 0.05) if tier is Tier.SPOT else None,
    )


def _window(
    rng: random.Random, tier: Tier, price: Decimal, nodes: int
) -> tuple[WindowTerms | None, Decimal | None]:
    if tier is not Tier.WINDOW:
        return None, None
    days = rng.choice((1, 2, 3, 5, 7, 10, 14))
    begin = START + timedelta(days=rng.randint(0, DAYS - days - 1), hours=11.5)
    terms = WindowTerms(WindowKind.LISTED, (Segment(begin, begin + timedelta(days=days), nodes),))
    return terms, price * 24 * days * nodes


def make_request(rng: random.Random, size: Size) -> PlanRequest:
    """Runs with soft deadlines and services with daily rhythms; all may be left out for a price."""
    workloads: list[Workload] = [_run(rng, i) for i in range(size.runs)]
    workloads.extend(_service(rng, i) for i in range(size.services))
    policy = Policy(gpus=GpuRules(vendor=(GpuVendor.NVIDIA, GpuVendor.AMD)))
    return PlanRequest("bench", Window(START, START + timedelta(days=DAYS)), tuple(workloads), policy=policy)


def _policy(rng: random.Random, share: float) -> Policy:
    if rng.random() >= share:
        return Policy()
    return Policy(countries=rng.choice((("US", "CA"), ("IE", "DE", "FI"), ("IN", "JP"))))


def _run(rng: random.Random, index: int) -> Training:
    model, low, high = rng.choice(TRAINED)
    tokens = math.exp(rng.uniform(math.log(low), math.log(high)))
    earliest = START + timedelta(hours=round(rng.uniform(0, 0.5 * 24 * DAYS)))
    return Training(
        name=f"run-{index:04d}",
        team="bench",
        model=load_models()[model],
        tokens=tokens,
        sequence_length=8192,
        global_batch_tokens=4.0e6,
        precision=Precision.BF16,
        earliest_start=earliest,
        deadline=min(START + timedelta(days=DAYS), earliest + timedelta(hours=round(rng.uniform(72, 400)))),
        late_usd_per_hour=Decimal(rng.randint(20, 500)),
        interruptible=rng.random() < 0.5,
        unplaced_usd=Decimal(round(tokens / 1e9 * rng.uniform(120, 400))),
        policy=_policy(rng, 0.4),
    )


def _service(rng: random.Random, index: int) -> Serving:
    model, peak, itl_ms = rng.choice(SERVED)
    lengths = (rng.choice((512, 1500, 4000)), rng.choice((150, 300, 600)))
    traffic = Traffic(
        *lengths,
        TrafficShape.DIURNAL,
        peak * math.exp(rng.gauss(0.5, 0.8)),
        trough_share=rng.uniform(0.25, 0.8),
        peak_hour_utc=float(rng.randrange(24)),
    )
    return Serving(
        name=f"service-{index:04d}",
        team="bench",
        model=load_models()[model],
        traffic=traffic,
        slo=Slo(rng.choice((800.0, 1500.0, 3000.0)), float(itl_ms)),
        precisions=rng.choice(((Precision.BF16,), (Precision.BF16, Precision.FP8))),
        redundancy=rng.choice((Redundancy(), Redundancy(2, 1))),
        unplaced_usd=Decimal(round(20_000 * math.exp(rng.gauss(1, 0.5)))),
        policy=_policy(rng, 0.5),
    )
