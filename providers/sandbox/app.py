"""The sandbox as one ASGI application: dispatch, faults, one transaction per call.

It uses bare ASGI because frameworks cannot inject two faults: to hang until the client gives up, and to
break the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import structlog

from broker.domain.basics.errors import Conflict
from providers.sandbox.clock import SandboxClock, wall_now
from providers.sandbox.control import Control
from providers.sandbox.faults import Fault, FaultKind, Faults
from providers.sandbox.ledger import Ledger
from providers.sandbox.machines import Machines
from providers.sandbox.market import Market
from providers.sandbox.protocol import (
    MAXIMUM_BODY_BYTES,
    Call,
    Durations,
    ProtocolHandler,
    Refusal,
    Reply,
    SandboxState,
    json_reply,
)
from providers.sandbox.sellers.aws.ec2 import AwsEc2
from providers.sandbox.sellers.azure.protocol import Azure
from providers.sandbox.sellers.crusoe.protocol import Crusoe
from providers.sandbox.sellers.cudo.protocol import Cudo
from providers.sandbox.sellers.digitalocean.protocol import DigitalOcean
from providers.sandbox.sellers.gcp.protocol import GoogleCloud
from providers.sandbox.sellers.hotaisle import HotAisle
from providers.sandbox.sellers.hyperstack.protocol import Hyperstack
from providers.sandbox.sellers.lambda_cloud import LambdaCloud
from providers.sandbox.sellers.latitude.protocol import Latitude
from providers.sandbox.sellers.mithril.protocol import Mithril
from providers.sandbox.sellers.oci.protocol import Oci
from providers.sandbox.sellers.ovh.protocol import Ovh
from providers.sandbox.sellers.price_lists.gpuhunt import GpuHunt
from providers.sandbox.sellers.price_lists.skypilot import SkyPilot
from providers.sandbox.sellers.prime_intellect.protocol import PrimeIntellect
from providers.sandbox.sellers.runpod.protocol import RunPod
from providers.sandbox.sellers.scaleway.protocol import Scaleway
from providers.sandbox.sellers.sfcompute.protocol import SFCompute
from providers.sandbox.sellers.shadeform.protocol import Shadeform
from providers.sandbox.sellers.tensordock.protocol import TensorDock
from providers.sandbox.sellers.together.protocol import Together
from providers.sandbox.sellers.vast.protocol import Vast
from providers.sandbox.sellers.verda.protocol import Verda
from providers.sandbox.sellers.vultr.protocol import Vultr
from providers.sandbox.store import Store

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

PROTOCOLS: tuple[type[ProtocolHandler], ...] = (
    LambdaCloud,
    RunPod,
    Vast,
    Verda,
    AwsEc2,
    Azure,
    GoogleCloud,
    SFCompute,
    Shadeform,
    Oci,
    Vultr,
    Latitude,
    PrimeIntellect,
    Mithril,
    DigitalOcean,
    SkyPilot,
    GpuHunt,
    HotAisle,
    Hyperstack,
    Together,
    Scaleway,
    Cudo,
    Crusoe,
    TensorDock,
    Ovh,
)
RESET_EXTENSION = "sandbox.reset"
"""The ASGI scope extension in which a server passes a function that breaks the connection."""

_log = structlog.get_logger(__name__)


def create_sandbox(
    seed: int,
    state_dir: Path | None = None,
    clock_start: datetime | None = None,
    durations: Durations | None = None,
    wall: Callable[[], datetime] = wall_now,
) -> Sandbox:
    """The sandbox market as an ASGI application.

    ``state_dir`` keeps ledger, clock, faults and market changes over restarts (None: memory).
    ``clock_start``: the first time that the clock shows (aware; default: wall time). ``durations``: of
    asynchronous steps. ``wall``: the clock that drives the sandbox. Raises Conflict when ``state_dir`` was
    made with another seed.
    """
    return Sandbox(open_state(seed, state_dir, clock_start, durations or Durations(), wall))


def open_state(
    seed: int,
    state_dir: Path | None,
    clock_start: datetime | None,
    durations: Durations,
    wall: Callable[[], datetime] = wall_now,
) -> SandboxState:
    """Opens the state, or creates it."""
    store = Store(state_dir)
    kept = store.setting("seed")
    if kept is not None and int(kept) != seed:
        store.close()
        raise Conflict(f"the sandbox state in {state_dir} was made with seed {kept}, not {seed}")
    with store.transaction():
        store.keep_setting("seed", str(seed))
        clock = SandboxClock(store, clock_start, wall)
        nonce = store.setting("nonce") or secrets.token_hex(8)
        store.keep_setting("nonce", nonce)
        opened = store.setting("opened_at") or clock.now().astimezone(UTC).isoformat()
        store.keep_setting("opened_at", opened)
    ledger = Ledger(store)
    return SandboxState(
        seed=seed,
        nonce=nonce,
        store=store,
        clock=clock,
        ledger=ledger,
        market=Market(store, ledger),
        faults=Faults(store),
        durations=durations,
        opened_at=datetime.fromisoformat(opened),
    )


class Sandbox:
    """The ASGI application; ``state`` is for tests in the same process, and for its server's port."""

    def __init__(self, state: SandboxState) -> None:
        self.state = state
        self._protocols = {protocol.name: protocol(state) for protocol in PROTOCOLS}
        self._control = Control(state, self._protocols)
        self._machines: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Closes the state; committed changes are kept."""
        self.state.store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection event of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Runs the machines for as long as the server does."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self.state.port is not None:
                    machines = Machines(self.state, self._protocols, self.state.port)
                    self._machines = asyncio.create_task(machines.run())
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._machines is not None:
                    self._machines.cancel()
                    await asyncio.wait((self._machines,))
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        name, call = _call(scope, body)
        protocol = self._protocols.get(name)
        if protocol is not None:
            reply = await self._provider_reply(protocol, call, receive)
        elif name == "_sandbox":
            reply = self._in_transaction(self._control.answer, call)
        else:
            known = ", ".join(sorted(self._protocols))
            reply = json_reply({"error": f"no provider {name!r} here; known: {known}"}, 404)
        if reply is None:
            await _break(scope)
        else:
            date = format_datetime(self.state.clock.now(), usegmt=True)
            await _send(reply.with_headers({"date": date}), send)

    async def _provider_reply(self, protocol: ProtocolHandler, call: Call, receive: Receive) -> Reply | None:
        """The reply with any fault applied; None: the connection ends without an answer."""
        operation = protocol.operation(call)
        with self.state.store.transaction():
            self.state.store.count_call(protocol.name, operation)
            fault = self.state.faults.take(protocol.name, operation, self.state.clock.now())
        if fault is None:
            return self._in_transaction(protocol.answer, call)
        _log.info("sandbox fault", provider=protocol.name, operation=operation, kind=fault.kind.value)
        return await self._faulty_reply(protocol, call, fault, receive)

    async def _faulty_reply(
        self, protocol: ProtocolHandler, call: Call, fault: Fault, receive: Receive
    ) -> Reply | None:
        match fault.kind:
            case FaultKind.TIMEOUT_BEFORE | FaultKind.TIMEOUT_AFTER:
                if fault.kind is FaultKind.TIMEOUT_AFTER:
                    self._in_transaction(protocol.answer, call)
                await _hang(fault.delay_s, receive)
                return None
            case FaultKind.CONNECTION_RESET:
                if fault.after_effect:
                    self._in_transaction(protocol.answer, call)
                return None
            case FaultKind.SLOW:
                await asyncio.sleep(fault.delay_s)
                return self._in_transaction(protocol.answer, call)
            case FaultKind.MALFORMED:
                return self._in_transaction(protocol.answer, call).broken()
            case FaultKind.ASYNC_OUT_OF_CAPACITY:
                return self._in_transaction(protocol.answer, _losing_capacity(call))
            case _:
                return protocol.refusal(fault.kind, call)

    def _in_transaction(self, answer: Callable[[Call], Reply], call: Call) -> Reply:
        try:
            with self.state.store.transaction():
                return answer(call)
        except Refusal as refusal:
            return refusal.reply


def _losing_capacity(call: Call) -> Call:
    return replace(call, loses_capacity=True)


def _call(scope: Scope, body: bytes) -> tuple[str, Call]:
    """The provider's name and the call, from an ASGI scope."""
    _, _, rest = scope["path"].partition("/")
    name, slash, tail = rest.partition("/")
    query_string = scope.get("query_string", b"").decode()
    query = parse_qsl(query_string, keep_blank_values=True)
    headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
    target = f"{path}?{query_string}" if query_string else path
    return name, Call(scope["method"], slash + tail, dict(query), headers, body, target=target)


async def _read_body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= MAXIMUM_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


async def _send(reply: Reply, send: Send) -> None:
    headers = {"content-type": reply.media_type, **reply.headers}
    if reply.chunks is None:
        headers["content-length"] = str(len(reply.body))
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    if reply.chunks is not None:
        for chunk in reply.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if reply.chunks else reply.body})


async def _hang(seconds: float, receive: Receive) -> None:
    """Waits until the client is gone, at most ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                continue


async def _break(scope: Scope) -> None:
    """Ends the connection without an answer; raises ConnectionResetError where the server cannot do it."""
    reset = (scope.get("extensions") or {}).get(RESET_EXTENSION)
    if reset is None:
        raise ConnectionResetError("the sandbox broke the connection")
    reset()
    await asyncio.sleep(0.01)
