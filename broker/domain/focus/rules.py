"""Rules of a FOCUS data set that concern a single row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.focus.columns import FocusVersion, Kind, kind_of
from broker.domain.focus.facts import (
    ALL_OR_NONE,
    FILLED_IF_PRESENT,
    NEEDS,
    PRICED_COLUMNS,
    SUBCATEGORIES,
    WORDS,
    filled,
)

TOLERANCE = Decimal("0.000001")
PRICED = frozenset({"Usage", "Purchase"})
MICROS_PER_HOUR = 3_600_000_000
_DECIMAL = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}")
_LIKE_A_CODE = re.compile(r"[A-Za-z]{3}")
_NESTED = ("AllocatedMethodDetails", "ContractApplied")
_PRICES = (
    ("ListCost", "ListUnitPrice"),
    ("ContractedCost", "ContractedUnitPrice"),
)
_IN_PRICING_CURRENCY = (
    ("PricingCurrencyContractedUnitPrice", "ContractedUnitPrice"),
    ("PricingCurrencyEffectiveCost", "EffectiveCost"),
    ("PricingCurrencyListUnitPrice", "ListUnitPrice"),
)


class RuleGroup(StrEnum):
    """The twelve groups of rules."""

    COLUMNS = "columns"
    TYPES = "types"
    WORDS = "words"
    NULLS = "nulls"
    PERIODS = "periods"
    PRICES = "prices"
    COMMITMENTS = "commitments"
    USE = "use"
    CURRENCY = "currency"
    SKUS = "skus"
    JSON = "json"
    ORDER = "order"


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule. ``row`` counts from 1 after the header; 0 is the header.

    "``column`` is ``found``; it must be ``expected``" is a sentence.
    """

    group: RuleGroup
    row: int
    column: str
    found: str
    expected: str

    def __str__(self) -> str:
        where = f"Row {self.row}" if self.row else "Header"
        return f"{where}: {self.column} is {self.found}; it must be {self.expected}. [{self.group}]"


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row as text, with its parsed numbers and times; ``""`` is null."""

    number: int
    cells: Mapping[str, str]
    decimals: Mapping[str, Decimal]
    times: Mapping[str, datetime]

    def text(self, column: str) -> str:
        """The text of a cell; empty if the column is missing."""
        return self.cells.get(column, "")

    def finding(self, group: RuleGroup, column: str, expected: str) -> Finding:
        """A violation in ``column``."""
        text = self.text(column)
        return Finding(group, self.number, column, repr(text) if text else "empty", expected)


def read_row(number: int, cells: Mapping[str, str]) -> tuple[CheckedRow, list[Finding]]:
    """A row with its numbers and times parsed, and a finding for each cell that cannot be parsed."""
    row = CheckedRow(number, cells, decimals := {}, times := {})
    findings = []
    for column, text in cells.items():
        kind = kind_of(column)
        if not text or kind in (Kind.STRING, Kind.JSON):
            continue
        if kind is Kind.DECIMAL and _DECIMAL.fullmatch(text):
            decimals[column] = Decimal(text)
        elif kind is Kind.TIME and (instant := _instant(text)) is not None:
            times[column] = instant
        else:
            decimal = kind is Kind.DECIMAL
            expected = "a decimal number" if decimal else "a UTC time, such as 2026-11-23T12:00:00Z"
            findings.append(row.finding(RuleGroup.TYPES, column, expected))
    return row, findings


def _instant(text: str) -> datetime | None:
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def check_row(row: CheckedRow, version: FocusVersion) -> Iterator[Finding]:
    """All violations within the row."""
    yield from _words(row)
    yield from _nulls(row, version)
    yield from _priced_nulls(row)
    yield from _periods(row)
    yield from _prices(row)
    yield from _commitments(row)
    yield from _terms(row)
    yield from _costs(row)
    yield from _currencies(row, version)
    yield from _json(row)


def _words(row: CheckedRow) -> Iterator[Finding]:
    for column, allowed in WORDS.items():
        if row.text(column) and row.text(column) not in allowed:
            yield row.finding(RuleGroup.WORDS, column, "one of " + ", ".join(sorted(allowed)))
    within = SUBCATEGORIES.get(row.text("ServiceCategory"))
    if within is not None and row.text("ServiceSubcategory") and row.text("ServiceSubcategory") not in within:
        yield row.finding(RuleGroup.WORDS, "ServiceSubcategory", "one of " + ", ".join(sorted(within)))
    if row.text("ChargeCategory") == "Purchase" and row.text("ChargeFrequency") == "Usage-Based":
        yield row.finding(RuleGroup.WORDS, "ChargeFrequency", "One-Time or Recurring on a Purchase row")


def _nulls(row: CheckedRow, version: FocusVersion) -> Iterator[Finding]:
    for column in filled(version):
        if not row.text(column) and (column in row.cells or column not in FILLED_IF_PRESENT):
            yield row.finding(RuleGroup.NULLS, column, "filled")
    for columns in ALL_OR_NONE:
        there = [column for column in columns if row.text(column)]
        if there and len(there) < len(columns):
            for column in columns:
                if column in row.cells and not row.text(column):
                    yield row.finding(RuleGroup.NULLS, column, f"filled if {there[0]} is filled")
    for column, needed in NEEDS.items():
        if row.text(column) and not row.text(needed):
            yield row.finding(RuleGroup.NULLS, column, f"empty if {needed} is empty")


def _priced_nulls(row: CheckedRow) -> Iterator[Finding]:
    category = row.text("ChargeCategory")
    corrected = row.text("ChargeClass") == "Correction"
    if category in PRICED and not corrected:
        for column in PRICED_COLUMNS:
            if column in row.cells and not row.text(column):
                yield row.finding(RuleGroup.NULLS, column, f"filled on a {category} row")
    elif category == "Tax":
        for column in PRICED_COLUMNS:
            if row.text(column):
                yield row.finding(RuleGroup.NULLS, column, "empty on a Tax row")
    unused = row.text("CommitmentDiscountStatus") == "Unused"
    if category == "Usage" and not unused and "ConsumedQuantity" in row.cells and not corrected:
        if not row.text("ConsumedQuantity"):
            yield row.finding(RuleGroup.NULLS, "ConsumedQuantity", "filled on a Usage row")
    elif (unused or category != "Usage") and row.text("ConsumedQuantity"):
        expected = "empty except on Usage rows that are not Unused"
        yield row.finding(RuleGroup.NULLS, "ConsumedQuantity", expected)


def _periods(row: CheckedRow) -> Iterator[Finding]:
    start, end = row.times.get("ChargePeriodStart"), row.times.get("ChargePeriodEnd")
    first, last = row.times.get("BillingPeriodStart"), row.times.get("BillingPeriodEnd")
    if first is not None and first != first.replace(day=1, hour=0, minute=0, second=0, microsecond=0):
        yield row.finding(RuleGroup.PERIODS, "BillingPeriodStart", "the first instant of a month")
    elif first is not None and last is not None and last != (first + timedelta(days=32)).replace(day=1):
        yield row.finding(RuleGroup.PERIODS, "BillingPeriodEnd", "the first instant of the next month")
    if start is not None and end is not None and end <= start:
        yield row.finding(RuleGroup.PERIODS, "ChargePeriodEnd", "after ChargePeriodStart")
    if row.text("ChargeCategory") == "Purchase":
        return  # the term may begin and end in other months than that of the bill
    if start is not None and first is not None and start < first:
        yield row.finding(RuleGroup.PERIODS, "ChargePeriodStart", "at or after BillingPeriodStart")
    if end is not None and last is not None and end > last:
        yield row.finding(RuleGroup.PERIODS, "ChargePeriodEnd", "at or before BillingPeriodEnd")


def _prices(row: CheckedRow) -> Iterator[Finding]:
    quantity = row.decimals.get("PricingQuantity")
    for price in (*(price for _, price in _PRICES), *(there for there, _ in _IN_PRICING_CURRENCY)):
        if price != "PricingCurrencyEffectiveCost" and row.decimals.get(price, Decimal(0)) < 0:
            yield row.finding(RuleGroup.PRICES, price, "at least 0")
    for cost, price in _PRICES:
        if quantity is not None and cost in row.decimals and price in row.decimals:
            product = row.decimals[price] * quantity
            if abs(row.decimals[cost] - product) > TOLERANCE:
                yield row.finding(
                    RuleGroup.PRICES, cost, f"{price} times PricingQuantity, which is {product}"
                )
    corrected = row.text("ChargeClass") == "Correction"
    for name in ("PricingQuantity", "ConsumedQuantity"):
        if not corrected and row.decimals.get(name, Decimal(0)) < 0:
            yield row.finding(RuleGroup.PRICES, name, "at least 0 unless the row is a Correction")


def _commitments(row: CheckedRow) -> Iterator[Finding]:
    for kind in ("CommitmentDiscount", "CapacityReservation"):
        status, used_by = row.text(f"{kind}Status"), row.text(f"{kind}Id")
        needed = bool(used_by) and row.text("ChargeCategory") == "Usage"
        if needed != bool(status) and f"{kind}Status" in row.cells:
            expected = f"{'filled' if needed else 'empty except'} on Usage rows that have a {kind}Id"
            yield row.finding(RuleGroup.COMMITMENTS, f"{kind}Status", expected)
    committed, covered = row.text("PricingCategory") == "Committed", row.text("CommitmentDiscountStatus")
    if committed != bool(covered) and "PricingCategory" in row.cells:
        expected = "Committed if CommitmentDiscountStatus is filled, and only then"
        yield row.finding(RuleGroup.COMMITMENTS, "PricingCategory", expected)
    reserved = row.text("CapacityReservationStatus")
    if covered and reserved and covered != reserved and "CommitmentDiscountId" in row.cells:
        same = row.text("CommitmentDiscountId") == row.text("CapacityReservationId")
        if same:
            expected = f"{covered}, the CommitmentDiscountStatus of the same commitment"
            yield row.finding(RuleGroup.COMMITMENTS, "CapacityReservationStatus", expected)
    yield from _committed_quantity(row)


def _committed_quantity(row: CheckedRow) -> Iterator[Finding]:
    column = "CommitmentDiscountQuantity"
    counts = bool(row.text("CommitmentDiscountId")) and row.text("ChargeCategory") in PRICED
    if row.text(column) and not counts:
        expected = "empty except on Usage and Purchase rows that have a CommitmentDiscountId"
        yield row.finding(RuleGroup.COMMITMENTS, column, expected)
    elif counts and column in row.cells and not row.text(column) and row.text("ChargeClass") != "Correction":
        yield row.finding(RuleGroup.COMMITMENTS, column, "filled with the quantity that was bought or used")


def _terms(row: CheckedRow) -> Iterator[Finding]:
    """The quantity of a row with a term must be its GPUs times the hours of the term."""
    start, end, gpus = (
        row.times.get("x_TermStart"),
        row.times.get("x_TermEnd"),
        row.decimals.get("x_GpuCount"),
    )
    quantity = row.decimals.get("CommitmentDiscountQuantity")
    if start is None or end is None or gpus is None or quantity is None:
        return
    hours = Decimal((end - start) // timedelta(microseconds=1)) / MICROS_PER_HOUR
    if abs(gpus * hours - quantity) > TOLERANCE:
        expected = f"{gpus * hours:f}: {gpus} GPUs for the {hours} hours of the term"
        yield row.finding(RuleGroup.USE, "CommitmentDiscountQuantity", expected)


def _costs(row: CheckedRow) -> Iterator[Finding]:
    """A commitment has its billed cost on the Purchase and its effective cost on the hours of use."""
    billed, effective = row.decimals.get("BilledCost"), row.decimals.get("EffectiveCost")
    if billed is None or effective is None:
        return
    category, commitment = row.text("ChargeCategory"), row.text("CommitmentDiscountId")
    if category == "Purchase" and commitment and effective != 0:
        yield row.finding(RuleGroup.COMMITMENTS, "EffectiveCost", "0 on the Purchase row of a commitment")
    if category == "Usage" and row.text("CommitmentDiscountStatus") and billed != 0:
        yield row.finding(RuleGroup.COMMITMENTS, "BilledCost", "0 on Usage rows that a commitment covers")
    if category == "Usage" and not commitment and billed != effective:
        seller = row.text("ProviderName") or row.text("ServiceProviderName")
        if billed != 0 or row.text("InvoiceIssuerName") == seller:
            yield row.finding(
                RuleGroup.COMMITMENTS, "BilledCost", f"equal to EffectiveCost, which is {effective}"
            )


def _currencies(row: CheckedRow, version: FocusVersion) -> Iterator[Finding]:
    for column in ("BillingCurrency", "PricingCurrency"):
        text = row.text(column)
        if not text or _CURRENCY.fullmatch(text):
            continue
        expected = "a currency code of three capital letters (ISO 4217)"
        if column == "BillingCurrency" or version is not FocusVersion.V1_2 or _LIKE_A_CODE.fullmatch(text):
            yield row.finding(RuleGroup.CURRENCY, column, expected)
        elif not text.strip():
            yield row.finding(RuleGroup.CURRENCY, column, f"{expected} or the name of a virtual currency")
    if row.text("PricingCurrency") and row.text("PricingCurrency") == row.text("BillingCurrency"):
        for there, here in _IN_PRICING_CURRENCY:
            if there in row.decimals and here in row.decimals and row.decimals[there] != row.decimals[here]:
                expected = f"equal to {here}, which is {row.decimals[here]} in the same currency"
                yield row.finding(RuleGroup.CURRENCY, there, expected)


def _json(row: CheckedRow) -> Iterator[Finding]:
    for column, text in row.cells.items():
        if text and kind_of(column) is Kind.JSON and not _is_flat(text, column):
            expected = (
                "a JSON object" if column in _NESTED else "a JSON object without nested lists or objects"
            ) + ", each key once"
            yield row.finding(RuleGroup.JSON, column, expected)


def _is_flat(text: str, column: str) -> bool:
    try:
        read = json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return False
    if not isinstance(read, dict):
        return False
    if column in _NESTED:
        return True
    return all(not isinstance(value, dict | list) for value in read.values())


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of ``pairs``. Raises ValueError for a key that occurs twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found
