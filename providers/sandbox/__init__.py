"""The sandbox market: the wire protocols of all feeds over one seeded stock and one ledger, and no money.

``create_sandbox`` makes the ASGI application, ``run`` serves it, ``start_in_background`` serves it from
a thread. Nothing here knows the adapters, and nothing of the adapters is used: both were written from
the providers' documentation, so that a misreading of one shows against the other.
"""

from providers.sandbox.app import Sandbox, create_sandbox
from providers.sandbox.protocol import Durations
from providers.sandbox.server import SandboxHandle, run, start_in_background

__all__ = ["Durations", "Sandbox", "SandboxHandle", "create_sandbox", "run", "start_in_background"]
