"""The base of protocols behind a key: errors as data, and the provider's books."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from providers.sandbox.books import Books
from providers.sandbox.faults import FaultKind
from providers.sandbox.wire import Call, ProviderWire, Refusal, Reply, World


@dataclass(frozen=True, slots=True)
class ErrorForms:
    """A provider's own answers to what every protocol must be able to refuse.

    ``bad_body``: of why the body cannot be read.
    """

    no_key: Reply
    no_path: Reply
    bad_body: Callable[[str], Reply]
    rate_limited: Reply
    no_capacity: Reply
    failed: Reply


class KeyedWire(ProviderWire):
    """A protocol whose calls carry a key, and whose errors do not depend on the call.

    Subclasses give ``errors`` beside ``name`` and ``make_routes``; one that finds the key elsewhere than
    in a bearer header overrides ``key``, one that checks signatures ``authorise``. ``ends_at_once``: what
    was given back is not shown any more.
    """

    ends_at_once: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world, self.name, 0.0 if self.ends_at_once else world.durations.terminate_s)

    @abstractmethod
    def errors(self) -> ErrorForms:
        """The provider's own forms."""

    def key(self, call: Call) -> str | None:
        """The caller's key."""
        return call.key()

    def authorise(self, call: Call) -> None:
        """Refuses a call without a key."""
        if self.key(call) is None:
            raise Refusal(self.errors().no_key)

    def unknown_path(self) -> Reply:
        """The answer to a path that it does not have."""
        return self.errors().no_path

    def malformed_body(self, reason: str) -> Reply:
        """The answer to a body that cannot be read."""
        return self.errors().bad_body(reason)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """The answer that a fault gives, in the provider's own form."""
        forms = self.errors()
        if kind is FaultKind.RATE_LIMITED:
            return forms.rate_limited
        return forms.no_capacity if kind is FaultKind.OUT_OF_CAPACITY else forms.failed
