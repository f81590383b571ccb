"""A warm process that others are forked from: each is a real process, whose death is a real SIGKILL.

Everything that a broker does for the first time (imports, mappers, compiled statements, connections) costs
more than the story that it then plays. So one process plays it once and forks the others, each in
milliseconds. No thread of it runs while it forks. (``multiprocessing``'s fork server costs 0.2 s a process,
and loads nothing before.)
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Nursery:
    """The other side of the warm process. ``first``: what it does itself, to be warm."""

    def __init__(self, first: Callable[..., object], *arguments: Any) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._line = Connection(ours.detach())
        self._line.send((first, arguments))
        assert self._line.recv() == 0, "the first life failed"

    def run(self, target: Callable[..., object], *arguments: Any, limit_s: float) -> int:
        """The exit code of a new process that calls ``target``; below zero: the signal that ended it."""
        self._line.send((target, arguments, limit_s))
        return int(self._line.recv())

    def stop(self) -> None:
        """Ends the warm process."""
        self._line.close()
        self._process.wait(60)


def _called(target: Callable[..., object], arguments: tuple[Any, ...]) -> int:
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _forked(target: Callable[..., object], arguments: tuple[Any, ...], limit_s: float) -> int:
    """Runs ``target`` in a child, which is killed after ``limit_s``; its exit code."""
    child = os.fork()
    if child == 0:
        code = _called(target, arguments)
        sys.stdout.flush()
        os._exit(code)
    ends = os.pidfd_open(child)
    try:
        if not select.select([ends], [], [], limit_s)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(ends)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(line: Connection) -> None:
    """Answers each wish with an exit code, until the line is closed."""
    target, arguments = line.recv()
    line.send(_called(target, arguments))
    gc.collect()
    gc.freeze()
    while True:
        try:
            target, arguments, limit_s = line.recv()
        except EOFError:
            return
        line.send(_forked(target, arguments, limit_s))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
