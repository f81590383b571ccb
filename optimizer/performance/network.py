"""Collectives over two tiers: the link inside a node (or rack) and the fabric between.

Arguments broadcast; bytes are per rank unless said otherwise, times are seconds.
"""

from __future__ import annotations

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.calibration import Network
from optimizer.performance.hardware import Hardware


def local_ranks(ranks: Array, inner: Array, hw: Hardware) -> Array:
    """Ranks of a group that share a link domain, when ``inner`` neighbours sit closer than they do."""
    return np.clip(np.floor(hw.link_domain / inner), 1.0, ranks)


def mesh_factor(local: Array, hw: Hardware) -> Array:
    """How much slower a mesh is with part of its peers: a pair uses one of domain − 1 links."""
    peers = np.maximum(local - 1.0, 1.0)
    return 1.0 + hw.mesh * (np.maximum(hw.link_domain - 1.0, 1.0) / peers - 1.0)


def reduce_scatter_s(size: Array, ranks: Array, inner: Array, hw: Hardware, network: Network) -> Array:
    """Reduce-scatter, or all-gather, of ``size`` bytes over ``ranks``; 0 for one rank.

    Inside: (g−1)/g·P/B_link. Between k domains, all network cards at work: (k−1)/k·P/g/B_fabric. The
    time lies between the larger and the sum of both (``overlap_of_tiers``). NCCL's rings, [ml-eng].
    """
    local = local_ranks(ranks, inner, hw)
    domains = ranks / local
    crosses = domains > 1.0
    inside = (local - 1.0) / local * size * (mesh_factor(local, hw) / hw.link_bytes_per_s)
    between = crossing_s((domains - 1.0) / domains * size / local, crosses, hw)
    larger, smaller = np.maximum(inside, between), np.minimum(inside, between)
    start = np.where(local > 1.0, hw.link_start_s, 0.0)
    hops = np.where(crosses, hw.fabric_start_s + hw.fabric_hop_s * (domains - 1.0), 0.0)
    return larger + network.overlap_of_tiers * np.where(crosses, smaller, 0.0) + start + hops


def all_reduce_s(size: Array, ranks: Array, inner: Array, hw: Hardware, network: Network) -> Array:
    """All-reduce of ``size`` bytes: a reduce-scatter and an all-gather, started once."""
    return reduce_scatter_s(2.0 * size, ranks, inner, hw, network)


def crossing_s(size: Array, crosses: Mask, hw: Hardware) -> Array:
    """Time of ``size`` bytes per GPU over the fabric where a group crosses nodes."""
    return np.where(crosses, size / hw.fabric_bytes_per_s, 0.0)


def neighbour_s(size: Array, stride: Array, hw: Hardware) -> Array:
    """Point-to-point of ``size`` bytes between ranks ``stride`` apart."""
    crosses = stride >= hw.link_domain
    inside = size / hw.link_bytes_per_s + hw.link_start_s
    return np.where(crosses, crossing_s(size, crosses, hw) + hw.fabric_start_s, inside)


def all_to_all_s(size: Array, ranks: Array, hw: Hardware, network: Network) -> Array:
    """Exchange where every rank sends ``size`` bytes, spread evenly over ``ranks`` (expert dispatch)."""
    local = local_ranks(ranks, np.ones_like(ranks), hw)
    crosses = ranks > local
    inside = (local - 1.0) / ranks * size / (hw.link_bytes_per_s * network.all_to_all_share)
    outside = (ranks - local) / ranks * size * network.all_to_all_fabric_factor / network.all_to_all_share
    start = np.where(ranks > 1.0, hw.link_start_s, 0.0) + np.where(crosses, hw.fabric_start_s, 0.0)
    total: Array = inside + crossing_s(outside, crosses, hw) + start
    return total
