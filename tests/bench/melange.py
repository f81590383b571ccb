"""Mélange's problem and profile, solved by its own programme (PuLP and CBC, apart) and by this planner.

The problem: requests of many sizes at given rates, kinds of instance with a price and with what one
instance serves of each size; the cheapest instances for an hour. Mélange routes by size: instances are
shared by all sizes.

The profile (``fixtures/performance/melange_profile.csv``) gives winner and gain in requests per dollar for
each size, between two kinds. One's rate comes from that, the A100's own is this core's estimate for the
size, without latency limits. The paper's four kinds are compared too, with L4 and H100 as estimated.

Here an offer is one instance, and every instance of a service serves its sizes in the same shares. So a mix
is asked for as ``broker divide`` does, each way one call of the planner, and the least counts: one service
with all of its sizes, and one for each of the lanes that are found at these prices.
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.window import Window
from broker.domain.market.offer import NativePrice, Offer, Stock, Tier
from broker.domain.market.sku import IntraNode, LinkKind, Sku
from broker.domain.planning.workload import Measurement, PlanRequest, Serving, Slo
from broker.domain.workloads.traffic import RequestSize, Traffic, TrafficShape
from broker.ports.planning import PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.fleets.lanes import LaneDemand, LaneOptions, find_lanes
from optimizer.planner import JointPlanner
from tests.peers_env import run

PROFILE = Path(__file__).resolve().parents[2] / "fixtures" / "performance" / "melange_profile.csv"
START = datetime(2026, 11, 23, tzinfo=UTC)
NO_LIMIT = Slo(ttft_p95_ms=600_000, itl_p95_ms=10_000)
LIMIT_S = 20.0
OUR_LIMIT_S, OUR_GAP = 4.0, 0.001
"""With a gap of 0 each of 200 plans ran for all of its time: large fleets of four kinds prove their last part
slowly."""
MIX_SLICES = 4
"""What its authors find enough."""
SIZE_SLICES = 32
MOST_INSTANCES = 1000
ENDLESS_NODES = 1_000_000

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of instance: GPUs, and USD an hour as in the paper."""

    gpu: str
    gpus: int
    usd: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Kinds over sizes (tokens in, tokens out): what an instance of each serves a second."""

    name: str
    model: str
    kinds: tuple[Kind, ...]
    req_per_s: Mapping[Size, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Requests a second of each size."""

    name: str
    profile: Profile
    req_per_s: Mapping[Size, float]
    slices: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Costs an hour and CPU seconds of both; ``way``: how the planner was asked when it was cheapest."""

    problem: Problem
    their_usd: float
    their_cpu_s: float
    proven: bool
    our_usd: float
    our_cpu_s: float
    way: str


_A10G = Kind("A10G", 1, 1.01, 24)
_A100 = Kind("A100-SXM-80GB", 1, 3.67, 80)
_L4 = Kind("L4", 1, 0.70, 24)
_H100 = Kind("H100-SXM-80GB", 1, 7.516, 80)
_TWO_A100 = Kind("A100-SXM-80GB", 2, 2 * 3.67, 80)
_TWO_H100 = Kind("H100-SXM-80GB", 2, 2 * 7.516, 80)
_FIGURES = {
    "Llama-2-7B": ("a100-v-a10g-2.png", "A10G", (_A10G, _A100)),
    "Llama-2-70B": ("h100-v-a100-2.png", "2xH100", (_TWO_H100, _TWO_A100)),
}


def read_profiles(estimator: Estimator) -> list[Profile]:
    """Both figures of the profile, and the first with two further kinds."""
    with PROFILE.open() as file:
        rows = list(csv.DictReader(file))
    small, large = (_profile(estimator, model, rows) for model in _FIGURES)
    return [small, large, _widened(estimator, small, (_L4, _H100))]


def _profile(estimator: Estimator, model: str, rows: Sequence[Mapping[str, str]]) -> Profile:
    figure, first, (rival, anchor) = _FIGURES[model]
    cells = [row for row in rows if row["source"].endswith(figure)]
    sizes = [(int(row["input_len"]), int(row["output_len"])) for row in cells]
    found = {}
    for row, size, mine in zip(cells, sizes, _estimated(estimator, model, anchor, sizes), strict=True):
        gain = 1 + float(row["percent"]) / 100
        per_usd = gain if row["best_gpu"] == first else 1 / gain
        found[size] = (mine / anchor.usd * per_usd * rival.usd, mine)
    return Profile(f"{model}, 2 kinds", model, (rival, anchor), found)


def _widened(estimator: Estimator, profile: Profile, kinds: Sequence[Kind]) -> Profile:
    found = {size: list(rates) for size, rates in profile.req_per_s.items()}
    for kind in kinds:
        estimated = _estimated(estimator, profile.model, kind, list(found))
        for rates, rate in zip(found.values(), estimated, strict=True):
            rates.append(rate)
    every = (*profile.kinds, *kinds)
    rates_of = {size: tuple(rates) for size, rates in found.items()}
    return Profile(f"{profile.model}, {len(every)} kinds", profile.model, every, rates_of)


def _estimated(estimator: Estimator, model: str, kind: Kind, sizes: Sequence[Size]) -> list[float]:
    """Requests a second of one instance, all of its GPUs one replica, for each size."""
    services = [_service("size", model, 1.0, size, ()) for size in sizes]
    table = estimator.serving(services, [_sku(kind)])
    whole = [c for c, config in enumerate(table.configs) if config.gpus_per_replica == kind.gpus]
    return [float(table.requests_per_s[w, 0, whole].max()) for w in range(len(sizes))]


def draw_problems(profile: Profile, rates: Sequence[float]) -> Iterator[Problem]:
    """Single sizes, and mixes: short (chat), long (documents), and four fifths short."""
    for size in ((25, 25), (250, 250), (1000, 2000)):
        for rate in rates:
            yield Problem(f"{profile.name}: {size[0]}/{size[1]}", profile, {size: rate}, SIZE_SLICES)
    short, long = _mix(profile, 100, 200), _mix(profile, 1500, 250)
    mixed = {size: 0.8 * short[size] + 0.2 * long[size] for size in short}
    for name, shares in (("short", short), ("long", long), ("mixed", mixed)):
        for rate in rates:
            asked = {size: share * rate for size, share in shares.items()}
            yield Problem(f"{profile.name}: {name}", profile, asked, MIX_SLICES)


def _mix(profile: Profile, tokens_in: float, tokens_out: float) -> dict[Size, float]:
    """Shares of the sizes, falling with the squared distance in log tokens from the usual size."""
    weight = {
        (a, b): math.exp(-(math.log(a / tokens_in) ** 2) / 1.5 - math.log(b / tokens_out) ** 2 / 1.5)
        for a, b in profile.req_per_s
    }
    whole = sum(weight.values())
    return {size: value / whole for size, value in weight.items()}


def compare(
    problems: Sequence[Problem], estimator: Estimator, limit_s: float = LIMIT_S
) -> Iterator[Comparison]:
    """Both on every problem, each as it is solved. PeerFailed."""
    planner = JointPlanner(estimator)
    for problem, theirs in zip(problems, solve_theirs(problems, limit_s), strict=True):
        yield _compared(problem, theirs, planner)


def solve_theirs(problems: Sequence[Problem], limit_s: float) -> Iterator[dict[str, Any]]:
    """Mélange's answers, each in a process of its own environment. PeerFailed."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        for problem in problems:
            asked = {
                "usd": [kind.usd for kind in problem.profile.kinds],
                "req_per_s": list(problem.req_per_s.values()),
                "capacity": [problem.profile.req_per_s[size] for size in problem.req_per_s],
                "slices": problem.slices,
                "limit_s": limit_s,
            }
            path.write_text(json.dumps([asked]))
            (answer,) = run("melange", "solve_melange.py", str(path), environ={})
            yield answer


