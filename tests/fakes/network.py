"""A seller whose machines join a network that is made once, as the use cases of networks need one."""

from __future__ import annotations

from collections.abc import Sequence

from broker.domain.basics.errors import ProviderUnavailable
from broker.domain.holding.seller_network import NetworkRules
from providers.network_setup import Ids, NetworkSetup, NetworkStep


class FakeNetwork(NetworkSetup):
    """A network and its rules in each region; ``made`` tells each change, ``is_down`` lets calls fail."""

    provider = "aws"
    network_setting = "BROKER_FAKE_NETWORK"

    def __init__(self, *regions: str) -> None:
        self._regions = regions
        self.known: dict[tuple[str, str], tuple[str, ...]] = {}
        self.made: list[str] = []
        self.is_down = False

    def network_regions(self) -> tuple[str, ...]:
        """The regions that it was made with."""
        return self._regions

    def network_steps(self, region: str, rules: NetworkRules) -> Sequence[NetworkStep]:
        """A network, and who is let in."""
        return (self._step(region, "network", ()), self._step(region, "rules", rules.sources))

    def _step(self, region: str, kind: str, wanted: tuple[str, ...]) -> NetworkStep:
        async def find(_: Ids) -> str | None:
            if self.is_down:
                raise ProviderUnavailable(self.provider, "down")
            return f"{kind}-{region}" if self.known.get((region, kind)) == wanted else None

        async def make(_: Ids) -> str:
            self.known[region, kind] = wanted
            self.made.append(f"{kind}-{region}")
            return f"{kind}-{region}"

        return NetworkStep(kind, f"{kind} of {region} for {', '.join(wanted) or 'all'}", find, make)
