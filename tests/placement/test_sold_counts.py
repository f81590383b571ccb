"""Sellers of certain counts: the plan pays for the least purchase on which enough nodes can work."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Tier, WindowKind
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import GpuRange
from tests.depth import examples
from tests.placement.market import at, offer, plan, request, training, window

HOURS, STOCK = 24.0, 12
menus = st.none() | st.sets(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12]), min_size=1).map(
    lambda counts: tuple(sorted(counts))
)


def least_bought(menu: tuple[int, ...] | None, lot: int, least: int, most: int, gpu_hours: int) -> int | None:
    """The smallest purchase on sale for any count that the planner looks at (docs/planner.md)."""
    looked_at = {
        1,
        2,
        4,
        8,
        3,
        6,
        12,
        least,
        most,
        *(menu or (lot * lots for lots in (1, 2, 3, 4, 6, 8, 12))),
    }
    sold = [n for n in menu or range(1, STOCK + 1) if n % lot == 0 and n <= STOCK]
    working = [n for n in looked_at if least <= n <= most and gpu_hours <= n * HOURS]
    return min((n for n in sold for count in working if count <= n), default=None)


@settings(max_examples=examples(30), deadline=None)
@given(menus, st.sampled_from([1, 2, 3]), st.integers(1, 12), st.integers(0, 6), st.integers(1, 200))
def test_the_least_count_on_sale_is_bought(
    menu: tuple[int, ...] | None, lot: int, least: int, more: int, gpu_hours: int
) -> None:
    most = min(least + more, STOCK)
    terms = window(WindowKind.LISTED, (0, HOURS, STOCK), node_counts=menu, lot_nodes=lot)
    block = offer("block", "1.00", tier=Tier.WINDOW, window=terms, joined=STOCK)
    run = training(gpu_hours=gpu_hours, gpus=GpuRange(least, most), deadline=at(HOURS))
    found = plan(request(run, hours=HOURS), [block])
    wanted = least_bought(menu, lot, least, most, gpu_hours)
    if wanted is None:
        assert found.unplaced[0].reason in (
            Obstacle.STOCK,
            Obstacle.DEADLINE,
            Obstacle.WINDOW,
            Obstacle.FABRIC,
        )
        return
    (placed,) = found.placements
    assert least <= placed.nodes <= most
    assert placed.segments[0].nodes == wanted == terms.least_sold(placed.nodes)
    assert placed.cost_usd == wanted * Decimal(HOURS)
