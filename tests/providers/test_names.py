"""Names of what is bought: within each seller's limit, one of a kind, and found by the order's tag.

The limits are the sellers', as their SDKs, Terraform providers and OpenAPI documents state them in 2026;
where none is stated, 63 characters of a DNS label.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.identity import (
    is_ours,
    make_id,
    make_tag,
    next_tag,
    reservation_of,
    stands_for,
    stem_of,
)
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import StockLevel, Tier
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.spec import Capability, ProviderAdapter
from tests.depth import examples
from tests.fakes.market_control import hasty

LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
LIMITS: dict[str, tuple[int, str]] = {
    "aws": (64, r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"),
    "azure": (64, r"[a-zA-Z0-9]([-_.a-zA-Z0-9]*[_a-zA-Z0-9])?"),
    "crusoe": (63, LABEL),
    "cudo": (63, LABEL),
    "digitalocean": (255, HOST),
    "gcp": (63, LABEL),
    "hotaisle": (100, r".+"),
    "hyperstack": (50, r".+"),
    "lambda": (64, r".+"),
    "latitude": (32, HOST),
    "mithril": (64, LABEL),
    "oci": (64, r".+"),
    "ovh": (63, HOST),
    "prime_intellect": (63, r"[A-Za-z0-9-]+"),
    "runpod": (191, r".+"),
    "scaleway": (128, HOST),
    "sfcompute": (63, r".+"),
    "shadeform": (63, r".+"),
    "tensordock": (63, HOST),
    "together": (63, LABEL),
    "vast": (255, r".+"),
    "verda": (63, HOST),
    "vultr": (128, r".+"),
}
"""AWS: name of a training plan. Azure: of a scale set. Mithril and OCI: name, retry token."""
NAMES = tuple(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)

INSTALLS = st.binary(min_size=4, max_size=4).map(bytes.hex)
RESERVATIONS = st.builds(
    lambda hours, entropy: make_id("rsv", NOON + timedelta(hours=hours), entropy),
    st.integers(0, 10**6),
    st.binary(min_size=10, max_size=10),
)
STEPS = st.tuples(st.integers(0, 999), st.integers(1, 99))


def kept(name: str) -> int:
    longest = getattr(SPECS[name].adapter, "longest_tag", None)
    assert isinstance(longest, int)
    return longest


def test_every_seller_has_a_limit() -> None:
    assert set(LIMITS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None)
@given(install=INSTALLS, reservation=RESERVATIONS, step=STEPS)
def test_names_fit_every_seller(name: str, install: str, reservation: str, step: tuple[int, int]) -> None:
    longest, pattern = LIMITS[name]
    ordinal, attempt = step
    assert kept(name) <= longest
    tag = make_tag(install, reservation, ordinal, attempt, kept(name))
    assert len(tag) <= longest
    assert re.fullmatch(pattern, tag)
    assert is_ours(tag, install)
    assert tag.startswith(stem_of(make_tag(install, reservation, 0, longest=kept(name))))
    assert stands_for(reservation_of(tag, install), reservation)
    assert next_tag(make_tag(install, reservation, ordinal, attempt, kept(name))) == make_tag(
        install, reservation, ordinal, attempt + 1, kept(name)
    )


@settings(max_examples=examples(30), deadline=None)
@given(
    install=INSTALLS,
    orders=st.lists(st.tuples(RESERVATIONS, STEPS), min_size=2, max_size=60, unique=True),
    longest=st.sampled_from(sorted({kept(name) for name in NAMES})),
)
def test_no_two_orders_share_a_name(
    install: str, orders: list[tuple[str, tuple[int, int]]], longest: int
) -> None:
    names = {make_tag(install, reservation, *step, longest) for reservation, step in orders}
    assert len(names) == len(orders)
    ids = {reservation for reservation, _ in orders}
    for reservation, step in orders:
        name = reservation_of(make_tag(install, reservation, *step, longest), install)
        assert [one for one in ids if stands_for(name, one)] == [reservation]


def test_a_seller_that_keeps_too_little_is_a_mistake_of_its_adapter() -> None:
    with pytest.raises(ValueError, match="characters of the reservation id, but needs"):
        make_tag("0123abcd", make_id("rsv", NOON, bytes(10)), 0, longest=31)


@pytest.fixture
async def adapters(sandbox: str) -> AsyncIterator[dict[str, ProviderAdapter]]:
    built = sellers(build_adapters({n: s for n, s in configured({}, sandbox).items() if n in NAMES}, hasty))
    yield dict(built)
    for adapter in built.values():
        await adapter.aclose()


@pytest.mark.parametrize(
    "name", ["hyperstack", "latitude", "crusoe", "tensordock", "lambda", "cudo", "verda"]
)
async def test_the_longest_name_is_taken_and_comes_back_whole(
    name: str, adapters: dict[str, ProviderAdapter]
) -> None:
    adapter = adapters[name]
    batch = await adapter.list_offers(datetime.now(UTC))
    offer = next(o for o in batch.offers if o.tier is Tier.ON_DEMAND and o.stock.level is not StockLevel.NONE)
    tag = make_tag("0123abcd", make_id("rsv", NOON, bytes(range(10))), 999, 99, adapter.longest_tag)
    made = await adapter.reserve(Order(tag, offer, 1))
    (found,) = [lease for lease in await adapter.list_leases() if lease.tag == tag]
    assert found.reference == made.reference
