"""The base class of sellers whose machines join a network of the buyer's account, which is made once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from broker.domain.basics.errors import LeaseNotFound
from broker.domain.holding.seller_network import NetworkPart, NetworkPlan, NetworkRules
from broker.provider_facts import load_provider_facts

NETWORK_NAME = "gpu-broker"
"""The name of every resource that is made; by it they are found again."""
Ids = Mapping[str, str]
"""The seller's ids of the earlier parts of a network, by kind."""


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """One resource of a network.

    ``find`` gives its id, None where it is not there or not as wanted; ``make`` makes or changes it. Both get
    the ids of the steps before.
    """

    kind: str
    says: str
    find: Callable[[Ids], Awaitable[str | None]]
    make: Callable[[Ids], Awaitable[str]]


class NetworkSetup(ABC):
    """Makes a network step by step; each step is looked for first, so that a repetition changes nothing.

    ``network_setting``: the variable that names a network instead, and ``names_network`` whether it is set.
    """

    provider: str
    network_setting: str
    names_network: bool = False

    @abstractmethod
    def network_regions(self) -> tuple[str, ...]:
        """The regions that need a network each, as configured; ("",): one serves all."""

    @abstractmethod
    def network_steps(self, region: str, rules: NetworkRules) -> Sequence[NetworkStep]:
        """What machines of ``region`` need, in the order of making."""

    async def plan_network(self, rules: NetworkRules, regions: Sequence[str]) -> NetworkPlan:
        """What is there, and what is missing. It changes nothing. Raises ProviderError."""
        return await self._walked(rules, regions, makes=False)

    async def make_network(self, rules: NetworkRules, regions: Sequence[str]) -> NetworkPlan:
        """Makes what is missing, and changes rules that differ. Raises ProviderError."""
        return await self._walked(rules, regions, makes=True)

    async def _walked(self, rules: NetworkRules, regions: Sequence[str], *, makes: bool) -> NetworkPlan:
        parts = []
        for region in regions:
            ids: dict[str, str] = {}
            steps = self.network_steps(region, rules)
            for number, step in enumerate(steps):
                found = await _found(step, ids) if len(ids) == number else None
                made = makes and found is None
                if made:
                    found = await step.make(ids)
                if found is not None:
                    ids[step.kind] = found
                parts.append(NetworkPart(region, step.kind, step.says, found, made))
        address = load_provider_facts(self.provider).address
        if address is None:
            return NetworkPlan(self.provider, tuple(parts), Decimal(0), "")
        return NetworkPlan(self.provider, tuple(parts), address.per_hour, address.source)


async def _found(step: NetworkStep, ids: Ids) -> str | None:
    try:
        return await step.find(ids)
    except LeaseNotFound:
        return None
