"""Response bodies, read in pieces and within size limits, whatever a server sends.

Compressed bodies are unpacked here. The HTTP client would unpack a whole chunk of a decompression bomb
before anybody could count its bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

ENCODINGS = "gzip, deflate"
"""Content encodings that ``unpacked`` can read, and that requests therefore accept."""
PIECE_BYTES = 64 * 1024
MOST_LINE_BYTES = 1024 * 1024
_WRAPPED, _BARE = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS


class BodyRefused(Exception):
    """A body over a limit or broken; the text says why."""


class _Inflate(Protocol):
    """The interface of ``zlib.decompressobj``."""

    @property
    def eof(self) -> bool:
        """Whether the packed stream has ended."""
        ...

    @property
    def unconsumed_tail(self) -> bytes:
        """Input that the last call left unread, because the output limit was reached."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """At most ``max_length`` bytes of what ``data`` unpacks to."""
        ...

    def flush(self) -> bytes:
        """The remaining output."""
        ...


async def unpacked(raw: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Decompresses ``raw`` by its ``Content-Encoding``, in pieces of at most ``PIECE_BYTES``.

    BodyRefused for an unknown encoding, broken data, or an early end.
    """
    word = encoding.strip().lower()
    if word in {"", "identity"}:
        async for chunk in raw:
            yield chunk
        return
    if word not in {"gzip", "x-gzip", "deflate"}:
        raise BodyRefused(f"the body has an unknown Content-Encoding ({word[:40]})")
    inflate: _Inflate | None = None
    try:
        async for chunk in raw:
            if not chunk:
                continue
            inflate = inflate or zlib.decompressobj(_BARE if _is_bare(chunk) else _WRAPPED)
            for piece in _pieces(inflate, chunk):
                yield piece
        if inflate is not None:
            yield inflate.flush()
    except zlib.error:
        raise BodyRefused("the compressed body is broken") from None
    if inflate is not None and not inflate.eof:
        raise BodyRefused("the compressed body ends too early")


def _is_bare(start: bytes) -> bool:
    """Whether a body is bare deflate: some servers send it without the zlib header."""
    zlib_header = start[0] & 0x0F == 8 and int.from_bytes(start[:2]) % 31 == 0
    return not (zlib_header or start.startswith(b"\x1f\x8b"[: len(start)]))


def _pieces(inflate: _Inflate, chunk: bytes) -> Iterator[bytes]:
    """The decompressed pieces of ``chunk``; data after the end of the stream is ignored."""
    while chunk and not inflate.eof:
        yield inflate.decompress(chunk, PIECE_BYTES)
        chunk = inflate.unconsumed_tail


async def whole(pieces: AsyncIterator[bytes], most_bytes: int) -> bytes:
    """A whole body; BodyRefused as soon as it is larger than ``most_bytes``."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > most_bytes:
            raise BodyRefused(f"the answer is larger than {most_bytes} bytes")
    return bytes(body)


async def lines(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[str]:
    """The lines of a UTF-8 body as they arrive, with one line and one piece in memory.

    BodyRefused for a body larger than ``most_bytes``, and for a line larger than ``MOST_LINE_BYTES``.
    """
    pending = b""
    async for piece in pieces:
        most_bytes -= len(piece)
        if most_bytes < 0:
            raise BodyRefused("the answer is larger than allowed")
        *ended, pending = (pending + piece).split(b"\n")
        for line in ended:
            yield _text(line)
        if len(pending) > MOST_LINE_BYTES:
            raise BodyRefused(f"a line is longer than {MOST_LINE_BYTES} bytes")
    if pending:
        yield _text(pending)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
