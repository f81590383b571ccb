"""Traffic between the GPUs of a replica: all-reduces of tensor groups, and dispatch to experts.

Times in seconds; ``tokens`` are those of one step on a rank.
"""

from __future__ import annotations

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array
from optimizer.performance.serving.served_model import ServedModel, once


def traffic_s(served: ServedModel, tokens: Array) -> tuple[Array, Array]:
    """Start time and transfer time of a step's communication.

    A layer has two all-reduces of tokens·h·2 bytes over tp ranks. Dispatch and combine between dp ranks move
    4·h bytes for each other rank that holds an expert of the token. Up to ``one_shot_tokens`` tokens engines
    exchange whole messages in one shot, (tp − 1)·bytes per rank; larger ones take two phases (``_once_s``).
    """
    starts, whole, halves, dispatched = _once_s(served)
    few = xp.minimum(tokens, served.engine.one_shot_tokens)
    return starts, xp.maximum(whole * few, halves * tokens) + dispatched * tokens


def shared_token_s(served: ServedModel) -> Array:
    """Transfer time that one more token adds to a step with many."""
    _, _, halves, dispatched = _once_s(served)
    return halves + dispatched


@once
def _once_s(served: ServedModel) -> tuple[Array, Array, Array, Array]:
    """Start time of a step's all-reduces, and transfer times of a token in all layers: in one shot, in two
    phases, and of expert dispatch.

    Two phases are reduce-scatter and all-gather, 2(tp − 1)/tp of the bytes, or (1 + 1/tp) if a switch does
    the addition; the faster is used. Starts grow with a power of log2(tp), hardly at all if ranks read each
    other's memory. Groups wider than the link domain also use the fabric (``_between_s``).
    """
    shapes, hw, tp, dp = served.shapes, served.hw, served.replica.tp, served.replica.dp
    inside = xp.minimum(tp, hw.link_domain)
    start = hw.reduce_start_s * served.engine.reduce_starts
    starts = 2.0 * shapes.layers * start * xp.power(xp.log2(inside), hw.reduce_growth)
    size = 2.0 * shapes.layers * 2.0 * shapes.hidden
    direct = hw.link_raw_bytes_per_s * served.rates.one_shot_share
    ring = 2.0 * (inside - 1.0) / inside / hw.reduce_bytes_per_s
    switch = hw.link_raw_bytes_per_s * hw.switch_share
    added = xp.where(inside > 1.0, (1.0 + 1.0 / inside) / xp.maximum(switch, 1.0), 0.0)
    whole, halves = (inside - 1.0) * hw.peers / direct, xp.minimum(ring, added)
    if xp.any(tp > hw.link_domain):
        hops, between = _between_s(served)
        starts, whole, halves = starts + hops, whole + between, halves + between
    dispatched = _dispatched_s(served) if xp.any(dp > 1.0) else xp.zeros_like(tp)
    return starts, size * whole, size * halves, dispatched


def _between_s(served: ServedModel) -> tuple[Array, Array]:
    """Start time of a step's all-reduces over the fabric (there and back for each doubling of domains), and
    time of a byte.

    Every rank of a domain exchanges its share with the k domains: 2(k − 1)/k of it.
    """
    hw = served.hw
    domains = xp.maximum(served.replica.tp / hw.link_domain, 1.0)
    hops = 2.0 * served.shapes.layers * 2.0 * xp.log2(domains) * hw.fabric_hop_s
    return hops, 2.0 * (domains - 1.0) / domains / hw.link_domain / hw.fabric_bytes_per_s


def _dispatched_s(served: ServedModel) -> Array:
    """Time of a token's bytes to the ranks that hold its experts and back, in all layers.

    Bytes beyond the link domain use the fabric. If ranks hold slices of experts, a token goes to all ranks
    that share one.
    """
    shapes, hw, dp = served.shapes, served.hw, served.replica.dp
    owners = xp.minimum(served.replica.ep, dp)
    reached = (dp - 1.0) * (1.0 - xp.power(1.0 - 1.0 / owners, shapes.active_experts))
    outside = xp.maximum(dp - hw.link_domain, 0.0) / xp.maximum(dp - 1.0, 1.0)
    direct = hw.link_raw_bytes_per_s * served.rates.one_shot_share
    byte = xp.maximum((1.0 - outside) / direct, outside / hw.fabric_bytes_per_s)
    return shapes.moe_layers * 4.0 * shapes.expert_hidden * reached * byte
