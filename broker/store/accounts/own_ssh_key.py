"""The installation's own SSH key, with which it runs starts on machines of sellers that take no script."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from broker.domain.basics.machines import KeyPair, PublicKey

OWN_KEY, OWN_PUBLIC_KEY = "ssh_key", "ssh_public_key"
"""Names of its halves in ``meta``; the private one is sealed."""
NAME = "this broker"
"""Its name among the keys of an order."""


def make_key_pair() -> KeyPair:
    """A new Ed25519 key."""
    made = Ed25519PrivateKey.generate()
    private = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    line = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public_key_of(line.decode()))


def public_key_of(line: str) -> PublicKey:
    """The public half as it goes with orders."""
    return PublicKey(NAME, line)
