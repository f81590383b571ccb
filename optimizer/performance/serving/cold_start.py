"""Cold start from a new node to the first token: image, weights, process, compilation, graph capture.

Seconds; arguments broadcast. Each phase is a function of its own, because reports state them separately.
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
    """How a replica starts. Rates are bytes/s of the node; None: the constants' storage, and no network in
    between.

    ``loader``: how the engine reads weights (``plain`` safetensors, parallel ``streamer``, or the host's
    ``page_cache``). ``compile_cached``: compiled code is kept from an earlier start. ``image_s``: time to
    pull and unpack the container, which nobody publishes; 0 if it is already there.
    """

    loader: str = PLAIN
    storage_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    compile_cached: bool = False
    image_s: float = 0.0


DEFAULT_START = Start()


def weights_s(weight_bytes: Array, gpus: Array, constants: ColdStart, start: Start = DEFAULT_START) -> Array:
    """Bytes over the slowest of storage, network, loaders and host links; loaders and host links are
    per GPU.
    """
    rate = xp.minimum(constants.loader_bytes_per_s[start.loader], constants.host_bytes_per_s) * gpus
    if start.loader == PAGE_CACHE:
        rate = xp.minimum(rate, constants.page_cache_bytes_per_s)
    else:
        rate = xp.minimum(rate, start.storage_bytes_per_s or constants.storage_bytes_per_s)
        rate = xp.minimum(rate, start.network_bytes_per_s or math.inf)
    seconds: Array = weight_bytes / rate
    return seconds


def compile_s(layers: Array, constants: ColdStart, start: Start = DEFAULT_START) -> Array:
    """Tracing and compilation, layer by layer; with cached code only the time to read it."""
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
    """Seconds from the order to the first token of a replica of ``gpus`` GPUs with ``layers`` layers per
    rank.

    It is the sum of image, process and CUDA, weights, compilation, memory profiling, graph capture, and
    communicators.
    """
    known = constants.usual_layers if layers is None else layers
    depth = number(known) if isinstance(known, float) else known
    engine = compile_s(depth, constants, start) + capture_s(depth, constants) + constants.profile_s
    together = constants.distributed_s * (gpus - 1.0)
    loaded = weights_s(weight_bytes, gpus, constants, start)
    return start.image_s + constants.process_s + loaded + engine + together
