"""Inputs of a training step: model, batch, layouts, hardware and constants."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.groups import Compute, Network, Software
from optimizer.performance.hardware.sku_arrays import Hardware
from optimizer.performance.shapes import Shapes
from optimizer.performance.training.layouts import Layouts


@dataclass(frozen=True, slots=True)
class Run:
    """The batch of a step: tokens per sequence, sequences per step, format of the products.

    ``adapters``: only small adapters are trained (LoRA), so weights have no gradients and no states.
    ``zero_bubble``: pipelines run weight gradients in the gaps of 1F1B. ``hides_dispatch``: tokens are sent
    to their experts while another micro-batch computes on the remaining multiprocessors (DualPipe).
    ``dispatches_once``: a token crosses the fabric once per node, however many of its experts are there
    (DeepEP).
    """

    sequence_length: Array
    sequences: Array
    number_format: str
    adapters: bool = False
    zero_bubble: bool = False
    hides_dispatch: bool = False
    dispatches_once: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One or many training steps; the arrays of its parts broadcast against each other.

    ``memory_margin``: factor on the predicted memory that a card must hold; 1 if a layout is known to run.
    """

    shapes: Shapes
    run: Run
    layouts: Layouts
    hw: Hardware
    software: Software
    calibration: Calibration
    memory_margin: Array | float = 1.0

    @property
    def compute(self) -> Compute:
        """The compute constants."""
        return self.calibration.compute

    @property
    def network(self) -> Network:
        """The network constants."""
        return self.calibration.network

    @property
    def rank_tokens(self) -> Array:
        """Tokens of one micro-batch on one rank before tensor slicing: b·S/c."""
        return self.layouts.micro_batch * self.run.sequence_length / self.layouts.cp
