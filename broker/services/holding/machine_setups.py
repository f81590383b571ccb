"""How machines of new reservations are entered and what they start with: from documents and stored keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from broker.domain.basics.errors import FieldProblem, InputError, NotFound
from broker.domain.basics.machines import AccessWish, PublicKey
from broker.domain.basics.near_words import with_nearest
from broker.domain.basics.person import is_same_actor
from broker.domain.holding.machine_setup import NO_SETUP, MachineSetup, Served
from broker.domain.holding.seller_network import SERVER_PORT
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import PlanRequest, Serving, Workload
from broker.domain.workloads.startup import Startup, StartupSecrets
from broker.ports.unit_of_work import UnitOfWork

DRAIN_MINUTES = 5.0
HEALTH_PATH = "/health"
"""The health path of vLLM, SGLang and TensorRT-LLM's server alike."""
EngineStart = Callable[[str, PlanRequest, Placement, Startup], Startup]
"""The image and command that run the server of a placement: of the plan's document, its request, the
placement, and the start that asks for it. Raises InputError."""
StartOf = Callable[[Placement, Startup], Startup]
Wish = tuple[AccessWish, Startup | None, Served | None]
NO_SETUPS: Mapping[str | None, MachineSetup] = MappingProxyType({})


class MachineSetups:
    """Finds setups. ``read_request`` reads a plan's stored document (None: plans state nothing).

    ``secrets`` are those of the installation. ``engine_start`` None: no engine can be started.
    """

    def __init__(
        self,
        read_request: Callable[[str], PlanRequest] | None = None,
        secrets: StartupSecrets | None = None,
        engine_start: EngineStart | None = None,
    ) -> None:
        self._engine_start = engine_start
        self._read_request = read_request
        self._secrets = secrets or StartupSecrets()

    async def find(
        self,
        uow: UnitOfWork,
        team: str,
        actor: str,
        plan_id: str | None,
        workloads: Collection[str | None],
        given: Mapping[str | None, MachineSetup] = NO_SETUPS,
    ) -> Mapping[str | None, MachineSetup]:
        """The setup of each of ``workloads``: that of ``given``, else of the plan, with the keys that go with
        orders of ``actor``.

        Raises InputError for a secret that ``team`` cannot use.
        """
        missing = [name for name in workloads if name not in given]
        if not missing:
            return given
        keys = await self.find_keys(uow, team, actor)
        wishes = await self._wishes(uow, plan_id)
        nothing: Wish = (AccessWish.SSH, None, None)
        found = {}
        for name in missing:
            access, startup, served = wishes.get(name, nothing)
            found[name] = replace(self.setup(team, access, startup, keys), served=served)
        return {**found, **given}

    async def find_keys(self, uow: UnitOfWork, team: str, actor: str) -> tuple[PublicKey, ...]:
        """The keys that go with an order of ``actor`` for ``team``: their own first, each line once.

        A person's keys go with their orders for every team.
        """
        person = await _person_of(uow, actor)
        stored = await uow.ssh_keys.find_of_persons()
        own = [key for key in stored if key.person is not None and is_same_actor(key.person, person)]
        of_team = await uow.ssh_keys.find_of_team(team)
        every = (*own, *(key for key in of_team if key.person is None))
        return tuple({key.public_key: key.as_public_key for key in every}.values())

    def setup(
        self, team: str, access: AccessWish, startup: Startup | None, keys: tuple[PublicKey, ...]
    ) -> MachineSetup:
        """The setup of machines of ``team``. Raises InputError for a secret that the team cannot use."""
        names = () if startup is None else startup.secret_names
        problems = tuple(
            FieldProblem("/startup/env", f"the secret {name}: {why}", self._instead(name, team))
            for name in names
            if (why := self._secrets.why_not(name, team))
        )
        if problems:
            raise InputError("startup", problems)
        is_engine = startup is not None and startup.engine
        if access is AccessWish.NONE:
            return MachineSetup(access, (), startup, is_engine=is_engine)
        if not keys and startup is None:
            return NO_SETUP
        return MachineSetup(access, keys, startup, is_engine=is_engine)

    async def starts_of_engines(self, uow: UnitOfWork, plan_id: str | None) -> StartOf | None:
        """The start of the server of each placement of a plan; None without a plan."""
        if plan_id is None or self._read_request is None or self._engine_start is None:
            return None
        document = (await uow.plans.find(plan_id)).document
        return partial(self._engine_start, document, self._read_request(document))

    def _instead(self, name: str, team: str) -> str:
        return with_nearest(f"a secret that team {team} may use", name, self._secrets.of_team(team))

    async def _wishes(self, uow: UnitOfWork, plan_id: str | None) -> Mapping[str | None, Wish]:
        """The access and start that the plan's document states, and what its services run, by workload."""
        if plan_id is None or self._read_request is None:
            return {}
        record = await uow.plans.find(plan_id)
        request = self._read_request(record.document)
        placed = () if record.plan is None else record.plan.placements
        nodes = {one.workload: nodes_per_server(one) for one in placed}
        return {
            one.name: (one.access or AccessWish.SSH, one.startup, _served(one, nodes.get(one.name, 1)))
            for one in request.workloads
        }


async def _person_of(uow: UnitOfWork, actor: str) -> str:
    """Who the ``actor`` of an order is: the owner of an API key, where it says so, else the actor."""
    try:
        return (await uow.keys.find(actor)).person or actor
    except NotFound:
        return actor


def nodes_per_server(placement: Placement) -> int:
    """Nodes of one server: more than 1 only if a replica is larger than a node."""
    gpus_per_node = max(1, placement.gpus // max(1, placement.nodes))
    return max(1, -(-placement.gpus_per_replica // gpus_per_node))


def _served(workload: Workload, nodes: int) -> Served | None:
    """What the machines of a service run; None for runs and batches."""
    if not isinstance(workload, Serving):
        return None
    drain = DRAIN_MINUTES if workload.drain_minutes is None else workload.drain_minutes
    return Served(SERVER_PORT, HEALTH_PATH, drain, nodes)
