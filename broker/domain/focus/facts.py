"""Requirements of the FOCUS specification: mandatory columns, columns without nulls, allowed values.

Source: FOCUS 1.2 and 1.4, Cost and Usage, the columns' own normative requirements ("MUST NOT be null", "MUST
be null when"), not their tables of constraints, with which 1.2 contradicts them.
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
FILLED_IF_PRESENT = (
    "BillingAccountType",
    "ChargeFrequency",
    "PricingCurrency",
    "PricingCurrencyEffectiveCost",
    "ServiceSubcategory",
)
"""Columns that a data set may leave out, and of which no cell may be null."""

PRICED_COLUMNS = (
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "SkuId",
    "SkuPriceId",
)
"""Columns that are filled on Usage and Purchase rows, but for corrections, and null on Tax rows."""

_SERVICES = """
AI and Machine Learning: AI Platforms, Bots, Generative AI, Machine Learning, Natural Language Processing
Analytics: Analytics Platforms, Business Intelligence, Data Processing, Search, Streaming Analytics
Business Applications: Productivity and Collaboration
Compute: Containers, End User Computing, Quantum Compute, Serverless Compute, Virtual Machines
Databases: Caching, Data Warehouses, Ledger Databases, NoSQL Databases, Relational Databases, \
Time Series Databases
Developer Tools: Developer Platforms, Continuous Integration and Deployment, Development Environments, \
Source Code Management, Quality Assurance
Identity: Identity and Access Management
Integration: API Management, Messaging, Workflow Orchestration
Internet of Things: IoT Analytics, IoT Platforms
Management and Governance: Architecture, Compliance, Cost Management, Data Governance, Disaster Recovery, \
Endpoint Management, Observability, Support
Media: Content Creation, Gaming, Media Streaming, Mixed Reality
Migration: Data Migration, Resource Migration
Mobile
Multicloud: Multicloud Integration
Networking: Application Networking, Content Delivery, Network Connectivity, Network Infrastructure, \
Network Routing, Network Security
Other
Security: Secret Management, Security Posture Management, Threat Detection and Response
Storage: Backup Storage, Block Storage, File Storage, Object Storage, Storage Platforms
Web: Application Platforms
"""
SUBCATEGORIES: Mapping[str, frozenset[str]] = {
    category: frozenset({*(name for name in names.split(", ") if name), f"Other ({category})"})
    for category, _, names in (line.partition(": ") for line in _SERVICES.strip().splitlines())
}

WORDS: Mapping[str, frozenset[str]] = {
    "CapacityReservationStatus": frozenset({"Used", "Unused"}),
    "ChargeCategory": frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeClass": frozenset({"Correction"}),
    "ChargeFrequency": frozenset({"One-Time", "Recurring", "Usage-Based"}),
    "CommitmentDiscountCategory": frozenset({"Spend", "Usage"}),
    "CommitmentDiscountStatus": frozenset({"Used", "Unused"}),
    "PricingCategory": frozenset({"Standard", "Dynamic", "Committed", "Other"}),
    "ServiceCategory": frozenset(SUBCATEGORIES),
}
ALL_OR_NONE = (
    ("CommitmentDiscountId", "CommitmentDiscountCategory", "CommitmentDiscountType"),
    ("ConsumedQuantity", "ConsumedUnit"),
    ("CommitmentDiscountQuantity", "CommitmentDiscountUnit"),
    ("PricingQuantity", "PricingUnit"),
    ("RegionId", "RegionName"),
    ("ResourceId", "ResourceType"),
    ("SubAccountId", "SubAccountName", "SubAccountType"),
)
"""Groups of columns of which a row must have all or none."""

NEEDS: Mapping[str, str] = {
    "AvailabilityZone": "RegionId",
    "CommitmentDiscountName": "CommitmentDiscountId",
    "ResourceName": "ResourceId",
    "SkuMeter": "SkuId",
    "SkuPriceDetails": "SkuPriceId",
    "SkuPriceId": "SkuId",
}
"""Columns that must be empty if another column is: column → the column that it needs."""


def mandatory(version: FocusVersion) -> tuple[str, ...]:
    """Mandatory columns of a data set."""
    return (*_MANDATORY, *_NAMES[version])


def filled(version: FocusVersion) -> tuple[str, ...]:
    """Columns that must not be empty in any row."""
    return tuple(name for name in (*mandatory(version), *FILLED_IF_PRESENT) if name not in _NULLABLE)
