"""How the machines of a reservation are entered and what they start with."""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.basics.machines import AccessWish, PublicKey
from broker.domain.planning.startup import Startup


@dataclass(frozen=True, slots=True)
class MachineSetup:
    """How the machines of a reservation are entered and what they start with, fixed with the reservation."""

    access: AccessWish = AccessWish.SSH
    keys: tuple[PublicKey, ...] = ()
    startup: Startup | None = None


NO_SETUP = MachineSetup()
