"""Offers to JSON, as ``api.schemas.market.offer`` reads them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from api.schemas.base.times import format_time
from broker.domain.basics.money import format_usd, to_cents
from broker.domain.basics.node_launch import NodeLaunch
from broker.domain.basics.window import Segment
from broker.domain.market.offer import (
    ContractTerms,
    Offer,
    Stock,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, IntraNode


def offer_to_document(offer: Offer) -> dict[str, Any]:
    """The JSON form of ``offer`` as plain data."""
    sku, native = offer.sku, offer.native
    return {
        "offer_id": offer.offer_id,
        "provider": offer.provider,
        "sku": sku.name,
        "region": offer.region,
        "zone": offer.zone,
        "country": offer.country,
        "place": offer.place,
        "host": offer.host,
        "reliability": offer.reliability,
        "seller": offer.seller,
        "gpu": sku.gpu,
        "gpus_per_node": sku.gpus_per_node,
        "gpu_memory_gb": sku.gpu_memory_gb,
        "vcpus": sku.vcpus,
        "memory_gb": sku.memory_gb,
        "disk_gb": sku.disk_gb,
        "form": str(sku.form) if sku.form is not None else None,
        "intra_node": _intra_node(sku.intra_node),
        "fabric": _fabric(sku.fabric),
        "tier": str(offer.tier),
        "price_usd_per_node_hour": format_usd(offer.price_usd_per_node_hour),
        "upfront_usd": format_usd(offer.upfront_usd) if offer.upfront_usd is not None else None,
        "min_hours": offer.min_hours,
        "billing_increment_s": offer.billing_increment_s,
        "window": window_to_document(offer.window) if offer.window is not None else None,
        "stock": _stock_document(offer.stock),
        "available_until": format_time(offer.available_until) if offer.available_until is not None else None,
        "compliance": sorted(offer.compliance),
        "native": {"amount": format_usd(native.amount), "currency": native.currency, "per": native.per},
        "observed_at": format_time(offer.observed_at),
        "source": offer.source,
        "interruptions_per_hour": offer.interruptions_per_hour,
        "rate_basis": offer.rate_basis,
        "contract": _contract_document(offer.contract),
        "learned": _learned_document(offer),
        "launch": _launch_document(offer.launch),
        "reference": dict(offer.reference),
    }


def _contract_document(contract: ContractTerms | None) -> dict[str, Any] | None:
    if contract is None:
        return None
    upfront = contract.list_upfront_usd
    return {
        "name": contract.name,
        "list_price_usd_per_node_hour": format_usd(contract.list_usd_per_node_hour),
        "list_upfront_usd": format_usd(upfront) if upfront is not None else None,
    }


def _stock_document(stock: Stock) -> dict[str, Any]:
    pool = None if stock.pool is None else {"id": stock.pool.pool_id, "gpus": stock.pool.gpus}
    return {"level": str(stock.level), "nodes": stock.nodes, "pool": pool}


def _learned_document(offer: Offer) -> dict[str, Any] | None:
    learned = offer.learned
    if learned is None:
        return None
    wait_usd = to_cents(offer.price_usd_per_node_hour * Decimal(learned.wait_hours))
    return {
        "success_share": round(learned.success_share, 4),
        "minutes_to_usable": round(learned.minutes_to_usable, 2),
        "attempts": learned.attempts,
        "basis": str(learned.basis),
        "wait_minutes": round(60 * learned.wait_hours, 2),
        "wait_usd_per_node": format_usd(wait_usd),
        "taken_for_sold_out": learned.is_rare,
    }


def _launch_document(launch: NodeLaunch | None) -> dict[str, Any] | None:
    if launch is None:
        return None
    return {
        "launch_s": launch.launch_s,
        "basis": str(launch.basis),
        "image_s": launch.image_s,
        "weights_gbyte_s": launch.weights_gbyte_s,
    }


def _intra_node(link: IntraNode | None) -> dict[str, Any] | None:
    return {"kind": str(link.kind), "gbyte_s": link.gbyte_s} if link is not None else None


def _fabric(fabric: Fabric | None) -> dict[str, Any] | None:
    if fabric is None:
        return None
    measured = fabric.measured_gbit_s_per_node
    return {
        "kind": str(fabric.kind),
        "gbit_s_per_node": fabric.gbit_s_per_node,
        "max_nodes": fabric.max_nodes,
        "domain": fabric.domain,
    } | ({} if measured is None else {"measured_gbit_s_per_node": measured})


def segment_to_document(segment: Segment) -> dict[str, Any]:
    """The JSON form of a segment."""
    return {"start": format_time(segment.start), "end": format_time(segment.end), "nodes": segment.nodes}


def window_to_document(terms: WindowTerms) -> dict[str, Any]:
    """The JSON form of a window's terms."""
    durations = terms.durations_hours
    return {
        "kind": str(terms.kind),
        "segments": [segment_to_document(segment) for segment in terms.segments],
        "anchor_utc": terms.anchor_utc.strftime("%H:%M") if terms.anchor_utc is not None else None,
        "step_hours": terms.step_hours,
        "durations_hours": list(durations) if durations is not None else None,
        "lead_hours": terms.lead_hours,
        "cancel": str(terms.cancel),
        "teardown_s": terms.teardown_s,
        "node_counts": list(terms.node_counts) if terms.node_counts is not None else None,
        "lot_nodes": terms.lot_nodes,
        "begins": str(terms.begins),
        "longest_wait_hours": terms.longest_wait_hours,
        "wait_source": terms.wait_source,
    }
