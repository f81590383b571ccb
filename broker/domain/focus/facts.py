"""Requirements of the FOCUS specification: mandatory columns, columns without nulls, allowed values.

Source: FOCUS 1.2 and 1.4, Cost and Usage, the columns' own requirements.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.focus.columns import FocusVersion

_MANDATORY = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ServiceCategory",
    "ServiceName",
)
_NAMES: Mapping[FocusVersion, tuple[str, ...]] = {
    FocusVersion.V1_2: ("ProviderName", "PublisherName"),
    FocusVersion.V1_4: ("ServiceProviderName", "HostProviderName"),
}
_NULLABLE = frozenset(
    {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
)
FILLED_IF_PRESENT = ("ChargeFrequency",)

WORDS: Mapping[str, frozenset[str]] = {
    "CapacityReservationStatus": frozenset({"Used", "Unused"}),
    "ChargeCategory": frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeClass": frozenset({"Correction"}),
    "ChargeFrequency": frozenset({"One-Time", "Recurring", "Usage-Based"}),
    "CommitmentDiscountCategory": frozenset({"Spend", "Usage"}),
    "CommitmentDiscountStatus": frozenset({"Used", "Unused"}),
    "PricingCategory": frozenset({"Standard", "Dynamic", "Committed", "Other"}),
    "ServiceCategory": frozenset(
        {
            "AI and Machine Learning",
            "Analytics",
            "Business Applications",
            "Compute",
            "Databases",
            "Developer Tools",
            "Identity",
            "Integration",
            "Internet of Things",
            "Management and Governance",
            "Media",
            "Migration",
            "Mobile",
            "Multicloud",
            "Networking",
            "Other",
            "Security",
            "Storage",
            "Web",
        }
    ),
}
SUBCATEGORIES: Mapping[str, frozenset[str]] = {
    "AI and Machine Learning": frozenset(
        {
            "AI Platforms",
            "Bots",
            "Generative AI",
            "Machine Learning",
            "Natural Language Processing",
            "Other (AI and Machine Learning)",
        }
    ),
    "Compute": frozenset(
        {
            "Containers",
            "End User Computing",
            "Quantum Compute",
            "Serverless Compute",
            "Virtual Machines",
            "Other (Compute)",
        }
    ),
}
ALL_OR_NONE = (
    ("CommitmentDiscountId", "CommitmentDiscountCategory", "CommitmentDiscountType"),
    ("ConsumedQuantity", "ConsumedUnit"),
    ("CommitmentDiscountQuantity", "CommitmentDiscountUnit"),
    ("PricingQuantity", "PricingUnit"),
    ("RegionId", "RegionName"),
    ("SkuId", "SkuMeter"),
    ("SubAccountId", "SubAccountType"),
)
"""Groups of columns of which a row must have all or none."""

NEEDS: Mapping[str, str] = {
    "AvailabilityZone": "RegionId",
    "CommitmentDiscountName": "CommitmentDiscountId",
    "ResourceName": "ResourceId",
    "ResourceType": "ResourceId",
    "SkuPriceDetails": "SkuPriceId",
    "SkuPriceId": "SkuId",
    "SubAccountName": "SubAccountId",
}
"""Columns that must be empty if another column is: column → the column that it needs."""


def mandatory(version: FocusVersion) -> tuple[str, ...]:
    """Mandatory columns of a data set."""
    return (*_MANDATORY, *_NAMES[version])


def filled(version: FocusVersion) -> tuple[str, ...]:
    """Columns that must not be empty in any row."""
    return tuple(name for name in (*mandatory(version), *FILLED_IF_PRESENT) if name not in _NULLABLE)
