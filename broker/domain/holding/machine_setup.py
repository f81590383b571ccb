"""How the machines of a reservation are entered and what they start with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.domain.basics.machines import AccessWish, PublicKey
from broker.domain.workloads.startup import Startup


@dataclass(frozen=True, slots=True)
class Served:
    """The server that machines of a service run: its port and health path, and how it is given back.

    ``nodes``: machines of one server, of which the first answers. ``drain_minutes``: how long before its end
    it gets no new request.
    """

    port: int
    health_path: str
    drain_minutes: float
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class MachineSetup:
    """How the machines of a reservation are entered and what they start with, fixed with the reservation.

    ``keys`` go with its orders; ``left_keys`` do not, because the seller opens a machine to fewer.
    ``is_engine``: ``startup`` is the server of a service, made anew where another placement takes its place.
    """

    access: AccessWish = AccessWish.SSH
    keys: tuple[PublicKey, ...] = ()
    startup: Startup | None = None
    served: Served | None = None
    left_keys: tuple[PublicKey, ...] = ()
    is_engine: bool = False

    def with_at_most(self, keys: int | None) -> MachineSetup:
        """The setup at a seller that opens a machine to so many ``keys`` (None: all), the first ones."""
        every = (*self.keys, *self.left_keys)
        if keys is None or len(every) <= keys:
            return replace(self, keys=every, left_keys=()) if self.left_keys else self
        return replace(self, keys=every[:keys], left_keys=every[keys:])

    def without(self, own: PublicKey | None) -> MachineSetup:
        """The setup without the installation's ``own`` key, which goes with a start over SSH alone."""
        lines = () if own is None else (own.line,)
        return replace(self, keys=tuple(key for key in self.keys if key.line not in lines))


NO_SETUP = MachineSetup()
