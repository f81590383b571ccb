"""The cold start of an ordered replica, part by part: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from broker.domain.basics.estimate import Estimate

COLD_START = "cold_start_s"


class LaunchBasis(StrEnum):
    """Whence the time of a launch: our own launches, the seller's word, or an assumption."""

    MEASURED = "measured"
    STATED = "stated"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """``launch_s``: seconds from the order to a node that runs, the median.

    ``image_s``: seconds until the engine's image is on it; None where nobody looked that up yet.
    ``weights_gbyte_s``: gigabytes (10⁹ bytes) of weights a second that come to it over the network; None:
    they lie there already.
    """

    launch_s: float
    basis: LaunchBasis
    image_s: float | None = None
    weights_gbyte_s: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it tells of image and weights too, as a market document may."""
        return self.image_s is not None

    @property
    def before_weights_s(self) -> float:
        """Seconds until weights can be fetched."""
        return self.launch_s + (self.image_s or 0.0)

    @property
    def weights_s_per_gb(self) -> float:
        """Seconds that a gigabyte of weights takes to come."""
        return 1 / self.weights_gbyte_s if self.weights_gbyte_s else 0.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from the order to the first token: the node runs, has the image, has the weights on its disk,
    and the engine has loaded them and answers. ``basis``: whence ``launch_s``."""

    launch_s: float
    image_s: float
    weights_s: float
    engine_s: float
    basis: LaunchBasis

    @property
    def whole_s(self) -> float:
        """All of it."""
        return self.launch_s + self.image_s + self.weights_s + self.engine_s


def cold_start_of(launch: NodeLaunch | None, weights_gb: float, engine_s: float) -> ColdStart | None:
    """The parts for a replica whose model has ``weights_gb``; None where nothing is known of the launch."""
    if launch is None:
        return None
    weights_s = weights_gb * launch.weights_s_per_gb
    return ColdStart(launch.launch_s, launch.image_s or 0.0, weights_s, engine_s, launch.basis)


def with_launch(estimate: Estimate, cold: ColdStart | None) -> Estimate:
    """The engine's ``estimate`` with the whole cold start in it. Its interval is as wide as the engine's:
    nobody tells how far launches scatter."""
    if cold is None:
        return estimate
    before_s = cold.whole_s - cold.engine_s

    def later(metrics: Mapping[str, float]) -> Mapping[str, float]:
        return {**metrics, COLD_START: metrics[COLD_START] + before_s}

    return replace(estimate, value=later(estimate.value), low=later(estimate.low), high=later(estimate.high))
