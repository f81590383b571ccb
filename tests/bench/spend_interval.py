"""Backtest of spend intervals: ``python -m tests.bench.spend_interval [--cases 600] [--seed 1]``.

Each case is a portfolio of runs and services, projected with what was known on one day, and what it then
came to. History that is used:

* *durations* are real: measured step times of the bundled tables over their predictions with their source
  held out, each with the interval that the performance core gave it (``broker perf evaluate``);
* *prices* are drawn, since no year of hourly prices is public: 60 sellers in five families, some never
  moving, some stepping every few weeks, spot prices that swing daily and partly together. The forecaster
  sees the 90 days up to the case's day alone;
* *traffic* grows by 30-day rates of 40 services drawn with heavy tails; the setting (growth, spread) is
  estimated from 40 others.

Printed: the share of cases whose total lies within P10 and P90 (aim: 80 +- 5 %), below and above it; the same
of the sums at the end of each week. Exit 1 when the aim is missed.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus, load_models
from broker.domain.market.forecast import DailyPrices, Family, Forecaster
from broker.domain.market.offer import Tier
from broker.domain.spend.intervals import IntervalRules, PriceRule, Quantiles, RiskLine, Simulated
from optimizer.calibration.evaluation.evaluate import evidence_of_rows
from optimizer.calibration.evaluation.held_out import SOURCE
from optimizer.calibration.evaluation.report import TRAINING
from optimizer.calibration.tables.rows import read_rows
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.spend_interval import MonteCarlo
from tests.bench.calibration.bundled import beside_rows, bundled_rows

DAYS, HORIZON = 420, 56
FIRST_DAY = 120
WEEK = 7
PATHS = 400
AIM = (0.75, 0.85)


@dataclass(frozen=True, slots=True)
class Seller:
    """An offer, its family and its price on every day, relative to the first."""

    offer_id: str
    family: Family
    prices: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reality:
    """A line, and what became of it: how long its run took, how its service's traffic grew in 30 days."""

    line: RiskLine
    seller: Seller
    took: float
    growth: float


def market(lots: random.Random) -> list[Seller]:
    """Sellers with a past and a future."""
    families = [
        Family(gpu, tier, kind)
        for gpu, tier, kind in (
            ("H100-SXM-80GB", Tier.ON_DEMAND, "cloud"),
            ("H100-SXM-80GB", Tier.SPOT, "hyperscaler"),
            ("A100-SXM-80GB", Tier.SPOT, "marketplace"),
            ("H200-SXM-141GB", Tier.ON_DEMAND, "hyperscaler"),
            ("L40S", Tier.SPOT, "cloud"),
        )
    ]
    sellers = []
    for family in families:
        drift = lots.gauss(-0.0006, 0.0004)
        common = [lots.gauss(0, 0.012) for _ in range(DAYS)]
        for n in range(12):
            daily, step = _habits(family, lots)
            log_price, prices = 0.0, [1.0]
            for day in range(1, DAYS):
                if lots.random() < step:
                    log_price += lots.gauss(-0.01, 0.06)
                if daily:
                    log_price += drift + common[day] + lots.gauss(0, daily)
                prices.append(math.exp(log_price))
            sellers.append(Seller(f"{family.gpu}-{family.tier}-{n}", family, tuple(prices)))
    return sellers


def _habits(family: Family, lots: random.Random) -> tuple[float, float]:
    """Daily swing, and the chance of a step on a day."""
    if family.tier is Tier.SPOT:
        return lots.uniform(0.01, 0.04), 0.02
    return 0.0, lots.choice((0.0, 0.01, 0.03))


def durations() -> list[tuple[float, float]]:
    """Measured over predicted step times, sources held out, each with its half-width in log."""
    fitted, calibration, gpus = bundled_rows(), load_calibration(), load_gpus()
    rows = fitted + beside_rows()
    read = read_rows(rows, calibration, gpus, load_models())
    evidence = evidence_of_rows(rows, len(fitted), read, calibration, gpus)
    found = []
    for index, entry in enumerate(evidence.entries):
        error, spread = float(evidence.errors[SOURCE][index]), float(evidence.spread[index])
        if (
            entry.metric == "step time"
            and entry.section == TRAINING
            and math.isfinite(error)
            and math.isfinite(spread)
            and spread > 0
        ):
            found.append((-error, spread))
    return found


