"""Rules of a FOCUS data set that concern several rows together.

The memory that they need grows with the number of commitments, prices and resources, not of rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from broker.domain.focus.rules import CheckedRow, Finding, RuleGroup

CENT = Decimal("0.01")
LEAST = Decimal("0.000001")
LONGEST_GAP = timedelta(hours=1)
LAST_SECOND = LAST_MINUTE = 59
BY_CHANCE = 100
FIRST = datetime(1, 1, 1, tzinfo=UTC)


class OneCurrency:
    """Rule: an issuer's invoices for a billing account are in one currency."""

    def __init__(self) -> None:
        self._currency: dict[tuple[str, str], str] = {}

    def see(self, row: CheckedRow) -> Iterator[Finding]:
        """Compares the currency with that of the account's first row."""
        found, account = row.text("BillingCurrency"), row.text("BillingAccountId")
        first = self._currency.setdefault((row.text("InvoiceIssuerName"), account), found)
        if found != first:
            expected = f"{first}, as in earlier rows of account {account!r}"
            yield row.finding(RuleGroup.CURRENCY, "BillingCurrency", expected)


class ExclusiveEnds:
    """Rule: a charge period does not contain its end, which is no second before a full minute or hour.

    A use may end in that second by chance, so a few rows of a data set may: one, or one in a hundred, between
    full hours, and up to half of them between full minutes.
    """

    def __init__(self) -> None:
        self._first: CheckedRow | None = None
        self._rows = self._in_minutes = self._in_hours = 0

    def see(self, row: CheckedRow) -> Iterator[Finding]:
        """Counts the row; the finding comes at the end."""
        start, end = row.times.get("ChargePeriodStart"), row.times.get("ChargePeriodEnd")
        if start is None or end is None:
            return
        self._rows += 1
        if (start.second, end.second) == (0, LAST_SECOND):
            self._in_minutes += 1
            self._in_hours += (start.minute, end.minute) == (0, LAST_MINUTE)
            self._first = self._first or row
        yield from ()

    def end(self) -> Iterator[Finding]:
        """The violation, at the first of the rows."""
        by_hour = self._in_hours > max(1, self._rows // BY_CHANCE)
        if self._first is not None and (by_hour or 2 * self._in_minutes > self._rows):
            expected = (
                f"a second later, as in {self._in_minutes} of {self._rows} rows: "
                "the end is the first instant after the period"
            )
            yield self._first.finding(RuleGroup.PERIODS, "ChargePeriodEnd", expected)


class OneParent:
    """Rule: a price always has the same SKU, and a service always the same category."""

    _CHILDREN = (
        ("SkuPriceId", ("SkuId", "SkuMeter", "PricingUnit")),
        ("ServiceName", ("ServiceCategory", "ServiceSubcategory")),
    )

    def __init__(self) -> None:
        self._parents: dict[tuple[str, str], tuple[str, ...]] = {}

    def see(self, row: CheckedRow) -> Iterator[Finding]:
        """Compares the row with the first row of the same price and of the same service."""
        for child, columns in self._CHILDREN:
            name = row.text(child)
            if not name:
                continue
            found = tuple(row.text(column) for column in columns)
            parent = self._parents.setdefault((child, name), found)
            for column, one, other in zip(columns, found, parent, strict=True):
                if one != other:
                    expected = (
                        f"{repr(other) if other else 'empty'}, as in the first row with {child} {name!r}"
                    )
                    yield row.finding(RuleGroup.SKUS, column, expected)


class NoOverlap:
    """Rule: a resource is charged only once for the same thing at any instant."""

    def __init__(self) -> None:
        self._charged: dict[tuple[str, ...], list[tuple[datetime, datetime]]] = {}

    def see(self, row: CheckedRow) -> Iterator[Finding]:
        """Compares the row with earlier charges of the resource."""
        start, end = row.times.get("ChargePeriodStart"), row.times.get("ChargePeriodEnd")
        plain = row.text("ChargeCategory") == "Usage" and not row.text("ChargeClass")
        if not plain or start is None or end is None or end <= start or not row.text("ResourceId"):
            return
        columns = (
            "BillingAccountId",
            "ResourceId",
            "SkuPriceId",
            "CommitmentDiscountId",
            "ChargeDescription",
        )
        spans = self._charged.setdefault(tuple(row.text(column) for column in columns), [])
        at = bisect_left(spans, (start, end))
        if (at and spans[at - 1][1] > start) or (at < len(spans) and spans[at][0] < end):
            expected = "outside the charge periods of other rows for the same use of the resource"
            yield row.finding(RuleGroup.PERIODS, "ChargePeriodStart", expected)
            return
        _join(spans, at, start, end)


def _join(spans: list[tuple[datetime, datetime]], at: int, start: datetime, end: datetime) -> None:
    """Adds a span and joins it with spans that it touches."""
    if at < len(spans) and spans[at][0] == end:
        end = spans.pop(at)[1]
    if at and spans[at - 1][1] == start:
        start = spans.pop(at - 1)[0]
    insort(spans, (start, end))


@dataclass
class _Bought:
    """The sums over the rows of one commitment."""

    quantity: Decimal = Decimal(0)
    billed: Decimal = Decimal(0)
    purchases: list[tuple[int, Decimal, Decimal, datetime | None, datetime | None]] = field(
        default_factory=list
    )
    used_quantity: Decimal = Decimal(0)
    effective: Decimal = Decimal(0)
    hours: int = 0
    until: datetime = FIRST
    is_given_up: bool = False


class UsedAndUnused:
    """Rule: used and unused hours of a commitment sum to its Purchase, up to the end of the data set.

    An hour with a term of its own is the time that was given up. All hours then sum to the whole Purchase.
    """

    def __init__(self) -> None:
        self._bought: dict[tuple[str, str], _Bought] = {}
        self._until = FIRST

    def see(self, row: CheckedRow) -> Iterator[Finding]:
        """Adds the row to the sums; findings come at the end."""
        end = row.times.get("ChargePeriodEnd", FIRST)
        if row.text("ChargeCategory") == "Usage":
            self._until = max(self._until, end)
        name = row.text("CommitmentDiscountId")
        if not name or row.text("ChargeCategory") not in ("Usage", "Purchase"):
            return
        found = self._bought.setdefault((row.text("BillingAccountId"), name), _Bought())
        quantity = row.decimals.get("CommitmentDiscountQuantity", Decimal(0))
        if row.text("ChargeCategory") == "Purchase":
            billed = row.decimals.get("BilledCost", Decimal(0))
            term = (row.times.get("x_TermStart"), row.times.get("x_TermEnd"))
            found.purchases.append((row.number, quantity, billed, *term))
            found.quantity += quantity
            found.billed += billed
        else:
            found.used_quantity += quantity
            found.effective += row.decimals.get("EffectiveCost", Decimal(0))
            found.hours += 1
            found.until = max(found.until, end)
            found.is_given_up |= "x_TermEnd" in row.times
        yield from ()

    def end(self) -> Iterator[Finding]:
        """Violations of the sums."""
        for (_, name), found in self._bought.items():
            if found.purchases:
                yield from self._compared(name, found)

    def _compared(self, name: str, found: _Bought) -> Iterator[Finding]:
        at = found.purchases[0][0]
        dated = all(start and end and start < end for *_, start, end in found.purchases)
        until = max(found.until, self._until - LONGEST_GAP) if found.hours else self._until
        by_time = dated and not found.is_given_up
        quantity, cost = _elapsed(found, until) if by_time else (found.quantity, found.billed)
        at_most, bought = (
            ("", "the elapsed share of its Purchase rows" if by_time else "the sum of its Purchase rows")
            if dated
            else ("at most ", "the sum of its Purchase rows")
        )
        for column, seen, expected, slack in (
            ("CommitmentDiscountQuantity", found.used_quantity, quantity, LEAST * (found.hours + 1)),
            ("EffectiveCost", found.effective, cost, CENT * (len(found.purchases) + 1)),
        ):
            if seen > expected + slack or (dated and seen < expected - slack):
                yield Finding(
                    RuleGroup.USE,
                    at,
                    column,
                    f"{seen} in total on the Usage rows of commitment {name!r}",
                    f"{at_most}{expected.normalize():f}, {bought}",
                )


def _elapsed(found: _Bought, until: datetime) -> tuple[Decimal, Decimal]:
    """Quantity and cost of the part of all purchases' terms before ``until``."""
    quantity = cost = Decimal(0)
    for _, bought, billed, start, end in found.purchases:
        if start is None or end is None:
            continue
        passed = max(min(until, end) - start, timedelta(0))
        share = Decimal(passed // timedelta(microseconds=1)) / ((end - start) // timedelta(microseconds=1))
        quantity += bought * share
        cost += billed * share
    return quantity, cost
