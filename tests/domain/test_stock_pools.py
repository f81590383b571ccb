"""What is cut from the same GPUs is counted once, whoever sells it and in whatever size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.market.offer import GpuPool, HostKind, Offer, Stock, Tier
from broker.domain.market.stock_pools import pooled, shared
from tests.store.examples import offer


def size(name: str, gpus: int, nodes: int | None = None, **changes: object) -> Offer:
    made = offer(name, gpus_per_node=gpus, stock=Stock(nodes=nodes))
    return replace(made, **{"place": "verda/FIN-02", "window": None, **changes})  # type: ignore[arg-type]


def pools(offers: tuple[Offer, ...]) -> list[GpuPool | None]:
    return [one.stock.pool for one in offers]


def test_sizes_of_one_stock_share_the_largest_that_any_of_them_says() -> None:
    found = pools(pooled([size("one", 1, 7), size("four", 4, 8), size("eight", 8)]))
    assert len(set(found)) == 1
    assert found[0] is not None
    assert found[0].gpus == 32


def test_tiers_places_and_community_hosts_are_apart() -> None:
    rows = [
        size("a", 8),
        size("b", 8, tier=Tier.SPOT),
        size("c", 8, place="verda/FIN-01"),
        size("d", 8, host=HostKind.COMMUNITY),
    ]
    assert len({pool.pool_id for pool in pools(pooled(rows)) if pool is not None}) == 4


def test_a_pool_is_named_after_place_gpu_tier_and_community() -> None:
    rows = [
        size("a", 8),
        size("b", 8, tier=Tier.COMMITTED),
        size("c", 8, tier=Tier.SPOT, host=HostKind.COMMUNITY),
    ]
    gpu = rows[0].sku.gpu
    assert [pool.pool_id for pool in pools(pooled(rows)) if pool is not None] == [
        f"verda/FIN-02/{gpu}/on_demand",
        f"verda/FIN-02/{gpu}/on_demand",
        f"verda/FIN-02/{gpu}/spot/community",
    ]


def test_sellers_of_one_place_meet_and_the_fewest_count() -> None:
    own, other = pooled([size("own", 8, 6)]), pooled([size("other", 8, 8)])
    silent = pooled([replace(size("silent", 1), provider="prime_intellect")])
    found = pools(shared([*own, *other, *silent]))
    assert {pool.gpus for pool in found if pool is not None} == {48}
    assert len(set(found)) == 1


def test_a_machine_that_its_adapter_named_stays_apart() -> None:
    machine = GpuPool("vast/machine-1", 4)
    rows = [replace(size("slice", 4, 1), stock=Stock(nodes=1, pool=machine)), size("other", 4, 1)]
    assert pools(pooled(rows))[0] == machine


def test_what_shares_with_nothing_has_no_pool() -> None:
    assert pools(shared(pooled([size("alone", 8, 6)]))) == [None]
    assert pools(shared(pooled([size("alone", 8)]))) == [None]
    tight = replace(size("alone", 8, 6), stock=Stock(nodes=6, pool=GpuPool("p", 40)))
    assert pools(shared([tight])) == [GpuPool("p", 40)]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.none() | st.integers(0, 9)), max_size=6))
def test_told_twice_is_told_once(rows: list[tuple[int, int | None]]) -> None:
    once = shared(pooled([size(f"o{i}", gpus, nodes) for i, (gpus, nodes) in enumerate(rows)]))
    assert shared(once) == once
