"""A worker process that answers the questions of the process that started it, and ends with it.

It is started by ``python -m optimizer.placement.workers.worker`` with the number of its ``Connection``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from broker import logs
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.workers.wire import Receiver

PARENT_LOOKED_FOR_S = 1.0


def main() -> None:
    """Logs as its parent does, and answers one question after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent-watch", daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError):  # the parent is gone
        handed, bound = connection.recv()
        logs.take_over(handed)
        logs.on_behalf(bound, _answer_all, connection)


def _answer_all(connection: Connection) -> None:
    receiver = Receiver(connection)
    while True:
        ask, problem = receiver.receive()
        connection.send(ask.answer(problem, never))


def _end_with(parent: int) -> None:
    """Ends this process with its parent, even if that was killed while a question is being answered."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOKED_FOR_S)
    os._exit(0)


if __name__ == "__main__":
    main()
