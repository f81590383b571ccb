"""Machines that people enter: where each one answers, and whose keys open it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

SSH_PORT = 22
KEY_KINDS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
_LEAST_RSA_BYTES = 256
_LONGEST_KEY = 8_192


class AccessWish(StrEnum):
    """How people enter the machines of a workload: with SSH keys, or not at all."""

    SSH = "ssh"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Access:
    """How one machine is entered, as its seller says it.

    ``private_host`` is its address in the seller's own network (None: not said). ``console_url`` is its page
    at the seller. ``ssh_host_key`` is the public key by which the machine proves itself, as ``kind base64``.
    ``server_port`` is where the seller publishes the port of the machine's server (None: at the same port).
    ``is_entered`` False: it has a server and no way in.
    """

    host: str
    user: str
    port: int = SSH_PORT
    private_host: str | None = None
    console_url: str | None = None
    ssh_host_key: str | None = None
    server_port: int | None = None
    is_entered: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of a unit, and what the broker saw of it.

    ``reachable_at`` is when its SSH port first answered the broker (None: not yet), and ``host_key`` the
    public key that it then showed. ``ready_at`` is since when the health path of its server answers (None: it
    does not).
    """

    access: Access
    reachable_at: datetime | None = None
    host_key: str | None = None
    ready_at: datetime | None = None

    @property
    def expected_host_key(self) -> str | None:
        """The key that its SSH server must show: as the seller says it, else as the broker first saw it."""
        return self.access.ssh_host_key or self.host_key


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public SSH key with the name of its owner. ``line`` is ``kind base64``, without a comment."""

    name: str
    line: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH prints it: ``SHA256:`` and unpadded Base64."""
        return fingerprint_of(self.line)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The installation's own SSH key. ``private`` is its private half in OpenSSH's format."""

    private: str = field(repr=False)
    public: PublicKey


@dataclass(frozen=True, slots=True)
class SshKey:
    """A stored public key. ``person`` None: it is the team's, else it goes with orders of that person."""

    key_id: str
    name: str
    team: str
    public_key: str
    created_at: datetime
    created_by: str
    person: str | None = None

    @property
    def as_public_key(self) -> PublicKey:
        """The key as it goes with an order."""
        return PublicKey(self.name, self.public_key)

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH prints it."""
        return fingerprint_of(self.public_key)


def fingerprint_of(line: str) -> str:
    """The SHA-256 fingerprint of a public key line."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_public_key(text: str) -> tuple[str, str]:
    """The line ``kind base64`` of a public key file, and its comment.

    Raises ValueError that says what was found instead: a private key, several lines, an unknown kind, or a
    body that is not of that kind.
    """
    text = text.strip()
    if "PRIVATE KEY" in text:
        raise ValueError("a private key: keep it to yourself, and hand over the file that ends in .pub")
    if len(text) > _LONGEST_KEY or "\n" in text:
        raise ValueError("more than one line")
    kind, _, rest = text.partition(" ")
    body, _, comment = rest.strip().partition(" ")
    if kind not in KEY_KINDS:
        raise ValueError(f"a key of kind {kind[:40]!r}")
    try:
        raw = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    length = int.from_bytes(raw[:4], "big")
    if raw[4 : 4 + length] != kind.encode():
        raise ValueError(f"a body that is not of an {kind} key; it may be cut")
    if kind == "ssh-rsa" and len(raw) < _LEAST_RSA_BYTES:
        raise ValueError("an RSA key of fewer than 2,048 bits, which OpenSSH refuses")
    return f"{kind} {body}", comment.strip()


def with_keys(script: str, keys: Sequence[PublicKey], home: str = '"$HOME"') -> str:
    """``script`` after lines that let in ``keys``, for sellers that take one key or none.

    ``home`` is the home folder of the user who logs in, as the shell reads it.
    """
    if not keys:
        return script
    lines = script.splitlines() or ["#!/bin/bash"]
    folder = f"{home}/.ssh"
    grant = [f"mkdir -p {folder}"]
    grant += [f"echo {shlex.quote(key.line)} >> {folder}/authorized_keys" for key in keys]
    return "\n".join([lines[0], *grant, *lines[1:]]) + "\n"
