"""Small kernels of a layer: what they move, in training and in serving."""

from __future__ import annotations

from optimizer.performance.arrays import Array
from optimizer.performance.constants import Compute
from optimizer.performance.shapes import Shapes


def small_kernel_bytes(
    shapes: Shapes, compute: Compute, whole: Array | float, routed: Array, eight_bit: bool
) -> Array:
    """Bytes a token, average layer and slice that norms, residuals, activation, casts and permutation move
    in a forward pass. Tensors of the hidden width count ``whole`` times, once for each rank that works on all
    of them; ``routed``: copies of a token that go to experts; ``eight_bit``: products take 8 or 4 bits, and
    casts come once a token and once a copy."""
    hidden = compute.elementwise_bytes_hidden * shapes.hidden
    copies = shapes.expert_hidden * routed
    if eight_bit:
        hidden = hidden + compute.fp8_cast_bytes_hidden * (shapes.hidden + copies)
    sliced = compute.elementwise_bytes_ffn * shapes.ffn + compute.moe_permute_bytes_hidden * copies
    size: Array = whole * hidden + sliced + compute.state_bytes_width * shapes.state_width
    return size
