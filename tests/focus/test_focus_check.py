"""The checker of FOCUS files: our own exports pass it, and every single wrong cell is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusVersion
from broker.domain.focus.rules import RuleGroup
from tests.focus.examples import TextRow, a_bill, text_rows

Pick = Callable[[TextRow], bool]


def usage(row: TextRow) -> bool:
    return row["ChargeCategory"] == "Usage" and not row["CommitmentDiscountId"]


def spot(row: TextRow) -> bool:
    return row["PricingCategory"] == "Dynamic"


def purchase(row: TextRow) -> bool:
    return row["ChargeCategory"] == "Purchase" and row["ChargeFrequency"] == "One-Time"


def recurring(row: TextRow) -> bool:
    return row["ChargeFrequency"] == "Recurring"


def used(row: TextRow) -> bool:
    return row["CommitmentDiscountStatus"] == "Used"


def unused(row: TextRow) -> bool:
    return row["CommitmentDiscountStatus"] == "Unused"


G = RuleGroup
CORRUPTIONS: tuple[tuple[Pick, str, str, RuleGroup], ...] = (
    (usage, "BilledCost", "", G.NULLS),
    (usage, "BilledCost", "49,00", G.TYPES),
    (usage, "BilledCost", "48.99", G.COMMITMENTS),
    (usage, "EffectiveCost", "0.0", G.COMMITMENTS),
    (usage, "ListCost", "49.1", G.PRICES),
    (usage, "ContractedCost", "48", G.PRICES),
    (usage, "ContractedUnitPrice", "-3.0625", G.PRICES),
    (usage, "ListUnitPrice", "", G.NULLS),
    (usage, "PricingQuantity", "15.0", G.PRICES),
    (usage, "PricingQuantity", "", G.NULLS),
    (usage, "PricingUnit", "", G.NULLS),
    (usage, "PricingUnit", "Hours", G.SKUS),
    (usage, "PricingCategory", "On-Demand", G.WORDS),
    (usage, "PricingCategory", "Committed", G.COMMITMENTS),
    (usage, "PricingCategory", "", G.NULLS),
    (usage, "PricingCurrency", "usd", G.CURRENCY),
    (usage, "PricingCurrencyEffectiveCost", "1.0", G.CURRENCY),
    (usage, "BillingCurrency", "EUR", G.CURRENCY),
    (usage, "BillingCurrency", "dollars", G.CURRENCY),
    (usage, "BillingAccountId", "", G.NULLS),
    (usage, "BillingPeriodStart", "2026-11-02T00:00:00Z", G.PERIODS),
    (usage, "BillingPeriodEnd", "2026-12-02T00:00:00Z", G.PERIODS),
    (usage, "ChargePeriodStart", "2026-10-31T23:00:00Z", G.PERIODS),
    (usage, "ChargePeriodStart", "2026-11-23 12:00:00", G.TYPES),
    (usage, "ChargePeriodStart", "2026-13-23T12:00:00Z", G.TYPES),
    (usage, "ChargePeriodEnd", "2026-11-23T11:00:00Z", G.PERIODS),
    (usage, "ChargePeriodEnd", "2026-12-01T00:00:01Z", G.PERIODS),
    (usage, "ChargePeriodEnd", "2026-11-23T13:30:00Z", G.PERIODS),
    (usage, "ChargeCategory", "Forecast", G.WORDS),
    (usage, "ChargeCategory", "Tax", G.NULLS),
    (usage, "ChargeCategory", "Purchase", G.WORDS),
    (usage, "ChargeClass", "Corrected", G.WORDS),
    (usage, "ChargeFrequency", "Hourly", G.WORDS),
    (usage, "ChargeFrequency", "", G.NULLS),
    (usage, "ConsumedQuantity", "", G.NULLS),
    (usage, "ConsumedQuantity", "-16.0", G.PRICES),
    (usage, "ConsumedUnit", "", G.NULLS),
    (usage, "InvoiceIssuerName", "", G.NULLS),
    (usage, "ProviderName", "", G.NULLS),
    (usage, "PublisherName", "", G.NULLS),
    (usage, "RegionId", "", G.NULLS),
    (usage, "ResourceId", "", G.NULLS),
    (usage, "ServiceCategory", "Computing", G.WORDS),
    (usage, "ServiceName", "", G.NULLS),
    (usage, "ServiceSubcategory", "Machine Learning", G.WORDS),
    (usage, "ServiceSubcategory", "Virtual Machines", G.SKUS),
    (usage, "SkuId", "fake/sku-else", G.SKUS),
    (usage, "SkuId", "", G.NULLS),
    (usage, "SkuMeter", "", G.SKUS),
    (usage, "SkuPriceId", "", G.NULLS),
    (usage, "BillingAccountType", "", G.NULLS),
    (usage, "PricingCurrency", "", G.NULLS),
    (usage, "PricingCurrency", " ", G.CURRENCY),
    (usage, "PricingCurrencyEffectiveCost", "", G.NULLS),
    (usage, "PricingCurrencyListUnitPrice", "", G.NULLS),
    (usage, "PricingCurrencyContractedUnitPrice", "", G.NULLS),
    (usage, "PricingCurrencyContractedUnitPrice", "-1.0", G.PRICES),
    (usage, "ServiceSubcategory", "", G.NULLS),
    (usage, "ServiceCategory", "Storage", G.WORDS),
    (usage, "SubAccountName", "", G.NULLS),
    (usage, "ResourceType", "", G.NULLS),
    (usage, "BilledCost", "4.9E+1", G.TYPES),
    (usage, "CommitmentDiscountQuantity", "16.0", G.COMMITMENTS),
    (usage, "Tags", '{"team": "a", "team": "b"}', G.JSON),
    (used, "CommitmentDiscountQuantity", "", G.COMMITMENTS),
    (usage, "SkuPriceDetails", "{'GpuCount': 8}", G.JSON),
    (usage, "SubAccountId", "", G.NULLS),
    (usage, "SubAccountType", "", G.NULLS),
    (usage, "Tags", "team=research", G.JSON),
    (usage, "Tags", '{"team": ["a"]}', G.JSON),
    (usage, "CommitmentDiscountId", "i-early", G.COMMITMENTS),
    (usage, "CapacityReservationStatus", "Used", G.COMMITMENTS),
    (spot, "PricingCategory", "Spot", G.WORDS),
    (purchase, "EffectiveCost", "504.0", G.COMMITMENTS),
    (purchase, "BilledCost", "503.0", G.USE),
    (purchase, "ChargeFrequency", "Usage-Based", G.WORDS),
    (purchase, "PricingCategory", "Committed", G.COMMITMENTS),
    (purchase, "CommitmentDiscountQuantity", "376.0", G.USE),
    (purchase, "CommitmentDiscountQuantity", "", G.NULLS),
    (purchase, "CommitmentDiscountStatus", "Used", G.COMMITMENTS),
    (purchase, "ConsumedQuantity", "384.0", G.NULLS),
    (purchase, "CommitmentDiscountId", "", G.NULLS),
    (recurring, "BilledCost", "1.0", G.USE),
    (recurring, "x_TermEnd", "2026-11-24T00:00:00Z", G.USE),
    (used, "BilledCost", "10.5", G.COMMITMENTS),
    (used, "EffectiveCost", "12.5", G.USE),
    (used, "CommitmentDiscountStatus", "", G.COMMITMENTS),
    (used, "CommitmentDiscountStatus", "Partly", G.WORDS),
    (used, "CommitmentDiscountStatus", "Unused", G.NULLS),
    (used, "CommitmentDiscountQuantity", "7.0", G.USE),
    (used, "CommitmentDiscountCategory", "Hours", G.WORDS),
    (used, "CommitmentDiscountType", "", G.NULLS),
    (used, "CommitmentDiscountUnit", "", G.NULLS),
    (used, "CommitmentDiscountId", "i-other", G.USE),
    (used, "PricingCategory", "Standard", G.COMMITMENTS),
    (unused, "ConsumedQuantity", "8.0", G.NULLS),
    (unused, "CommitmentDiscountStatus", "Used", G.NULLS),
    (unused, "CapacityReservationStatus", "Used", G.COMMITMENTS),
)


@pytest.mark.parametrize("version", list(FocusVersion))
@pytest.mark.parametrize("hours", [0.0, 0.5, 13.25, 48.0, 240.5, 900.0])
def test_our_own_rows_pass(version: FocusVersion, hours: float) -> None:
    header, rows = text_rows([r for r in a_bill() if hours >= 20 or not r.released_at], hours, version)
    assert [str(finding) for finding in check_focus(header, rows)] == []


def test_the_bill_has_every_kind_of_row() -> None:
    _, rows = text_rows(a_bill())
    for pick in (usage, spot, purchase, recurring, used, unused):
        assert any(pick(row) for row in rows), pick


@pytest.mark.parametrize(
    ("pick", "column", "value", "group"),
    CORRUPTIONS,
    ids=[f"{p.__name__}-{c}-{v}" for p, c, v, _ in CORRUPTIONS],
)
def test_one_wrong_cell_is_caught(pick: Pick, column: str, value: str, group: RuleGroup) -> None:
    header, rows = text_rows(a_bill())
    row = next(row for row in rows if pick(row))
    assert row[column] != value
    row[column] = value
    findings = list(check_focus(header, rows))
    assert group in {finding.group for finding in findings}, [str(finding) for finding in findings]
    assert all(str(finding) for finding in findings)


@pytest.mark.parametrize(
    ("before", "after", "group"),
    [
        ("BilledCost", "Cost", RuleGroup.COLUMNS),
        ("ProviderName", "Provider", RuleGroup.COLUMNS),
        ("Tags", "tags", RuleGroup.ORDER),
        ("SubAccountName", "x_SubAccountName", RuleGroup.ORDER),
        ("EffectiveCost", "BilledCost", RuleGroup.COLUMNS),
    ],
)
def test_a_wrong_header_is_caught(before: str, after: str, group: RuleGroup) -> None:
    header, rows = text_rows(a_bill())
    changed = [after if name == before else name for name in header]
    renamed = [{after if name == before else name: cell for name, cell in row.items()} for row in rows]
    assert group in {finding.group for finding in check_focus(changed, renamed)}


def test_a_row_left_out_or_given_twice_is_caught() -> None:
    header, rows = text_rows(a_bill())
    at = next(i for i, row in enumerate(rows) if used(row))
    missing = rows[:at] + rows[at + 1 :]
    assert RuleGroup.USE in {finding.group for finding in check_focus(header, missing)}
    twice = [*rows, dict(rows[at])]
    assert RuleGroup.PERIODS in {finding.group for finding in check_focus(header, twice)}


def test_a_virtual_pricing_currency_is_a_rule_of_its_version() -> None:
    """FOCUS 1.2 knows virtual currencies (credits, tokens); 1.4 asks a code of ISO 4217 of every currency."""
    for version, told in ((FocusVersion.V1_2, []), (FocusVersion.V1_4, ["PricingCurrency"])):
        header, rows = text_rows(a_bill()[:1], 10, version)
        priced = [
            {**row, "PricingCurrency": "Credits", "PricingCurrencyListUnitPrice": "3.0"} for row in rows
        ]
        assert sorted({finding.column for finding in check_focus(header, priced)}) == told
        billed = [{**row, "BillingCurrency": "Credits"} for row in rows]
        assert "BillingCurrency" in {finding.column for finding in check_focus(header, billed)}


def test_each_account_is_billed_in_one_currency_and_accounts_may_differ() -> None:
    header, rows = text_rows(a_bill()[:1], 10)
    euros = {"BillingCurrency": "EUR", "PricingCurrency": "EUR"}
    other = [{**row, **euros, "BillingAccountId": "eu/1", "ResourceId": "eu-1"} for row in rows]
    assert list(check_focus(header, [*rows, *other])) == []
    (first, *_) = check_focus(header, [rows[0], {**rows[1], **euros}])
    assert (first.column, first.group) == ("BillingCurrency", RuleGroup.CURRENCY)


def test_tax_rows_have_no_price() -> None:
    header, rows = text_rows(a_bill()[:1], 10)
    found = {finding.column for finding in check_focus(header, [{**rows[0], "ChargeCategory": "Tax"}])}
    priced = {
        "ContractedUnitPrice",
        "ListUnitPrice",
        "PricingCategory",
        "PricingQuantity",
        "SkuId",
        "SkuPriceId",
    }
    assert found >= {*priced, "PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice"}


def test_charge_periods_that_contain_their_end_are_told() -> None:
    header, rows = text_rows(a_bill()[:1], 10)
    inclusive = [
        {**row, "ChargePeriodEnd": row["ChargePeriodStart"].replace(":00:00Z", ":59:59Z")} for row in rows
    ]
    (found,) = check_focus(header, inclusive)
    assert (found.column, found.group) == ("ChargePeriodEnd", RuleGroup.PERIODS)
    (mixed,) = check_focus(header, [*inclusive[:-1], rows[-1]])
    assert (mixed.row, mixed.column) == (1, "ChargePeriodEnd")
    assert f"{len(rows) - 1} of {len(rows)} rows" in mixed.expected
    (few,) = check_focus(header, [rows[0], *inclusive[1:3], *rows[3:]])
    assert few.row == 2
    assert list(check_focus(header, [*inclusive[:1], *rows[1:]])) == []


def test_a_correction_may_be_negative() -> None:
    header, rows = text_rows(a_bill()[:1], 10)
    row = {**rows[0], "ChargeClass": "Correction", "BilledCost": "-49.0", "EffectiveCost": "-49.0"}
    row |= {"PricingCurrencyEffectiveCost": "-49.0", "PricingQuantity": "-16.0", "ConsumedQuantity": "-16.0"}
    row |= {"ListCost": "-49.0", "ContractedCost": "-49.0"}
    assert list(check_focus(header, [*rows, row])) == []
