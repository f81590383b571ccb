"""Networks of sellers: planned, made once, and found again by later orders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound
from broker.domain.basics.near_words import with_nearest
from broker.domain.holding.seller_network import NetworkPlan, NetworkRules, SellerNetwork, read_sources
from broker.domain.market.offer_pages import OfferFilter
from broker.ports.holding import NetworkBuilder
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory


class NetworksService:
    """Use cases of networks, for administrators. ``builders``: the configured sellers that need one, by name.

    ``sellers``: every configured provider.
    """

    def __init__(
        self,
        units: UnitOfWorkFactory,
        builders: Mapping[str, NetworkBuilder],
        clock: Clock,
        sellers: Collection[str] = (),
    ) -> None:
        self._units = units
        self._builders = builders
        self._clock = clock
        self._sellers = sellers

    async def plan(
        self, caller: Caller, provider: str, sources: Sequence[str], regions: Sequence[str] = ()
    ) -> NetworkPlan:
        """What ``make`` would find and make; nothing is changed. Raises what ``make`` raises.

        Without regions, given or configured, it is shown for the region of the seller's cheapest offer.
        """
        require_scope(caller, Scope.ADMIN)
        builder = self._builder(provider)
        rules = NetworkRules(read_sources(sources))
        if not regions and not builder.network_regions():
            regions = await self._cheapest_region(caller, provider)
        return await builder.plan_network(rules, _regions(builder, provider, regions))

    async def make(
        self, caller: Caller, provider: str, sources: Sequence[str], regions: Sequence[str] = ()
    ) -> NetworkPlan:
        """Makes the network of machines in ``regions`` (none: those that the seller is configured for).

        It is open to ``sources``, and stored, so that orders name it.

        Repeated, it makes nothing twice; with other sources it changes who is let in. Raises NotFound,
        InputError, Conflict where a setting names the network, and the seller's error.
        """
        require_scope(caller, Scope.ADMIN)
        builder = self._builder(provider)
        rules = NetworkRules(read_sources(sources))
        wanted = _regions(builder, provider, regions)
        crash_points.here("call.network.before")
        made = await builder.make_network(rules, wanted)
        crash_points.here("call.network.after")
        now = self._clock.now()
        found = tuple(_network_of(made, provider, region, rules, caller.key_id, now) for region in wanted)
        changed = [
            f"{part.region} {part.says} ({part.reference})".strip() for part in made.parts if part.made
        ]
        says = "; ".join(changed) or "all of it was there"
        entry = AuditEntry(now, caller.key_id, "network.make", "provider", provider, caller.team, says)
        async with self._units(scope_of(caller)) as uow:
            await uow.networks.put(found)
            await uow.accounts.add_audit(entry)
            crash_points.here("network.make.before")
            await uow.commit()
            crash_points.here("network.make.after")
        return made

    async def find_all(self) -> tuple[SellerNetwork, ...]:
        """Every network that was made."""
        async with self._units(EVERY_TEAM) as uow:
            return await uow.networks.find()

    async def _cheapest_region(self, caller: Caller, provider: str) -> tuple[str, ...]:
        async with self._units(scope_of(caller)) as uow:
            cheapest = await uow.offers.find_cheapest_of_sellers(OfferFilter(provider=provider))
            offers = await uow.offers.find_many([one.offer_id for one in cheapest])
        return tuple(offer.region for offer in offers)

    def _builder(self, provider: str) -> NetworkBuilder:
        builder = self._builders.get(provider)
        if builder is None and provider not in self._sellers:
            raise NotFound("provider", provider, with_nearest("a configured one", provider, self._sellers))
        if builder is None:
            raise Conflict(
                f"{provider} needs no setup: its machines are reached as they come. Sellers that do: "
                f"{', '.join(sorted(self._builders)) or 'none is configured'}"
            )
        if builder.names_network:
            raise Conflict(
                f"{builder.network_setting} names the network of {provider}, so none is made: unset it first"
            ).naming(FieldProblem(builder.network_setting, "set", "not set"))
        return builder


def _regions(builder: NetworkBuilder, provider: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The regions to act on. Raises InputError where they are not known, or one serves all."""
    configured = builder.network_regions()
    if "" in configured and wanted:
        problem = FieldProblem("/regions", ", ".join(wanted), f"none: one network serves all of {provider}")
        raise InputError("network", (problem,))
    regions = tuple(dict.fromkeys(wanted)) or configured
    if not regions:
        variable = f"BROKER_{provider.upper()}_REGIONS"
        expected = f"the regions to order in, or {variable} with them; each has a network of its own"
        raise InputError("network", (FieldProblem("/regions", "none", expected),))
    return regions


def _network_of(
    plan: NetworkPlan, provider: str, region: str, rules: NetworkRules, actor: str, now: datetime
) -> SellerNetwork:
    ids = {part.kind: part.reference for part in plan.parts if part.region == region and part.reference}
    return SellerNetwork(provider, region, ids, rules.sources, now, actor)
