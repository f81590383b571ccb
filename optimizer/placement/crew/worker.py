"""A process that answers asks from its standard input until that ends: ``python -m
optimizer.placement.crew.worker``. It ends with whoever started it, also where that was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

from broker import logs
from optimizer.placement.crew.wire import Inbox, send
from optimizer.placement.runtime.stopwatch import never

PARENT_LOOKED_FOR_S = 1.0


def main() -> None:
    """Answers one ask after the other; logs as the process that started it."""
    logs.take_argument(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()
    inbox = Inbox(os.fdopen(os.dup(sys.stdin.fileno()), "rb"))
    outbox = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever else is printed must not be taken for an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        problem = inbox.receive_problem()
        asks: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_listen, args=(inbox, asks), name="listener", daemon=True).start()
        while True:
            send(outbox, asks.get().answer(problem, never))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _listen(inbox: Inbox, asks: SimpleQueue[Any]) -> None:
    """Hears at once when the other end is gone, whatever is being answered."""
    try:
        while True:
            asks.put(inbox.receive())
    except (EOFError, OSError):
        os._exit(0)


def _end_with(parent: int) -> None:
    """The pipe may be held open by another child of the parent; its end is seen here as well."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOKED_FOR_S)
    os._exit(0)


if __name__ == "__main__":
    main()