def _compared(problem: Problem, theirs: Mapping[str, Any], planner: JointPlanner) -> Comparison:
    offers = [_offer(kind) for kind in problem.profile.kinds]
    began = time.process_time()
    usd, way = min((_planned(planner, asked, offers), way) for way, asked in ways_of(problem))
    ours = time.process_time() - began
    return Comparison(problem, theirs["usd"], theirs["cpu_s"], theirs["proven"], usd, ours, way)


def _planned(planner: JointPlanner, asked: PlanRequest, offers: Sequence[Offer]) -> float:
    options = PlanOptions(time_limit_s=OUR_LIMIT_S, gap=OUR_GAP, baselines=False)
    return float(planner.plan(asked, offers, START, options).cost_usd)


def ways_of(problem: Problem) -> Iterator[tuple[str, PlanRequest]]:
    """How the planner is asked for a problem."""
    horizon = Window(START, START + timedelta(hours=1))
    for way, lanes in (("one service", [dict(problem.req_per_s)]), ("in lanes", lanes_of(problem))):
        if lanes:
            services = tuple(_measured(problem, lane, number) for number, lane in enumerate(lanes))
            yield way, PlanRequest("bench", horizon, services)


def lanes_of(problem: Problem) -> list[dict[Size, float]]:
    """Requests a second of each size in each lane; none where one kind serves all for least."""
    sizes, kinds = list(problem.req_per_s), problem.profile.kinds
    rates = np.array([problem.profile.req_per_s[size] for size in sizes])
    asked = np.array([problem.req_per_s[size] for size in sizes])
    menu = LaneOptions(
        requests_per_s=rates.T.copy(),
        usd_per_hour=np.array([kind.usd for kind in kinds]),
        most=np.full(len(kinds), MOST_INSTANCES),
        spare_units=np.zeros(len(kinds)),
    )
    demand = LaneDemand(np.array([asked.sum()]), np.ones(1), asked / asked.sum())
    parts = find_lanes(menu, demand, OUR_LIMIT_S)
    used = [] if parts is None else [row * asked for row in parts if row.any()]
    if len(used) < 2:
        return []
    return [{size: float(rate) for size, rate in zip(sizes, row, strict=True) if rate} for row in used]


