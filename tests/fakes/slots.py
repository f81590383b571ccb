"""An executor whose calls end when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.ports.planning import PlanOptions


@dataclass(frozen=True)
class Submitted:
    """One call, by the label of its options or by its first argument."""

    name: str
    work: Callable[[], Any]
    future: Future[Any]


@dataclass
class Slots:
    """Keeps what was submitted. ``can_end``: whether a call that runs can be cancelled, as a process can."""

    workers: int = 1
    can_end: bool = True
    calls: list[Submitted] = field(default_factory=list)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that a test ends."""
        future: Future[Any] = Future()
        if not self.can_end:
            future.set_running_or_notify_cancel()
        labels = [arg.label for arg in args if isinstance(arg, PlanOptions)]
        name = labels[0] if labels else str(args[0])
        self.calls.append(Submitted(name, partial(fn, *args, **kwargs), future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Calls that wait are given up."""
        for call in self.calls:
            call.future.cancel()

    @property
    def names(self) -> list[str]:
        """What was submitted, in order."""
        return [call.name for call in self.calls]

    def find(self, name: str) -> Submitted:
        """The call of that name."""
        return next(call for call in self.calls if call.name == name)

    def end(self, name: str) -> None:
        """Does the work of a call, and ends it with what comes of it."""
        call = self.find(name)
        try:
            call.future.set_result(call.work())
        except Exception as error:
            call.future.set_exception(error)
