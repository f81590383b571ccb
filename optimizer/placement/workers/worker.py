"""A worker process that answers questions from its standard input until that is closed.

It is started by ``python -m optimizer.placement.workers.worker`` and ends with its parent, even if that was
killed.
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
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.workers.wire import TaskReceiver, send

PARENT_LOOKED_FOR_S = 1.0


def main() -> None:
    """Answers one question after another; logs in the way of the process that started it."""
    logs.take_argument(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()
    receiver = TaskReceiver(os.fdopen(os.dup(sys.stdin.fileno()), "rb"))
    outbox = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Anything else that is printed must not be mistaken for an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        problem = receiver.receive_problem()
        asks: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_listen, args=(receiver, asks), name="listener", daemon=True).start()
        while True:
            send(outbox, asks.get().answer(problem, never))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _listen(receiver: TaskReceiver, asks: SimpleQueue[Any]) -> None:
    """Notices at once when the other end is gone, even while a question is being answered."""
    try:
        while True:
            asks.put(receiver.receive())
    except (EOFError, OSError):
        os._exit(0)


def _end_with(parent: int) -> None:
    """Ends this process with its parent. The pipe alone does not tell, as another child may hold it open."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOKED_FOR_S)
    os._exit(0)


if __name__ == "__main__":
    main()
