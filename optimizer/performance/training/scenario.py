"""Inputs of a training step: model, batch, layouts, hardware and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.training_method import (
    BASE_BYTES,
    BF16,
    GROUPS,
    PLAIN,
    Adapter,
    AdapterKind,
    BaseFormat,
    Objective,
    Target,
    TrainingMethod,
    adapter_params,
    target_params,
    widths_per_token,
)
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array, as_array, number
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.groups import Compute, Network, Software
from optimizer.performance.hardware.sku_arrays import Hardware
from optimizer.performance.shapes import Shapes, build_shape, stack_shapes
from optimizer.performance.training.layouts import Layouts

EULER = 0.5772156649


@dataclass(frozen=True, slots=True)
class Run:
    """The batch of a step: tokens of the longest sequence, sequences per step, format of the products.

    ``method``: what is trained, how, and with which optimizer.
    ``zero_bubble``: pipelines run weight gradients in the gaps of 1F1B. ``hides_dispatch``: tokens are sent
    to their experts while another micro-batch computes on the remaining multiprocessors (DualPipe).
    ``dispatches_once``: a token crosses the fabric once per node, however many of its experts are there
    (DeepEP).
    """

    sequence_length: Array
    sequences: Array
    number_format: str
    method: TrainingMethod = PLAIN
    zero_bubble: bool = False
    hides_dispatch: bool = False
    dispatches_once: bool = False

    @property
    def has_eight_bit_products(self) -> bool:
        """Whether products take 8 bits or fewer."""
        return self.number_format in {"fp8", "fp4"}

    @property
    def base_format(self) -> BaseFormat:
        """The format of frozen weights: as stated, else that of the products."""
        adapter = self.method.adapter
        if adapter is not None and adapter.base is not None:
            return adapter.base
        return BaseFormat.FP8 if self.has_eight_bit_products else BaseFormat.BF16

    @property
    def unpacks_base(self) -> bool:
        """Whether frozen weights are converted before every product."""
        narrow = self.base_format is BaseFormat.FP8 and not self.has_eight_bit_products
        return self.method.is_quantised or (self.method.adapter is not None and narrow)


@dataclass(frozen=True, slots=True)
class AdapterSizes:
    """Sizes of the adapters of one or more models: trained parameters, parameters of the matrices beside
    them, the width that a token leaves these in an average layer, and all widths there as a multiple of those
    of the attention.
    """

    params: Array
    target_params: Array
    out: Array
    width_share: Array


def adapter_sizes(adapter: Adapter, models: Sequence[ModelShape]) -> AdapterSizes:
    """Arrays over ``models``."""
    attention = frozenset(GROUPS[Target.ATTENTION])
    widths = [widths_per_token(model, adapter.matrices) for model in models]
    usual = [sum(widths_per_token(model, attention)) for model in models]
    return AdapterSizes(
        params=as_array([adapter_params(model, adapter) for model in models]),
        target_params=as_array([target_params(model, adapter) for model in models]),
        out=as_array([out for _, out in widths]),
        width_share=as_array([sum(all_of) / one for all_of, one in zip(widths, usual, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class Trained:
    """The models of a step: the trained one, its adapters (None: all of it is trained), and the model that
    only runs forward (None: there is none).
    """

    shapes: Shapes
    adapters: AdapterSizes | None = None
    forward: Shapes | None = None


def trained_models(models: Sequence[ModelShape], method: TrainingMethod) -> Trained:
    """Arrays over ``models``."""
    shapes, adapter = stack_shapes(models), method.adapter
    sizes = adapter_sizes(adapter, models) if adapter is not None else None
    return Trained(shapes, sizes, _forward(shapes, method))


def trained_model(model: ModelShape, method: TrainingMethod) -> Trained:
    """The same of one model, in plain numbers."""
    shapes, sizes = build_shape(model), None
    if method.adapter is not None:
        found = adapter_sizes(method.adapter, [model])
        sizes = AdapterSizes(
            *(number(part[0]) for part in (found.params, found.target_params, found.out, found.width_share))
        )
    return Trained(shapes, sizes, _forward(shapes, method))


def _forward(shapes: Shapes, method: TrainingMethod) -> Shapes | None:
    if method.objective is Objective.DPO:
        return shapes
    return build_shape(method.teacher) if method.teacher is not None else None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One or many training steps; the arrays of its parts broadcast against each other.

    ``adapters``, ``forward``: see ``Trained``.
    ``memory_margin``: factor on the predicted memory that a card must hold; 1 if a layout is known to run.
    """

    shapes: Shapes
    run: Run
    layouts: Layouts
    hw: Hardware
    software: Software
    calibration: Calibration
    memory_margin: float = 1.0
    adapters: AdapterSizes | None = None
    forward: Shapes | None = None

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

    @property
    def holds_forward_weights(self) -> bool:
        """Whether the model that only runs forward has weights of its own. The reference of a preference run
        with adapters is the base without them.
        """
        return self.forward is not None and not (
            self.run.method.objective is Objective.DPO and self.adapters is not None
        )

    @property
    def base_bytes(self) -> Array | float:
        """Bytes per parameter of a frozen base on average; embeddings and output head keep 16 bits."""
        wide = self.shapes.embedding_params / self.shapes.params
        each: Array = BASE_BYTES[self.run.base_format] * (1.0 - wide) + BF16 * wide
        return each

    @property
    def hidden_width(self) -> float:
        """Width of hidden states as a multiple of 16 bits."""
        return 1.0 + self.software.widens_quantised * self.run.method.is_quantised

    @property
    def has_long_outputs(self) -> bool:
        """Whether adapters scale the outputs of their matrices (DoRA)."""
        adapter = self.run.method.adapter
        return adapter is not None and adapter.kind is AdapterKind.DORA

    def as_computed(self) -> Scenario:
        """The same with the mean length of padded sequences.

        The longest of b sequences has m·(1 + v·(1/2 + … + 1/b)) tokens, for mean m and variation v: exact for
        exponential lengths (v = 1), and at most ``sequence_length``.
        """
        mean = self.run.method.mean_tokens
        if mean is None:
            return self
        batch = self.layouts.micro_batch
        sum_of_parts = xp.log(batch) + EULER + 0.5 / batch - 1.0 / (12.0 * batch * batch)
        padded = mean * (1.0 + self.compute.length_variation * xp.maximum(sum_of_parts - 1.0, 0.0))
        length = xp.minimum(padded, self.run.sequence_length)
        return replace(self, run=replace(self.run, sequence_length=length))
