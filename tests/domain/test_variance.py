"""What changed: effects that sum to the change, to the cent, and mean what they say."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.money import ZERO
from broker.domain.spend.variance import Changes, Quantity, attribute


def a_quantity(offer: str, usd: str | Decimal, hours: int, workload: str = "w") -> Quantity:
    return Quantity(workload, offer, "fake", "on_demand", None, Decimal(usd), hours * 3600)


cents = st.integers(-(10**7), 10**9).map(lambda n: Decimal(n) / 100)
quantities = st.lists(
    st.builds(
        Quantity,
        workload=st.sampled_from("uvw"),
        offer_id=st.sampled_from("abcd"),
        provider=st.just("fake"),
        tier=st.just("spot"),
        kind=st.none(),
        usd=cents,
        gpu_seconds=st.just(0) | st.integers(1, 10**9),
    ),
    max_size=8,
    unique_by=lambda q: (q.workload, q.offer_id),
)
prices = st.dictionaries(st.sampled_from("abcd"), st.fractions(Fraction(1, 10**6), 10))


def total(made: list[Quantity]) -> Decimal:
    return sum((q.usd for q in made), ZERO)


@given(quantities, quantities, prices)
def test_effects_sum_to_the_change_to_the_cent(
    before: list[Quantity], after: list[Quantity], then: dict[str, Fraction]
) -> None:
    found = attribute(before, after, then)
    assert (found.before_usd, found.after_usd) == (total(before), total(after))
    assert found.price_usd + found.volume_usd + found.mix_usd == total(after) - total(before)
    for line in found.lines:
        effects = (line.price_usd, line.volume_usd, line.mix_usd)
        assert sum(effects, ZERO) == line.change_usd
        assert all(effect == effect.quantize(Decimal("0.01")) for effect in effects)


@given(quantities)
def test_nothing_changed_is_no_effect(made: list[Quantity]) -> None:
    found = attribute(made, made)
    assert {e for line in found.lines for e in (line.price_usd, line.volume_usd, line.mix_usd)} <= {ZERO}


@given(quantities, st.integers(2, 9))
def test_more_of_the_same_is_volume_alone(made: list[Quantity], times: int) -> None:
    used = [q for q in made if q.gpu_seconds]
    more = [
        Quantity(q.workload, q.offer_id, "fake", "spot", None, times * q.usd, times * q.gpu_seconds)
        for q in used
    ]
    found = attribute(used, more)
    assert (found.volume_usd, found.price_usd, found.mix_usd) == (total(more) - total(used), ZERO, ZERO)


@given(quantities, st.integers(2, 9))
def test_other_prices_are_price_alone(made: list[Quantity], times: int) -> None:
    dearer = [
        Quantity(q.workload, q.offer_id, "fake", "spot", None, times * q.usd, q.gpu_seconds) for q in made
    ]
    found = attribute(made, dearer)
    assert (found.price_usd, found.volume_usd, found.mix_usd) == (total(dearer) - total(made), ZERO, ZERO)


def effects(found: Changes) -> tuple[float, ...]:
    return float(found.price_usd), float(found.volume_usd), float(found.mix_usd)


def test_a_cheaper_offer_in_place_of_a_dear_one_is_mix_by_its_price_of_then() -> None:
    old = [a_quantity("dear", "100", 10), a_quantity("kept", "50", 10)]
    new = [a_quantity("cheap", "60.00", 10), a_quantity("kept", "50", 10)]
    assert effects(attribute(old, new)) == (0, 0, -40)
    then = {"cheap": Fraction(7, 3600)}
    found = attribute(old, new, then)
    assert effects(found) == (-10, 0, -30)
    by_offer = {line.offer_id: line for line in found.lines}
    assert by_offer["cheap"].is_new
    assert by_offer["dear"].is_gone
    assert str(by_offer["cheap"]) == "w on cheap: $60.00 (price -$10.00, mix $70.00)"


def test_a_first_month_is_volume_and_a_credit_is_price() -> None:
    assert effects(attribute([], [a_quantity("a", "30", 3)])) == (0, 30, 0)
    assert effects(attribute([a_quantity("a", "30", 3)], [])) == (0, -30, 0)
    same = a_quantity("a", "30", 3)
    assert effects(attribute([same], [same, a_quantity("b", "-5", 0)])) == (-5, 0, 0)


def test_a_run_that_ended_is_told_as_ended_whatever_else_grew() -> None:
    """By hand: the run of $100 ended. The service doubled at the same price, and an experiment began."""
    before = [a_quantity("a", "100", 10, "run"), a_quantity("b", "50", 10, "chat")]
    after = [a_quantity("b", "100", 20, "chat"), a_quantity("a", "30", 3, "probe")]
    found = attribute(before, after)
    lines = {line.workload: effects(Changes((line,))) for line in found.lines}
    assert lines == {"run": (0, -100, 0), "chat": (0, 50, 0), "probe": (0, 30, 0)}
    assert [float(usd) for usd in (found.ended_usd, found.begun_usd, found.volume_usd)] == [-100, 30, -20]
    assert {(line.workload, line.has_ended, line.has_begun) for line in found.lines} == {
        ("run", True, False), ("chat", False, False), ("probe", False, True),
    }  # fmt: skip


def test_a_workload_that_moved_has_not_ended() -> None:
    """Half as much of it at twice the price elsewhere: $50 less volume, and $50 more for the offer."""
    found = attribute([a_quantity("a", "100", 10)], [a_quantity("b", "100", 5)])
    assert effects(found) == (0, -50, 50)
    assert not any(line.has_ended or line.has_begun for line in found.lines)
    assert found.ended_usd == found.begun_usd == 0


def test_a_month_of_refunds_alone_still_sums_exactly() -> None:
    found = attribute([a_quantity("a", "-20", -2)], [a_quantity("a", "30", 3)])
    assert found.price_usd + found.volume_usd + found.mix_usd == 50
    assert found.mix_usd == found.price_usd == 0


@given(quantities, quantities)
def test_growth_of_one_workload_is_no_volume_of_another(
    before: list[Quantity], after: list[Quantity]
) -> None:
    whole = {(line.workload, line.offer_id): line for line in attribute(before, after).lines}
    for name in "uvw":
        alone = attribute([q for q in before if q.workload == name], [q for q in after if q.workload == name])
        assert all(whole[line.workload, line.offer_id] == line for line in alone.lines)
