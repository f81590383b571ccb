"""Collectives over two tiers: the link inside a node (or rack), and the fabric between nodes.

Arguments broadcast; bytes are per rank unless stated otherwise, times are seconds.
"""

from __future__ import annotations

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.constants.groups import Network
from optimizer.performance.hardware.sku_arrays import Hardware


def local_ranks(ranks: Array, inner: Array, hw: Hardware) -> Array:
    """Ranks of a group within one link domain, if ``inner`` ranks of other groups lie between its
    neighbours.
    """
    return xp.clip(xp.floor(hw.link_domain / inner), 1.0, ranks)


def mesh_factor(local: Array, hw: Hardware) -> Array:
    """Slowdown of a mesh that uses only part of its peers: each pair has one of domain − 1 links."""
    peers = xp.maximum(local - 1.0, 1.0)
    return 1.0 + hw.mesh * (xp.maximum(hw.link_domain - 1.0, 1.0) / peers - 1.0)


def reduce_scatter_s(size: Array, ranks: Array, inner: Array, hw: Hardware, network: Network) -> Array:
    """Reduce-scatter, or all-gather, of ``size`` bytes over ``ranks``; 0 for one rank.

    With g ranks in a link domain, k domains and P bytes, a ring takes [ml-eng]

      (g − 1)/g · P/B_link   inside a domain
      (k − 1)/k · P/(g·B_fabric)   between domains, with all network cards in use

    Both rates rise with the message size (``ramped``); ``_joined_s`` combines the two times.
    """
    local = local_ranks(ranks, inner, hw)
    inside = (local - 1.0) / local * size * (mesh_factor(local, hw) / hw.link_bytes_per_s)
    domains = ranks / local
    latency = _ring_latency_s(domains, hw)
    return _joined_s(inside, size, domains, local, latency, hw, network)


def all_reduce_s(
    size: Array, ranks: Array, inner: Array, hw: Hardware, network: Network, in_switch: bool = False
) -> Array:
    """All-reduce of ``size`` bytes: a reduce-scatter and an all-gather with one start.

    Between nodes the faster of a ring and a tree (log₂ k levels, one start of the fabric each) is used.
    ``in_switch``: a true all-reduce, in which NVSwitch may do the addition (NVLS). It then sends (1 + 1/g)·P
    per GPU at its own share of the link instead of the ring's 2(g − 1)/g·P; the faster is used, which is the
    switch from 5 or 6 GPUs on. Sequence-parallel stacks use the two halves separately, and these never run in
    the switch.
    """
    local = local_ranks(ranks, inner, hw)
    inside = 2.0 * (local - 1.0) / local * size * (mesh_factor(local, hw) / hw.link_bytes_per_s)
    if in_switch:
        rate = xp.maximum(hw.link_raw_bytes_per_s * hw.switch_share, 1.0)
        inside = xp.minimum(inside, (1.0 + 1.0 / local) * size / rate)
    domains = ranks / local
    tree = hw.fabric_start_s * xp.log2(domains)
    latency = xp.minimum(_ring_latency_s(domains, hw), tree)
    return _joined_s(inside, 2.0 * size, domains, local, latency, hw, network)


def _ring_latency_s(domains: Array, hw: Hardware) -> Array:
    """Start of a ring over ``domains`` nodes: one hop for each node after the second."""
    latency: Array = hw.fabric_start_s + hw.fabric_hop_s * xp.maximum(domains - 2.0, 0.0)
    return latency


def ramped(seconds: Array, ramp_s: Array) -> Array:
    """Time of a message whose bytes alone take x = ``seconds``, with r = ``ramp_s``:

      x + r·x/(x + r)

    Short messages take 2x (protocols that send a flag with every word, few channels), long ones x + r. With a
    start time s, half of the full rate is reached at x = s + r·x/(x + r).
    """
    later: Array = seconds + ramp_s * seconds / (seconds + ramp_s)
    return later


def _joined_s(
    inside: Array, size: Array, domains: Array, local: Array, latency: Array, hw: Hardware, network: Network
) -> Array:
    """Combined time of both tiers: the larger, a share ``overlap_of_tiers`` of the smaller, and the starts.

    ``inside``: seconds of the bytes on the link; ``size``: bytes that a domain moves over the fabric;
    ``latency``: seconds before the first of these arrive, if domains are crossed.
    """
    crosses = domains > 1.0
    outside = crossing_s((domains - 1.0) / domains * size / local, crosses, hw)
    inside, between = ramped(inside, hw.link_ramp_s), ramped(outside, hw.fabric_ramp_s)
    larger, smaller = xp.maximum(inside, between), xp.minimum(inside, between)
    start = xp.where(local > 1.0, hw.link_start_s, 0.0)
    return larger + xp.where(crosses, network.overlap_of_tiers * smaller + latency, 0.0) + start


def crossing_s(size: Array, crosses: Mask, hw: Hardware) -> Array:
    """Time of ``size`` bytes per GPU over the fabric if a group spans nodes."""
    return xp.where(crosses, size / hw.fabric_bytes_per_s, 0.0)


def neighbour_s(size: Array, stride: Array, hw: Hardware) -> Array:
    """Point-to-point transfer of ``size`` bytes between ranks ``stride`` apart."""
    crosses = stride >= hw.link_domain
    inside = size / hw.link_bytes_per_s + hw.link_start_s
    return xp.where(crosses, crossing_s(size, crosses, hw) + hw.fabric_start_s, inside)


def all_to_all_s(size: Array, ranks: Array, hw: Hardware, network: Network) -> Array:
    """All-to-all in which every rank sends ``size`` bytes, spread evenly over ``ranks`` (expert dispatch)."""
    local = local_ranks(ranks, xp.ones_like(ranks), hw)
    crosses = ranks > local
    inside = (local - 1.0) / ranks * size / (hw.link_bytes_per_s * network.all_to_all_share)
    outside = (ranks - local) / ranks * size * network.all_to_all_fabric_factor / network.all_to_all_share
    start = xp.where(ranks > 1.0, hw.link_start_s, 0.0) + xp.where(crosses, hw.fabric_start_s, 0.0)
    total: Array = inside + crossing_s(outside, crosses, hw) + start
    return total


def dispatch_once_s(size: Array, active: Array, ranks: Array, hw: Hardware) -> Array:
    """Expert dispatch that sends a token to each node once and copies it there; ``size``: bytes to all
    ``active`` experts.

    With d nodes and k active experts a token reaches (d − 1)·(1 − (1 − 1/d)^k) other nodes. Copies inside a
    node overlap with that; both run at the rates of rings [DeepEP's README: 43-58 GB/s between nodes with 50
    GB/s cards, 153 inside with 160].
    """
    local = local_ranks(ranks, xp.ones_like(ranks), hw)
    domains = ranks / local
    others = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains) ** active)
    between = crossing_s(size / xp.maximum(active, 1.0) * others, domains > 1.0, hw)
    inside = (local - 1.0) / local * size / hw.link_bytes_per_s
    start = xp.where(ranks > 1.0, hw.link_start_s, 0.0) + xp.where(domains > 1.0, hw.fabric_start_s, 0.0)
    total: Array = xp.maximum(inside, between) + start
    return total