def case(
    sellers: Sequence[Seller],
    measured: Sequence[tuple[float, float]],
    growths: Sequence[float],
    today: int,
    lots: random.Random,
) -> list[Reality]:
    """A portfolio of 4 to 16 lines."""
    found = []
    for n in range(lots.randint(4, 16)):
        seller = lots.choice(sellers)
        if lots.random() < 0.65:
            days, first = lots.randint(2, 20), lots.randint(0, 12)
            error, spread = lots.choice(measured)
            price = PriceRule.FLOATING if seller.family.tier is Tier.SPOT else PriceRule.AT_START
            usd, duration, growth = lots.uniform(200, 9000), (math.exp(-spread), math.exp(spread)), 0.0
            took, serves = math.exp(error), False
        else:
            days, first, took, duration, serves = HORIZON, 0, 1.0, None, True
            price, usd, growth = PriceRule.FLOATING, lots.uniform(100, 3000), lots.choice(growths)
        daily = (usd,) * days
        line = RiskLine(f"{today}/{n}", seller.offer_id, first, daily, price, duration, serves)
        found.append(Reality(line, seller, took, growth))
    return found


def came_to(real: Reality, today: int) -> list[float]:
    """USD of a line by day of the horizon, as it really was."""
    line, prices = real.line, real.seller.prices
    owed, out = sum(line.usd_by_day) * real.took, [0.0] * HORIZON
    for day in range(line.first_day, HORIZON):
        at_start = line.price is PriceRule.AT_START
        factor = prices[today + (line.first_day if at_start else day)] / prices[today]
        rate = min(line.usd_by_day[0], owed)
        owed -= rate
        out[day] = rate * factor * math.exp(real.growth * day / 30 if line.follows_traffic else 0)
    return out


def main() -> int:
    """Draws, projects, compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spend_interval", description=__doc__)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    wish = parser.parse_args()
    lots, began = random.Random(wish.seed), time.process_time()
    sellers, measured = market(lots), durations()
    growths = [0.02 + 0.08 * lots.gauss(0, 1) / math.sqrt(lots.gammavariate(2.5, 0.4)) for _ in range(80)]
    known, kept = growths[:40], growths[40:]
    rules = IntervalRules(math.expm1(statistics.mean(known)), statistics.stdev(known), PATHS)
    inside: list[bool] = []
    weeks: list[list[bool]] = [[] for _ in range(HORIZON // WEEK)]
    simulated_s = 0.0
    below = above = 0
    for n in range(wish.cases):
        today = lots.randint(FIRST_DAY, DAYS - HORIZON - 1)
        reals = case(sellers, measured, kept, today, lots)
        start = time.process_time()
        found = projected([real.line for real in reals], sellers, today, rules, n)
        simulated_s += time.process_time() - start
        days = np.sum([came_to(real, today) for real in reals], axis=0)
        total = float(days.sum())
        inside.append(_holds(found.total, total))
        below += total < float(found.total.p10_usd)
        above += total > float(found.total.p90_usd)
        for week, running in enumerate(found.running):
            weeks[week].append(_holds(running, float(days[: (week + 1) * WEEK].sum())))
    share = sum(inside) / len(inside)
    table = Table(title=f"{wish.cases} cases, {len(measured)} measured durations, seed {wish.seed}")
    table.add_column("sum of")
    table.add_column("within P10 and P90", justify="right")
    table.add_row("the whole horizon (8 weeks)", f"{share:.1%}")
    for week, held in enumerate(weeks):
        table.add_row(f"the first {week + 1} weeks", f"{sum(held) / len(held):.1%}")
    console = Console()
    console.print(table)
    console.print(f"below {below / wish.cases:.1%}, above {above / wish.cases:.1%}")
    console.print(
        f"traffic {rules.traffic_growth:+.3f} +- {rules.traffic_spread:.3f}; CPU "
        f"{time.process_time() - began:.0f} s, a projection {1000 * simulated_s / wish.cases:.0f} ms"
    )
    return 0 if AIM[0] <= share <= AIM[1] else 1


def projected(
    lines: Sequence[RiskLine], sellers: Sequence[Seller], today: int, rules: IntervalRules, seed: int
) -> Simulated:
    """Quantiles as they would have been on that day."""
    past = [
        DailyPrices(s.offer_id, s.family, tuple(round(1e7 * p) for p in s.prices[today - 90 : today + 1]))
        for s in sellers
    ]
    forecaster = Forecaster(past)
    families = {s.offer_id: s.family for s in sellers}
    futures = {
        offer: forecaster.factors(offer, families[offer], HORIZON, rules.paths, seed)
        for offer in {line.offer_id for line in lines}
    }
    return MonteCarlo().simulate(lines, futures, [d // WEEK for d in range(HORIZON)], rules, seed)


def _holds(quantiles: Quantiles, usd: float) -> bool:
    return float(quantiles.p10_usd) <= usd <= float(quantiles.p90_usd)


if __name__ == "__main__":
    sys.exit(main())