def _measured(problem: Problem, req_per_s: Mapping[Size, float], number: int) -> Serving:
    """A service of such requests, that every instance serves in the same shares."""
    profile, rate, sizes = problem.profile, sum(req_per_s.values()), list(req_per_s)
    measured = []
    for kind, instance in enumerate(profile.kinds):
        load = sum(asked / profile.req_per_s[size][kind] for size, asked in req_per_s.items())
        measured.append(Measurement(instance.gpu, instance.gpus, requests_per_s=rate / load))
    service = _service(f"sizes-{number}", profile.model, rate, sizes[0], tuple(measured))
    if len(sizes) == 1:
        return service
    mix = tuple(RequestSize(asked / rate, *size) for size, asked in req_per_s.items())
    return replace(service, traffic=replace(service.traffic, mix=mix))


def _service(name: str, model: str, rate: float, size: Size, measured: tuple[Measurement, ...]) -> Serving:
    traffic = Traffic(size[0], size[1], TrafficShape.FLAT, rate)
    shape = load_models()[model]
    return Serving(name=name, team="bench", model=shape, traffic=traffic, slo=NO_LIMIT, measured=measured)


def _sku(kind: Kind) -> Sku:
    link = IntraNode(LinkKind.NVLINK, 600.0) if kind.gpus > 1 else None
    return Sku(f"{kind.gpus}x{kind.gpu}", kind.gpu, kind.gpus, kind.memory_gb, intra_node=link)


def _offer(kind: Kind) -> Offer:
    usd = Decimal(str(kind.usd))
    return Offer(
        offer_id=f"{kind.gpus}x{kind.gpu}",
        provider="aws",
        sku=_sku(kind),
        region="us-east-1",
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=usd,
        observed_at=START,
        source="arXiv 2404.14527",
        native=NativePrice(usd, "USD", "node_hour"),
        stock=Stock(nodes=ENDLESS_NODES),
    )


def our_estimator() -> Estimator:
    """The core as it is shipped."""
    return Estimator(load_gpus(), load_calibration())
