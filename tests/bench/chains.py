"""Chains of tasks over equal catalogues, placed by SkyPilot's optimizer (apart) and by this planner.

Both see the same rows: what ``fixtures/market`` recorded on demand of five clouds, each cell again in
invented regions at a price within a fifth of the recorded one, drawn by seed. A task asks for a number of
GPUs of a kind for an hour, as SkyPilot assumes; its catalogues are read before its time counts; tasks hand
no data on, so their order has no price. Here each is a run of that size and of nothing else, stock is
endless, and the plan is proven and checked.
"""

from __future__ import annotations

import csv
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.offer import NativePrice, Offer, Stock, Tier
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import GpuRange, Training
from broker.ports.planning import PlanOptions
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.bench.company import PRICES
from tests.peers_env import run
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, request, training

CLOUDS = {"azure": "Azure", "lambda": "Lambda", "nebius": "Nebius", "oci": "OCI", "verda": "Verda"}
NAMES = {"H100-SXM-80GB": "H100", "L40S": "L40S", "A100-SXM-80GB": "A100-80GB"}
"""Kinds of GPU that tasks ask for, under SkyPilot's names; the others keep ours."""
TASKS = (("H100-SXM-80GB", 8), ("L40S", 1), ("A100-SXM-80GB", 8))
COLUMNS = (
    "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price",
    "SpotPrice", "Region", "AvailabilityZone",
)  # fmt: skip
ROWS_EACH = 2_000
LIMIT_S = 3600.0
LENGTHS = (1, 10, 50)
SEED = 7
ENDLESS_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Costs and CPU seconds of both for one chain."""

    tasks: int
    rows: int
    their_usd: float
    their_cpu_s: float
    our_usd: float
    our_cpu_s: float
    proven: bool


def draw_catalogue(rows_each: int, seed: int = SEED) -> list[Offer]:
    """About ``rows_each`` offers of each cloud, no two of one type in one region."""
    rng = random.Random(f"chains-{seed}")
    with PRICES.open(newline="", encoding="utf-8") as file:
        recorded = [r for r in csv.DictReader(file) if r["tier"] == "on_demand" and r["provider"] in CLOUDS]
    of_cloud: defaultdict[str, dict[tuple[str, str], dict[str, str]]] = defaultdict(dict)
    for row in recorded:
        of_cloud[row["provider"]].setdefault((row["sku"], row["region"]), row)
    found = []
    for cloud, cells in sorted(of_cloud.items()):
        for number in range(max(1, rows_each // len(cells))):
            found += [_offer(cloud, row, number, rng) for row in cells.values()]
    return found


def _offer(cloud: str, row: Mapping[str, str], number: int, rng: random.Random) -> Offer:
    region = f"{row['region'] or 'anywhere'}-x{number}"
    usd = (Decimal(row["price_usd_per_node_hour"]) * Decimal(rng.uniform(0.8, 1.2))).quantize(Decimal("0.01"))
    gpus = int(row["gpus_per_node"])
    sku = Sku(
        row["sku"], row["gpu"], gpus, float(row["gpu_memory_gb"] or 80), vcpus=16 * gpus, memory_gb=128 * gpus
    )
    return Offer(
        offer_id=f"{cloud}/{row['sku']}/{region}",
        provider=cloud,
        sku=sku,
        region=region,
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=usd,
        observed_at=T0,
        source="fixtures/market, widened",
        native=NativePrice(usd, "USD", "node_hour"),
        stock=Stock(nodes=ENDLESS_NODES),
    )


def compare(lengths: Sequence[int] = LENGTHS, rows_each: int = ROWS_EACH) -> list[Comparison]:
    """Both on chains of each length. PeerFailed."""
    offers = draw_catalogue(rows_each)
    chains = [list(islice(cycle(TASKS), length)) for length in lengths]
    theirs = solve_theirs(chains, offers)
    return [_compared(chain, offers, answer) for chain, answer in zip(chains, theirs, strict=True)]


def solve_theirs(
    chains: Sequence[Sequence[tuple[str, int]]], offers: Sequence[Offer]
) -> list[dict[str, float]]:
    """SkyPilot's costs and CPU seconds. PeerFailed."""
    asked = {
        "clouds": list(CLOUDS),
        "chains": [[f"{NAMES[gpu]}:{count}" for gpu, count in chain] for chain in chains],
    }
    with TemporaryDirectory() as folder:
        home = Path(folder)
        _write_catalogues(home / ".sky" / "catalogs" / "v8", offers)
        path = home / "chains.json"
        path.write_text(json.dumps(asked))
        environ = {
            "HOME": folder,
            "SKY_RUNTIME_DIR": folder,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        found: list[dict[str, float]] = run(
            "skypilot", "solve_skypilot.py", str(path), environ=environ, limit_s=LIMIT_S
        )
    return found


def _write_catalogues(folder: Path, offers: Sequence[Offer]) -> None:
    for cloud in CLOUDS:
        place = folder / cloud
        place.mkdir(parents=True)
        with (place / "vms.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS if cloud == "oci" else COLUMNS[:-1])
            writer.writerows(_row(offer) for offer in offers if offer.provider == cloud)
    (folder / "common").mkdir()
    with (folder / "common" / "accelerators.csv").open("w", newline="") as file:
        names = sorted({NAMES.get(offer.sku.gpu, offer.sku.gpu) for offer in offers})
        csv.writer(file).writerows(
            [("AcceleratorName", "Clouds"), *((n, str(list(CLOUDS.values()))) for n in names)]
        )


def _row(offer: Offer) -> tuple[Any, ...]:
    sku = offer.sku
    name = NAMES.get(sku.gpu, sku.gpu)
    gpu = {"Name": name, "Manufacturer": "NVIDIA", "Count": sku.gpus_per_node}
    memory = {"MemoryInfo": {"SizeInMiB": round(sku.gpu_memory_gb * 1024)}}
    info = {
        "Gpus": [gpu | memory],
        "TotalGpuMemoryInMiB": round(sku.gpu_memory_gb * sku.gpus_per_node * 1024),
    }
    usd = offer.price_usd_per_node_hour
    shape = (sku.name, name, float(sku.gpus_per_node), sku.vcpus, sku.memory_gb, str(info))
    zone = (f"{offer.region}-AD-1",) if offer.provider == "oci" else ()
    return (*shape, usd, "", offer.region, *zone)


class HourEach(FakeEstimator):
    """Every run takes an hour on the GPUs that it asks for and fits nowhere else."""

    def __init__(self, wanted: Mapping[str, tuple[str, int]]) -> None:
        super().__init__()
        self._wanted = wanted

    def training_at(
        self,
        workload: Training,
        sku: Sku,
        nodes: int,
        layout: Parallelism,
        interruptions_per_hour: float = 0.0,
    ) -> Estimate | None:
        if (sku.gpu, sku.gpus_per_node * nodes) != self._wanted[workload.name]:
            return None
        value = {"step_s": 1.0, "mfu": 0.4, "tokens_per_s": workload.tokens / 3600, "hours": 1.0}
        value |= {
            "memory_gb_per_gpu": 1.0,
            "communication_share": 0.0,
            "checkpoint_share": 0.0,
            "goodput": 1.0,
        }
        return Estimate(value, dict(value), dict(value))


def _compared(
    chain: Sequence[tuple[str, int]], offers: Sequence[Offer], theirs: Mapping[str, float]
) -> Comparison:
    wanted = {f"task-{number}": task for number, task in enumerate(chain)}
    runs = [training(name, gpus=GpuRange(count, count)) for name, (_, count) in wanted.items()]
    planner = JointPlanner(cast("Estimator", HourEach(wanted)))
    options = PlanOptions(time_limit_s=60.0, gap=0.0, baselines=False)
    began = time.process_time()
    found = planner.plan(request(*runs), offers, T0, options)
    used_s = time.process_time() - began
    proven = found.bound_usd == found.cost_usd
    return Comparison(
        len(chain), len(offers), theirs["usd"], theirs["cpu_s"], float(found.cost_usd), used_s, proven
    )
