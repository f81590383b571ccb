"""The installation's own SSH key, with which it runs starts on machines of sellers that take no script."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from broker.domain.basics.machines import KeyPair, PublicKey

OWN_KEY = "ssh_key"
"""Name of the sealed private half in ``meta``."""
NAME = "this broker"
"""Its name among the keys of an order."""


def make_private_key() -> str:
    """A new Ed25519 key in OpenSSH's format."""
    made = Ed25519PrivateKey.generate()
    return made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def pair_of(private: str) -> KeyPair:
    """Both halves of ``private``."""
    public = load_ssh_private_key(private.encode(), None).public_key()
    return KeyPair(
        private, PublicKey(NAME, public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())
    )
