"""Data-parallel traffic of a step: gradients, weights and sharded parameters, and the part that is not
hidden.
"""

from __future__ import annotations

from dataclasses import replace

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array
from optimizer.performance.hardware.collectives import local_ranks, reduce_scatter_s
from optimizer.performance.training.layouts import FULLY_SHARDED, HYBRID
from optimizer.performance.training.memory import expert_replicas, rank_params
from optimizer.performance.training.scenario import Scenario


def shard_ranks(scenario: Scenario, dp: Array) -> Array:
    """Data-parallel ranks that share one copy of the states: those of a link domain with hybrid sharding
    (HSDP, MiCS), otherwise all.
    """
    layouts = scenario.layouts
    if not xp.any(layouts.sharding == HYBRID):
        return dp
    near = local_ranks(dp, layouts.tp * layouts.cp, scenario.hw)
    return xp.where(layouts.sharding == HYBRID, near, dp)


def data_s(scenario: Scenario, dp: Array, micro: Array, busy_s: Array, idle_s: Array) -> Array:
    """Exposed communication time over ``dp`` ranks in a step of ``micro`` micro-batches.

    At the end of a step it is hidden by one micro-batch's time (``busy_s``) and the pipeline's fill and drain
    (``idle_s``). Sharded parameters are exchanged in every micro-batch, which takes max(compute, traffic)
    plus a share of the smaller. Hybrid sharding does both: weights inside the domain, gradients of the shards
    between domains. A frozen base has no gradients, and those of adapters are small; its shards are gathered.
    """
    network, sharding = scenario.network, scenario.layouts.sharding
    everywhere = xp.all(sharding >= FULLY_SHARDED)
    if scenario.adapters is not None:
        at_end = xp.zeros_like(dp)
    else:
        at_end = dp if everywhere else _at_end_s(scenario, _traffic_s(scenario, dp), busy_s + idle_s)
    if not xp.any(sharding >= FULLY_SHARDED):
        return at_end
    hybrid = bool(xp.any(sharding == HYBRID))
    owners = shard_ranks(scenario, dp)
    gathered = _sharded_s(scenario, owners)
    each = xp.maximum(gathered - busy_s, 0.0) + network.zero3_serial * xp.minimum(gathered, busy_s)
    sharded = micro * each
    if hybrid and scenario.adapters is None:
        between = _at_end_s(scenario, _between_s(scenario, dp, owners), busy_s)
        sharded = sharded + xp.where(sharding == HYBRID, between, 0.0)
    return sharded if everywhere else xp.where(sharding >= FULLY_SHARDED, sharded, at_end)


def _at_end_s(scenario: Scenario, traffic_s: Array, cover_s: Array) -> Array:
    """Exposed part of an exchange at the end of a step, of which ``cover_s`` of compute can hide a share."""
    hidden = scenario.network.backward_overlap * cover_s
    visible: Array = xp.maximum(scenario.software.dp_exposed * traffic_s, traffic_s - hidden)
    return visible


def _traffic_s(scenario: Scenario, ranks: Array) -> Array:
    """Time of the exchange at the end of a step: gradients out and weights back."""
    gradients = scenario.network.gradient_bytes_per_param
    back = xp.where(scenario.layouts.sharding < 1.0, gradients, _weight_bytes(scenario))
    return _exchange_s(scenario, ranks, gradients + back) + _rings_s(scenario, ranks)


def _rings_s(scenario: Scenario, ranks: Array) -> Array:
    """Waiting time of layer-by-layer exchanges for the ranks of their rings.

    A sharded optimizer scatters gradients and gathers weights, which are two rings per layer. Unsharded
    states need one, or ``pipeline_rings`` in pipelines, whose gradients are sent tensor by tensor.
    """
    software, layouts = scenario.software, scenario.layouts
    if software.ring_rank_s == 0.0:
        return xp.zeros_like(ranks)
    nodes = ranks / local_ranks(ranks, layouts.tp * layouts.cp, scenario.hw)
    first = xp.where(nodes > 1.0, nodes, 0.0)
    each = software.ring_node_s * first + software.ring_rank_s * (ranks - first)
    whole = xp.where(layouts.pp > 1.0, software.pipeline_rings, 1.0)
    rings = xp.where(layouts.sharding < 1.0, whole, 2.0) * scenario.shapes.layers / layouts.pp
    return xp.where(ranks > 1.0, rings * each, 0.0)


def _sharded_s(scenario: Scenario, ranks: Array) -> Array:
    """Time of sharded parameters in a micro-batch: weights gathered for the forward and the backward pass,
    gradients scattered; for a reference or teacher once more.

    Starts and hops count once: layers are prefetched, and weak scaling shows no more.
    """
    weights = _weight_bytes(scenario)
    gradients = scenario.network.gradient_bytes_per_param if scenario.adapters is None else 0.0
    found = _exchange_s(scenario, ranks, gradients + 2.0 * weights)
    if scenario.forward is not None:
        only = replace(scenario, shapes=scenario.forward)
        each = scenario.network.parameter_bytes_per_param if scenario.holds_forward_weights else weights
        found = found + _exchange_s(only, ranks, each)
    return found


def _exchange_s(scenario: Scenario, ranks: Array, bytes_per_param: Array | float) -> Array:
    """Reduce-scatter or all-gather of ``bytes_per_param`` for the rank's parameters; experts among their
    replicas.
    """
    layouts = scenario.layouts
    dense, experts = rank_params(scenario.shapes, layouts)
    size = bytes_per_param * dense
    traffic = reduce_scatter_s(size, ranks * layouts.cp, layouts.tp, scenario.hw, scenario.network)
    if not xp.any(scenario.shapes.experts > 0):
        return traffic
    inner, replicas = xp.maximum(layouts.ep, layouts.tp), expert_replicas(layouts, ranks)
    size = bytes_per_param * experts
    routed = reduce_scatter_s(size, replicas, inner, scenario.hw, scenario.network)
    return traffic + xp.where(experts > 0.0, routed, 0.0)


def _weight_bytes(scenario: Scenario) -> Array | float:
    """Bytes per parameter that are sent back; 8-bit recipes gather the format that products read, a frozen
    base its own.
    """
    if scenario.adapters is not None:
        return scenario.base_bytes
    eight = scenario.run.has_eight_bit_products
    return scenario.network.fp8_parameter_bytes if eight else scenario.network.parameter_bytes_per_param


def _between_s(scenario: Scenario, dp: Array, owners: Array) -> Array:
    """All-reduce of the shards' gradients between link domains: 2·gradients/owners bytes per rank."""
    layouts, network = scenario.layouts, scenario.network
    dense, experts = rank_params(scenario.shapes, layouts)
    size = 2.0 * network.gradient_bytes_per_param * (dense + experts) / owners
    copies = xp.maximum(dp / owners, 1.0)
    apart = xp.maximum(scenario.hw.link_domain, layouts.tp * layouts.cp * owners)
    return xp.where(copies > 1.0, reduce_scatter_s(size, copies, apart, scenario.hw, network), 0.0)
