"""``python -m tests.logs.broken_broker``: the broker's server, with addresses at which each boundary breaks.

Everything between the socket and the log is the product's own; only the routes below are ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from api.app import create_app
from api.bootstrap import build_product
from api.cli.configuration import load_settings
from api.cli.installation.listening import listen, serve_until_stopped
from api.given_settings import load_environment
from api.http.dependencies import product_of
from broker import logs

router = APIRouter(prefix="/_fault", include_in_schema=False)
log = structlog.get_logger()


class Held:
    """An object whose values a traceback with variables would show."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts


def break_with(texts: dict[str, str]) -> None:
    """Fails with every text in a variable, in the message, in its cause and in a group."""
    held = Held(texts)
    told = " | ".join(f"{name} {text}" for name, text in held.texts.items())
    try:
        raise LookupError(told)
    except LookupError as cause:
        try:
            raise ExceptionGroup(told, [ValueError(text) for text in texts.values()])
        except ExceptionGroup as group:
            raise RuntimeError(repr(held.texts)) from (group if len(texts) % 2 else cause)


async def _texts(request: Request) -> dict[str, str]:
    found: dict[str, str] = await request.json()
    return found


async def _failing(texts: dict[str, str]) -> None:
    break_with(texts)


@router.post("/raise")
async def raise_(request: Request) -> Response:
    """A handler that nobody foresaw would fail."""
    break_with(await _texts(request))
    return PlainTextResponse("not reached")


@router.post("/half")
async def half(request: Request) -> Response:
    """An answer that breaks in the middle."""
    texts = await _texts(request)

    async def parts() -> AsyncIterator[bytes]:
        yield b"half"
        break_with(texts)

    return StreamingResponse(parts())


@router.post("/around")
async def around(request: Request) -> Response:
    """Failures beside the request: task, background work, thread, callback, library, warning, print."""
    texts = await _texts(request)
    product_of(request).background.start(_failing(texts))
    forgotten = asyncio.get_running_loop().create_task(_failing(texts))
    await asyncio.wait({forgotten})
    del forgotten
    asyncio.get_running_loop().call_soon(break_with, texts)
    thread = threading.Thread(target=break_with, args=(texts,))
    thread.start()
    await asyncio.to_thread(thread.join)
    try:
        break_with(texts)
    except RuntimeError as error:
        logging.getLogger("some.library").error("failed: %s", texts, exc_info=error)
        log.warning("told", texts=texts, error=str(error), headers=list(request.headers.items()))
    return PlainTextResponse("done")


def in_the_planning_process(word: str, texts: dict[str, str]) -> None:
    """A record there, and a failure that comes back."""
    log.warning(word, texts=texts)
    break_with(texts)


@router.post("/worker")
async def worker(request: Request) -> Response:
    """A record and a failure in the planning process, which dies then."""
    texts = await _texts(request)
    executor = product_of(request).executor
    try:
        await asyncio.wrap_future(executor.submit(in_the_planning_process, "at work", texts))
    except RuntimeError as error:
        log.error("planning failed", exc_info=error)
    try:
        await asyncio.wrap_future(executor.submit(os._exit, 3))
    except Exception as error:
        log.error("the worker died", exc_info=error)
    return PlainTextResponse("done")


@router.post("/past")
async def past(request: Request) -> Response:
    """Control: writes past everything."""
    for text in (await _texts(request)).values():
        os.write(2, text.encode() + b"\n")
    return PlainTextResponse("done")


def main() -> None:
    """Serves as ``broker serve`` does, with our routes."""
    logs.begin(level=logging.DEBUG)
    logs.catch_the_rest()
    settings = load_settings()

    async def serve() -> None:
        product = build_product(settings, load_environment())
        app = create_app(product)
        app.include_router(router)
        with listen(settings.host, settings.port) as bound:
            await serve_until_stopped(app, bound)

    asyncio.run(serve())
    print("ended", file=sys.stderr)


if __name__ == "__main__":
    main()
