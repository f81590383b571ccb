"""Columns of a FOCUS Cost and Usage data set: names, types, order by version, and a filter of rows by them.

Source: FinOps Open Cost and Usage Specification, Cost and Usage, 1.2 (57 columns) and 1.4. Our own columns
begin with ``x_`` and follow those of the specification.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.errors import FieldProblem, InputError

Cell = str | Decimal | datetime | None
FocusRow = Mapping[str, Cell]
_COLUMNS = {"provider": "ServiceProviderName", "gpu": "x_AcceleratorType", "region": "RegionId"}
_TAGS = {"workload": "workload", "tier": "broker/tier"}


class FocusVersion(StrEnum):
    """A version of the specification that we can write."""

    V1_2 = "1.2"
    V1_4 = "1.4"


class Kind(StrEnum):
    """Data type of a column."""

    DECIMAL = "decimal"
    STRING = "string"
    TIME = "time"
    JSON = "json"


_DECIMALS = frozenset(
    {
        "BilledCost",
        "CommitmentDiscountQuantity",
        "ConsumedQuantity",
        "ContractedCost",
        "ContractedUnitPrice",
        "EffectiveCost",
        "ListCost",
        "ListUnitPrice",
        "PricingCurrencyContractedUnitPrice",
        "PricingCurrencyEffectiveCost",
        "PricingCurrencyListUnitPrice",
        "PricingQuantity",
        "ProjectedBilledCost",
        "ProjectedEffectiveCost",
        "x_BilledCostUsd",
        "x_EffectiveCostUsd",
        "x_ExchangeRate",
        "x_GpuCount",
    }
)
_TIMES = frozenset(
    {
        "BillingPeriodEnd",
        "BillingPeriodStart",
        "ChargePeriodEnd",
        "ChargePeriodStart",
        "x_AsOf",
        "x_BilledAt",
        "x_TermEnd",
        "x_TermStart",
    }
)
_JSON = frozenset({"AllocatedMethodDetails", "AllocatedTags", "ContractApplied", "SkuPriceDetails", "Tags"})

_BOTH = (
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
)
_ONLY_1_2 = ("ProviderName", "PublisherName")
_ONLY_1_4 = (
    "AllocatedMethodDetails",
    "AllocatedMethodId",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
    "CommitmentProgramEligibilityDetails",
    "ContractApplied",
    "HostProviderName",
    "InvoiceDetailId",
    "ServiceProviderName",
)
_STANDARD: Mapping[FocusVersion, tuple[str, ...]] = {
    FocusVersion.V1_2: tuple(sorted((*_BOTH, *_ONLY_1_2))),
    FocusVersion.V1_4: tuple(sorted((*_BOTH, *_ONLY_1_4))),
}
OWN_COLUMNS = (
    "x_AcceleratorType",
    "x_BilledAt",
    "x_BilledCostUsd",
    "x_EffectiveCostUsd",
    "x_ExchangeRate",
    "x_GpuCount",
    "x_PlacementId",
    "x_PlanId",
    "x_PriceSnapshotId",
    "x_ReservationId",
    "x_TermEnd",
    "x_TermStart",
)


def standard_columns(version: FocusVersion) -> tuple[str, ...]:
    """The specification's columns of ``version``, in our order."""
    return _STANDARD[version]


def focus_columns(version: FocusVersion) -> tuple[str, ...]:
    """Every column that we write, in order."""
    return (*_STANDARD[version], *OWN_COLUMNS)


def kind_of(column: str) -> Kind:
    """The data type of ``column``; an unknown column is a string."""
    if column in _DECIMALS:
        return Kind.DECIMAL
    if column in _TIMES:
        return Kind.TIME
    return Kind.JSON if column in _JSON else Kind.STRING


def row_filter(narrowed: Mapping[str, str]) -> Callable[[FocusRow], bool]:
    """A filter of rows with all values in ``narrowed``. Raises InputError for a field that rows lack."""
    for name in narrowed:
        if name not in _COLUMNS and name not in _TAGS:
            names = ", ".join(sorted({*_COLUMNS, *_TAGS}))
            expected = f"no such filter, because FOCUS rows have only {names}"
            raise InputError("spend", (FieldProblem(f"/{name}", repr(narrowed[name]), expected),))
    columns = {_COLUMNS[name]: word for name, word in narrowed.items() if name in _COLUMNS}
    tags = {_TAGS[name]: word for name, word in narrowed.items() if name in _TAGS}

    def has_words(row: FocusRow) -> bool:
        if any(row.get(column) != word for column, word in columns.items()):
            return False
        if not tags:
            return True
        told = json.loads(str(row.get("Tags") or "{}"))
        return all(told.get(name) == word for name, word in tags.items())

    return has_words
