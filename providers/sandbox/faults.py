"""Faults that a tester injects: which calls they affect, and for how long."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from pydantic import TypeAdapter

from providers.sandbox.store import Store

HANG_S = 65.0
"""How long a call hangs at most when a timeout fault names no ``seconds``."""

Operation = Literal["list", "create", "get", "delete"]
_DOCUMENT = "fault"


class FaultKind(StrEnum):
    """The kind of a fault.

    ``timeout_before``/``timeout_after``: no answer, the effect not done / done. ``connection_reset``: the
    connection breaks, by default before the effect. ``malformed``: the effect is done, and half of the
    answer's body arrives. ``out_of_capacity``: refused in the provider's own form.
    ``async_out_of_capacity``: accepted, and failed for lack of capacity afterwards.
    """

    TIMEOUT_BEFORE = "timeout_before"
    TIMEOUT_AFTER = "timeout_after"
    HTTP_500 = "http_500"
    RATE_LIMITED = "rate_limited"
    OUT_OF_CAPACITY = "out_of_capacity"
    ASYNC_OUT_OF_CAPACITY = "async_out_of_capacity"
    SLOW = "slow"
    MALFORMED = "malformed"
    CONNECTION_RESET = "connection_reset"


DELAYING = frozenset({FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.SLOW})
"""Kinds whose ``seconds`` is the duration of one call.

For all others, it is how long the fault stays armed.
"""

CREATE_ONLY = frozenset({FaultKind.OUT_OF_CAPACITY, FaultKind.ASYNC_OUT_OF_CAPACITY})


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    ``count`` None: every call while armed. ``until`` None: until used up.
    """

    fault_id: str
    provider: str
    operation: Operation
    kind: FaultKind
    count: int | None
    seconds: float | None
    until: datetime | None
    after_effect: bool = False

    @property
    def delay_s(self) -> float:
        """How long an affected call waits, in seconds."""
        return HANG_S if self.seconds is None else min(self.seconds, HANG_S)

    def to_json(self) -> dict[str, Any]:
        """The fault as the control endpoint shows it."""
        return {**asdict(self), "until": None if self.until is None else self.until.isoformat()}


_FAULTS = TypeAdapter(Fault)


class Faults:
    """Armed faults, oldest first."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def arm(
        self,
        provider: str,
        operation: Operation,
        kind: FaultKind,
        *,
        count: int | None,
        seconds: float | None,
        after_effect: bool,
        now: datetime,
    ) -> Fault:
        """Arms a fault; without a count it affects one call, or every call for ``seconds``."""
        spans = kind not in DELAYING and seconds is not None
        fault = Fault(
            fault_id=f"fault-{self._store.next_number('fault')}",
            provider=provider,
            operation=operation,
            kind=kind,
            count=count if count is not None or spans else 1,
            seconds=seconds,
            until=now + timedelta(seconds=seconds) if spans and seconds is not None else None,
            after_effect=after_effect,
        )
        self._store.put_document(_DOCUMENT, fault.fault_id, fault.to_json())
        return fault

    def armed(self) -> list[Fault]:
        """Faults that wait for a call."""
        return [_FAULTS.validate_python(body) for body in self._store.documents(_DOCUMENT).values()]

    def take(self, provider: str, operation: str, now: datetime) -> Fault | None:
        """The fault that affects this call, or None; its count decreases."""
        for fault in self.armed():
            if fault.until is not None and fault.until <= now:
                self._store.drop_document(_DOCUMENT, fault.fault_id)
            elif (fault.provider, fault.operation) == (provider, operation):
                self._use(fault)
                return fault
        return None

    def clear(self) -> int:
        """Disarms all faults and returns how many there were."""
        armed = self.armed()
        for fault in armed:
            self._store.drop_document(_DOCUMENT, fault.fault_id)
        return len(armed)

    def _use(self, fault: Fault) -> None:
        if fault.count is None:
            return
        if fault.count <= 1:
            self._store.drop_document(_DOCUMENT, fault.fault_id)
        else:
            body = {**fault.to_json(), "count": fault.count - 1}
            self._store.put_document(_DOCUMENT, fault.fault_id, body)
