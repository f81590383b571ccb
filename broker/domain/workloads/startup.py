"""What machines start with, as a document states it, and the shell script that does it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from broker.domain.workloads import document_fields as doc


@dataclass(frozen=True, slots=True)
class SecretName:
    """The name of a secret of the installation, whose value is looked up when an order is sent."""

    __pydantic_config__ = doc.NO_OTHER_FIELDS

    secret: doc.SecretKey


def _variable(value: Any) -> Any:
    """A number as text, and an object with a secret's name as such. Raises ValueError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict) and value.keys() == {"secret"} and isinstance(value["secret"], str):
        if re.fullmatch(doc.SECRET_NAME, value["secret"]) is None:
            raise ValueError("the name of a secret in capital letters, digits and underscores")
        return SecretName(value["secret"])
    if not isinstance(value, str | SecretName):
        raise ValueError("text, or {secret: NAME} for a secret of the installation")
    return value


Variable = Annotated[doc.VariableValue | SecretName, doc.prepared(_variable)]


@dataclass(frozen=True, slots=True)
class Startup:
    """What a machine starts with: a shell script, or a container image with its command.

    ``engine``: in place of both, the server of a service as its plan places it; when it is reserved, an image
    and a command are made of that. ``env`` are its environment variables; a secret is stored by its name
    only.
    """

    __pydantic_config__ = doc.NO_OTHER_FIELDS

    script: doc.Script | None = None
    image: doc.Image | None = None
    command: doc.Script | None = None
    engine: bool = False
    env: Annotated[Mapping[doc.Variable, Variable], doc.FEW] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raises ValueError unless there is one of them, and a command only for an image."""
        if (self.script is not None) + (self.image is not None) + self.engine != 1:
            raise ValueError("either a script, an image, or engine: true")
        if self.command is not None and self.image is None:
            raise ValueError("a command only with an image; a script states its own")

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The secrets that it needs."""
        return tuple(sorted({one.secret for one in self.env.values() if isinstance(one, SecretName)}))


@dataclass(frozen=True, slots=True)
class StartupSecrets:
    """The secrets of the installation by name.

    ``teams``: who may use one; one without an entry is every team's.
    """

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)
    teams: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def of_team(self, team: str) -> Mapping[str, str]:
        """The secrets that machines of ``team`` may start with, by name."""
        return {name: value for name, value in self.values.items() if team in self.teams.get(name, {team})}

    def why_not(self, name: str, team: str) -> str:
        """Why machines of ``team`` cannot start with the secret ``name``; empty if they can."""
        if name in self.of_team(team):
            return ""
        if name in self.values:
            return f"team {team} may not use the secret {name} (BROKER_TEAM_SECRETS)"
        return f"this installation has no secret {name} (BROKER_SECRET_{name})"


@dataclass(frozen=True, slots=True)
class Container:
    """A container image that a seller itself starts. ``env`` has the values of secrets."""

    image: str
    command: str
    env: Mapping[str, str] = field(repr=False)


def container_of(startup: Startup | None, secrets: Mapping[str, str]) -> Container | None:
    """The container that ``startup`` names; None for a script. ``secrets`` as in ``startup_script``."""
    if startup is None or startup.image is None:
        return None
    return Container(startup.image, startup.command or "", _environment(startup, secrets))


def _environment(startup: Startup, secrets: Mapping[str, str]) -> dict[str, str]:
    return {
        name: secrets[value.secret] if isinstance(value, SecretName) else value
        for name, value in startup.env.items()
    }


def startup_script(startup: Startup | None, secrets: Mapping[str, str]) -> str:
    """The shell script that a machine runs at its first start; empty without one.

    ``secrets`` has the value of each name in ``startup.secret_names``. An image is started with Docker on the
    machine's own network, with every GPU.
    """
    if startup is None:
        return ""
    env = _environment(startup, secrets)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    if startup.script is not None:
        lines = startup.script.splitlines()
        shebang = lines.pop(0) if lines and lines[0].startswith("#!") else "#!/bin/bash"
        return "\n".join([shebang, *exports, *lines]) + "\n"
    passed = " ".join(f"--env {name}" for name in env)
    run = (
        f"docker run --detach --restart unless-stopped --gpus all --network host --ipc host {passed}".rstrip()
    )
    return (
        "\n".join(["#!/bin/bash", *exports, f"{run} {startup.image} {startup.command or ''}".rstrip()]) + "\n"
    )
