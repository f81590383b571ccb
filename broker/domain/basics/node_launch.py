"""The parts of a replica's cold start, from the order to the first token. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from broker.domain.basics.estimate import Estimate

COLD_START = "cold_start_s"


class LaunchBasis(StrEnum):
    """Source of a launch time: measured on our own launches, stated by the provider, or assumed."""

    MEASURED = "measured"
    STATED = "stated"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """How long a node takes from the order until weights can be loaded.

    ``launch_s`` is the median time in seconds from the order to a running node. ``image_s`` is the time in
    seconds to pull the engine's image; None if it is not known yet. ``weights_gbyte_s`` is the download rate
    of weights in GB (10⁹ bytes) per second; None if the weights are on the node already.
    """

    launch_s: float
    basis: LaunchBasis
    image_s: float | None = None
    weights_gbyte_s: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the image and weights are known too, as in some market documents."""
        return self.image_s is not None

    @property
    def before_weights_s(self) -> float:
        """Seconds from the order until the download of weights can begin."""
        return self.launch_s + (self.image_s or 0.0)

    @property
    def weights_s_per_gb(self) -> float:
        """Seconds to download a gigabyte of weights; 0 if they are on the node already."""
        return 1 / self.weights_gbyte_s if self.weights_gbyte_s else 0.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from the order to the first token, in four parts.

    The node starts (``launch_s``), pulls the image (``image_s``) and downloads the weights (``weights_s``);
    then the engine loads them (``engine_s``). ``basis`` is the source of ``launch_s``.
    """

    launch_s: float
    image_s: float
    weights_s: float
    engine_s: float
    basis: LaunchBasis

    @property
    def whole_s(self) -> float:
        """The sum of the four parts, in seconds."""
        return self.launch_s + self.image_s + self.weights_s + self.engine_s


def cold_start_of(launch: NodeLaunch | None, weights_gb: float, engine_s: float) -> ColdStart | None:
    """The cold start of a replica whose weights are ``weights_gb``; None if the launch time is unknown."""
    if launch is None:
        return None
    weights_s = weights_gb * launch.weights_s_per_gb
    return ColdStart(launch.launch_s, launch.image_s or 0.0, weights_s, engine_s, launch.basis)


def with_launch(estimate: Estimate, cold: ColdStart | None) -> Estimate:
    """``estimate`` with the time before the engine starts added to its cold start.

    The interval keeps the width of the engine's interval, since the spread of launch times is unknown.
    """
    if cold is None:
        return estimate
    before_s = cold.whole_s - cold.engine_s

    def later(metrics: Mapping[str, float]) -> Mapping[str, float]:
        return {**metrics, COLD_START: metrics[COLD_START] + before_s}

    return replace(estimate, value=later(estimate.value), low=later(estimate.low), high=later(estimate.high))
