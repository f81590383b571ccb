"""A server of bad feeds on this machine, one kind a path: ``python -m tests.fakes.bad_server``.

``/drip``: a byte now and then, for ever. ``/huge``: 2 GB without a length; ``/huge-length`` says it first.
``/bomb``: 1 GB of zeros in 1 MB of gzip. ``/line``: 2 GB without the end of a line. ``/pages``: full pages of
Prime Intellect's list, each with a next one. As a program it prints its address, serves until its standard
input ends, and then prints the bytes that it sent, by kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

HUGE_BYTES = 2_000_000_000
BOMB_BYTES = 1_000_000_000
PAGE_ROWS = 100
_CHUNK = b"x" * 65536
_PAGE = Path(__file__).parents[2] / "fixtures" / "providers" / "prime_intellect" / "gpus_page1.json"


class BadServer:
    """Counts calls and sent bytes by kind."""

    def __init__(
        self, huge_bytes: int = HUGE_BYTES, bomb_bytes: int = BOMB_BYTES, drip_s: float = 0.2
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._huge_bytes, self._bomb_bytes, self._drip_s = huge_bytes, bomb_bytes, drip_s

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serves within; gives the address."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            kind = head.split(b" ")[1].split(b"?")[0].split(b"/")[1].decode()
            self.calls[kind] += 1
            headers, chunks = self._kinds()[kind]
            lines = ["HTTP/1.1 200 OK", "content-type: application/json", "connection: close", *headers]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            for chunk in chunks():
                writer.write(chunk)
                await writer.drain()
                self.sent[kind] += len(chunk)
                if kind == "drip":
                    await asyncio.sleep(self._drip_s)
        writer.close()

    def _kinds(self) -> dict[str, tuple[tuple[str, ...], Callable[[], Iterator[bytes]]]]:
        return {
            "drip": ((), self._drip),
            "huge": ((), self._huge),
            "huge-length": ((f"content-length: {self._huge_bytes}",), self._huge),
            "bomb": (("content-encoding: gzip",), lambda: iter((bomb(self._bomb_bytes),))),
            "line": ((), self._huge),
            "pages": ((), lambda: iter((endless_page(),))),
        }

    def _drip(self) -> Iterator[bytes]:
        yield b'{"data": ['
        while True:
            yield b" "

    def _huge(self) -> Iterator[bytes]:
        yield b'{"data": "'
        for _ in range(self._huge_bytes // len(_CHUNK)):
            yield _CHUNK


@cache
def bomb(unpacked_bytes: int) -> bytes:
    """Zeros in gzip, a thousandth of their size."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    zeros = bytes(1_000_000)
    parts = [packer.compress(zeros) for _ in range(unpacked_bytes // len(zeros))]
    return b"".join([*parts, packer.flush()])


@cache
def endless_page() -> bytes:
    """A full page of Prime Intellect's list, of very many."""
    page = json.loads(_PAGE.read_text())
    items = (page["items"] * PAGE_ROWS)[:PAGE_ROWS]
    return json.dumps({**page, "items": items, "totalCount": 10**9}).encode()


async def main() -> None:
    """Serves until standard input ends."""
    server = BadServer()
    bomb(BOMB_BYTES)
    async with server.serving() as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(server.sent), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
