"""Price-volume-mix analysis of the change between two amounts, by offer and exact to the cent.

With q GPU-seconds billed and c USD of a line before (0) and after (1), Q their sums over the lines of its
workload, p = c/q:

    volume = (Q1/Q0 - 1) c0        the workload uses more or less, of each of its offers in proportion
    mix    = (q1 - q0 Q1/Q0) p0    it uses more of one offer and less of another
    price  = c1 - q1 p0            the same GPU-seconds at another price

which sum to c1 - c0 in each line. A workload that has ended is volume alone, and negative; one that has begun
is volume too. Q is not summed over other workloads: the growth of one would show as volume of another that
has ended. For an offer that was not used before, p0 is its price at that time if it is known, else its
current price. Amounts without GPU-seconds (fees) count as price. Capacity that is given back has GPU-seconds
like any other: a refund takes back those that it pays for, and what it does not recover is bought and not
used. A release is therefore volume or mix, at the price of the purchase.

Where no price moved, nothing is price: an increment that runs over midnight is money of the day on which it
begins and GPU-seconds of both days, and cents are rounded, so c/q differs. That is volume.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from broker.domain.basics.money import CENT, ZERO, usd_words
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import Charge

Key = tuple[str, str]
"""Workload and offer."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """USD (whole cents) and billed GPU-seconds of one workload on one offer.

    ``unused_usd`` is the part for GPU-seconds that were given up or not wanted. A month in which more is
    refunded than billed has negative ones.
    """

    workload: str
    offer_id: str
    provider: str
    tier: str
    kind: WorkloadKind | None
    usd: Decimal
    gpu_seconds: int
    unused_usd: Decimal = ZERO


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """Why one workload on one offer costs more or less; the three effects sum to the change exactly.

    ``is_new``: the offer was not used for it before, ``is_gone``: it no longer is. ``has_begun``: the whole
    workload used nothing before, ``has_ended``: it no longer uses anything. ``unused_usd`` is the part of the
    change that pays for time that was given up or not wanted.
    """

    workload: str
    offer_id: str
    provider: str
    tier: str
    before_usd: Decimal
    after_usd: Decimal
    price_usd: Decimal
    volume_usd: Decimal
    mix_usd: Decimal
    is_new: bool
    is_gone: bool
    unused_usd: Decimal = ZERO
    has_begun: bool = False
    has_ended: bool = False

    @property
    def change_usd(self) -> Decimal:
        """``after_usd`` minus ``before_usd``."""
        return self.after_usd - self.before_usd

    def __str__(self) -> str:
        words = {"price": self.price_usd, "volume": self.volume_usd, "mix": self.mix_usd}
        told = ", ".join(f"{name} {usd_words(usd)}" for name, usd in words.items() if usd)
        return f"{self.workload} on {self.offer_id}: {usd_words(self.change_usd)} ({told or 'no change'})"


@dataclass(frozen=True, slots=True)
class Changes:
    """All lines, the largest change first, and their sums."""

    lines: tuple[ChangeLine, ...]

    @property
    def before_usd(self) -> Decimal:
        """Total before."""
        return sum((line.before_usd for line in self.lines), ZERO)

    @property
    def after_usd(self) -> Decimal:
        """Total after."""
        return sum((line.after_usd for line in self.lines), ZERO)

    @property
    def price_usd(self) -> Decimal:
        """Total price effect."""
        return sum((line.price_usd for line in self.lines), ZERO)

    @property
    def volume_usd(self) -> Decimal:
        """Total volume effect."""
        return sum((line.volume_usd for line in self.lines), ZERO)

    @property
    def mix_usd(self) -> Decimal:
        """Total mix effect."""
        return sum((line.mix_usd for line in self.lines), ZERO)

    @property
    def begun_usd(self) -> Decimal:
        """The change by workloads that used nothing before."""
        return sum((line.change_usd for line in self.lines if line.has_begun), ZERO)

    @property
    def ended_usd(self) -> Decimal:
        """The change by workloads that no longer use anything."""
        return sum((line.change_usd for line in self.lines if line.has_ended), ZERO)

    @property
    def unused_usd(self) -> Decimal:
        """The part of the change that pays for time that was given up or not wanted."""
        return sum((line.unused_usd for line in self.lines), ZERO)


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """The change from an old plan to a new one, split by cause.

    ``market_usd`` is the cost of the old plan at new prices minus its own cost. ``reoptimization_usd`` is the
    cost of the new plan minus the cost of the old one at new prices. They sum to the change. ``unpriced`` are
    offers of the old plan without a known new price; they count at their old cost.
    """

    changes: Changes
    market_usd: Decimal
    reoptimization_usd: Decimal
    unpriced: tuple[str, ...]


def quantities_of(charges: Iterable[Charge]) -> tuple[Quantity, ...]:
    """Charges summed by workload and offer."""
    money: defaultdict[Key, Decimal] = defaultdict(lambda: ZERO)
    seconds: defaultdict[Key, int] = defaultdict(int)
    unused: defaultdict[Key, Decimal] = defaultdict(lambda: ZERO)
    seen: dict[Key, Charge] = {}
    for charge in charges:
        key = (charge.workload, charge.offer_id)
        money[key] += charge.usd
        seconds[key] += charge.gpu_seconds
        unused[key] += charge.idle_usd
        seen[key] = charge
    return tuple(
        Quantity(workload, offer_id, c.provider, c.tier.value, c.kind, money[key], seconds[key], unused[key])
        for key, c in seen.items()
        for workload, offer_id in (key,)
    )


def attribute(
    before: Iterable[Quantity],
    after: Iterable[Quantity],
    prices_then: Mapping[str, Fraction] | None = None,
    unmoved: Collection[Key] = (),
) -> Changes:
    """The effects behind the change from ``before`` to ``after``.

    ``prices_then`` are prices of offers at the time of ``before``, in USD per GPU-second. ``unmoved`` are the
    lines that are known to have the same price in both.
    """
    old = {(q.workload, q.offer_id): q for q in before}
    new = {(q.workload, q.offer_id): q for q in after}
    known = prices_then or {}
    used = _Used(_by_workload(old.values()), _by_workload(new.values()))
    lines = [
        _line(old.get(key), new.get(key), used, known, moved=key not in unmoved)
        for key in sorted({*old, *new})
    ]
    lines.sort(key=lambda line: -abs(line.change_usd))
    return Changes(tuple(lines))


@dataclass(frozen=True, slots=True)
class _Used:
    """Billed GPU-seconds of each workload, before and after."""

    before: Mapping[str, int]
    after: Mapping[str, int]

    def growth(self, workload: str) -> Fraction | None:
        """Q1/Q0; None for a workload that used nothing before."""
        before = self.before.get(workload, 0)
        return Fraction(self.after.get(workload, 0), before) if before > 0 else None


def _by_workload(quantities: Iterable[Quantity]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for one in quantities:
        found[one.workload] += one.gpu_seconds
    return dict(found)


def _line(
    old: Quantity | None,
    new: Quantity | None,
    used: _Used,
    prices_then: Mapping[str, Fraction],
    *,
    moved: bool,
) -> ChangeLine:
    shown = new or old
    assert shown is not None
    c0, q0 = (Fraction(old.usd), old.gpu_seconds) if old is not None else (Fraction(0), 0)
    c1, q1 = (Fraction(new.usd), new.gpu_seconds) if new is not None else (Fraction(0), 0)
    growth = used.growth(shown.workload)
    at_old_price = q1 * prices_then.get(shown.offer_id, c1 / q1) if q1 else Fraction(0)
    volume, mix = Fraction(0), Fraction(0)
    if growth is None:
        volume = at_old_price - (c0 if q0 else 0)
    elif q0:
        volume = (growth - 1) * c0
        mix = (q1 - q0 * growth) * c0 / q0
    else:
        mix = at_old_price
    price = c1 - c0 - volume - mix
    if q0 and q1 and not moved:
        volume, price = volume + price, Fraction(0)
    cents = _whole_cents((price, volume, mix))
    before, after = used.before.get(shown.workload, 0), used.after.get(shown.workload, 0)
    return ChangeLine(
        workload=shown.workload,
        offer_id=shown.offer_id,
        provider=shown.provider,
        tier=shown.tier,
        before_usd=old.usd if old is not None else ZERO,
        after_usd=new.usd if new is not None else ZERO,
        price_usd=cents[0],
        volume_usd=cents[1],
        mix_usd=cents[2],
        is_new=q0 == 0 and q1 > 0,
        is_gone=q1 == 0 and q0 > 0,
        unused_usd=(ZERO if new is None else new.unused_usd) - (ZERO if old is None else old.unused_usd),
        has_begun=before == 0 and after > 0,
        has_ended=after == 0 and before > 0,
    )


def _whole_cents(effects: tuple[Fraction, ...]) -> tuple[Decimal, ...]:
    """``effects``, whose sum is whole cents, rounded to whole cents with the same sum; zero stays zero."""
    exact = [effect * 100 for effect in effects]
    floors = [effect.__floor__() for effect in exact]
    missing = int(sum(exact, Fraction(0))) - sum(floors)
    order = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[:missing]:
        floors[i] += 1
    return tuple(Decimal(cents) * CENT for cents in floors)


def compare_plans(
    old: Plan, new: Plan, changes: Changes, old_at_new_usd: Mapping[str, Decimal]
) -> PlanChanges:
    """The change from ``old`` to ``new``, split by cause.

    ``old_at_new_usd`` is by offer the cost of the old plan's placements at the prices of the new plan. Offers
    without an entry count at their old cost.
    """
    planned: defaultdict[str, Decimal] = defaultdict(lambda: ZERO)
    for placement in old.placements:
        planned[placement.offer_id] += placement.cost_usd
    repriced = sum((old_at_new_usd.get(offer_id, usd) for offer_id, usd in planned.items()), ZERO)
    return PlanChanges(
        changes=changes,
        market_usd=repriced - old.cost_usd,
        reoptimization_usd=new.cost_usd - repriced,
        unpriced=tuple(sorted(set(planned) - set(old_at_new_usd))),
    )
