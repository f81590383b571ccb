"""From a node that just came to the first token: image, weights, process, compile, capture.

Seconds; arguments broadcast. Every phase stands alone, because reports time them alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, number
from optimizer.performance.constants.serving import ColdStart

PLAIN, STREAMER, PAGE_CACHE = "plain", "streamer", "page_cache"


@dataclass(frozen=True, slots=True)
class Start:
    """How a replica starts. Rates are bytes/s of the node; None: the constants' storage, no network between.

    ``loader``: how the engine reads weights (``plain`` safetensors, parallel ``streamer``, or from the
    host's ``page_cache``). ``compile_cached``: the compiler's output is kept from an earlier start.
    ``image_s``: to pull and unpack the container, which nobody publishes; 0 where it is already there.
    """

    loader: str = PLAIN
    storage_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    compile_cached: bool = False
    image_s: float = 0.0


DEFAULT_START = Start()


def weights_s(weight_bytes: Array, gpus: Array, constants: ColdStart, start: Start = DEFAULT_START) -> Array:
    """Bytes over the narrowest of storage, network, loaders and host links, one of the last two a GPU."""
    rate = xp.minimum(constants.loader_bytes_per_s[start.loader], constants.host_bytes_per_s) * gpus
    if start.loader == PAGE_CACHE:
        rate = xp.minimum(rate, constants.page_cache_bytes_per_s)
    else:
        rate = xp.minimum(rate, start.storage_bytes_per_s or constants.storage_bytes_per_s)
        rate = xp.minimum(rate, start.network_bytes_per_s or math.inf)
    seconds: Array = weight_bytes / rate
    return seconds


def compile_s(layers: Array, constants: ColdStart, start: Start = DEFAULT_START) -> Array:
    """Tracing and compiling, which go layer by layer; the cached compiler only reads what it kept."""
    cold: Array = layers * (constants.trace_layer_s + constants.compile_layer_s)
    return xp.full_like(cold, constants.compile_cached_s) if start.compile_cached else cold


def capture_s(layers: Array, constants: ColdStart) -> Array:
    """Capture of decode graphs at every batch size, layer by layer."""
    return layers * constants.capture_layer_s


def cold_start_s(
    weight_bytes: Array,
    gpus: Array,
    constants: ColdStart,
    layers: Array | float | None = None,
    start: Start = DEFAULT_START,
) -> Array:
    """Seconds from the order to the first token of a replica of ``gpus`` GPUs with ``layers`` a rank.

    Image + process and CUDA + weights + compile + memory profile + capture + communicators of further GPUs.
    """
    known = constants.usual_layers if layers is None else layers
    depth = number(known) if isinstance(known, float) else known
    engine = compile_s(depth, constants, start) + capture_s(depth, constants) + constants.profile_s
    together = constants.distributed_s * (gpus - 1.0)
    loaded = weights_s(weight_bytes, gpus, constants, start)
    return start.image_s + constants.process_s + loaded + engine + together
