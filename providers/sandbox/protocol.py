"""What every protocol of the sandbox is made of: calls, replies, routes, and the state that all share."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

import structlog

from providers.sandbox.clock import SandboxClock
from providers.sandbox.faults import FaultKind, Faults
from providers.sandbox.ledger import Ledger
from providers.sandbox.market import Market
from providers.sandbox.store import Store

MAXIMUM_BODY_BYTES = 1_000_000

Row = TypeVar("Row")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long asynchronous steps take, in seconds of the sandbox clock."""

    boot_s: float = 2.0
    terminate_s: float = 1.0
    payment_s: float = 2.0
    fill_s: float = 2.0


@dataclass(slots=True)
class SandboxState:
    """The state that all protocols share.

    ``nonce`` is created with the state, so that ids of two sandboxes differ. ``port``: that of its server, on
    which its machines listen for SSH too, each on an address of its own (None: there are no machines).
    """

    seed: int
    nonce: str
    store: Store
    clock: SandboxClock
    ledger: Ledger
    market: Market
    faults: Faults
    durations: Durations
    opened_at: datetime
    port: int | None = None

    def new_id(self, kind: str, length: int) -> str:
        """A new lower-case hexadecimal id (at most 64 digits)."""
        number = self.store.next_number(kind)
        return hashlib.sha256(f"{self.nonce}|{kind}|{number}".encode()).hexdigest()[:length]


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    ``path`` is the part after ``/{provider}``; header names are lower case. ``loses_capacity``: a fault
    makes this create fail afterwards. ``target``: path and query as sent, which a signature covers.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    parts: Mapping[str, str] = field(default_factory=dict)
    loses_capacity: bool = False
    target: str = ""

    def json(self) -> Any:
        """The body as JSON; ValueError when it is not."""
        return json.loads(self.body or b"null")

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object; ValueError when it is not."""
        found = self.json()
        if not isinstance(found, dict):
            raise ValueError("the body must be a JSON object")
        return found

    def form(self) -> dict[str, str]:
        """The body as an HTML form."""
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    def whole(self, name: str, default: int, most: int | None = None) -> int:
        """A whole number of the query, raised to 1 and lowered to ``most``; ValueError for other text."""
        found = max(1, int(self.query.get(name) or default))
        return found if most is None else min(most, found)

    def key(self, *, query: str | None = None) -> str | None:
        """The caller's key from a bearer header or a query parameter; None without one."""
        scheme, _, value = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and value.strip():
            return value.strip()
        return self.query.get(query) or None if query is not None else None


@dataclass(frozen=True, slots=True)
class Reply:
    """One response; ``chunks``, if given, follow ``body`` piece by piece, without a content length."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Callable[[], Iterator[bytes]] | None = None

    def with_headers(self, headers: Mapping[str, str]) -> Reply:
        """The reply with more headers."""
        return replace(self, headers={**self.headers, **headers})

    def broken(self) -> Reply:
        """The reply with half of its body missing."""
        first = next(self.chunks()) if self.chunks is not None else b""
        whole = self.body + first
        return replace(self, body=whole[: len(whole) // 2], chunks=None)


class Refusal(Exception):
    """An error answer in the provider's own form; the transaction is rolled back."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(f"answered {reply.status}")


def json_reply(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON answer."""
    return Reply(status, json.dumps(payload).encode(), headers=headers or {})


def text_reply(text: str, status: int = 200) -> Reply:
    """A plain text answer."""
    return Reply(status, text.encode(), "text/plain; charset=utf-8")


def page_of(rows: Sequence[Row], number: int, size: int) -> list[Row]:
    """Page ``number`` (from 1) of pages of ``size`` rows."""
    return list(rows[(number - 1) * size : number * size])


Handler = Callable[[Call], Reply]
Classifier = Callable[[Call], str]


@dataclass(frozen=True, slots=True)
class Route:
    """One path of a provider; ``{name}`` stands for one segment, and a final slash is optional.

    ``{name*}`` also takes slashes, which stood encoded in the address.

    ``operation``: ``list`` (what is on sale), ``create``, ``get`` (what is held), ``delete``, ``other``, or
    a function of the call where the body decides. ``public``: needs no key.
    """

    method: str
    path: str
    operation: str | Classifier
    handler: Handler
    public: bool = False

    def parts(self, call: Call) -> dict[str, str] | None:
        """Values of the named segments if the call matches, else None."""
        if call.method != self.method:
            return None
        path = re.escape(self.path.rstrip("/"))
        pattern = re.sub(r"\\{(\w+)\\\*\\}", r"(?P<\1>.+)", path)
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", pattern)
        found = re.fullmatch(pattern + "/?", call.path)
        return None if found is None else found.groupdict()


class ProtocolHandler(ABC):
    """One provider's protocol. Subclasses give ``name``, ``routes`` and their own error bodies."""

    name: ClassVar[str]

    def __init__(self, sandbox: SandboxState) -> None:
        self.sandbox = sandbox
        self.routes: tuple[Route, ...] = tuple(self.make_routes())

    @abstractmethod
    def make_routes(self) -> Iterable[Route]:
        """The paths that this provider serves."""

    @abstractmethod
    def authorise(self, call: Call) -> None:
        """Raises Refusal with the provider's own body when the key is missing."""

    @abstractmethod
    def unknown_path(self) -> Reply:
        """The provider's answer to an unknown path."""

    @abstractmethod
    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """The provider's own form of ``http_500``, ``rate_limited`` and ``out_of_capacity``."""

    @abstractmethod
    def malformed_body(self, reason: str) -> Reply:
        """The provider's answer to a body that cannot be read."""

    def operation(self, call: Call) -> str:
        """The operation of the call, for call counts and faults."""
        for route in self.routes:
            if route.parts(call) is not None:
                return route.operation if isinstance(route.operation, str) else route.operation(call)
        return "other"

    def answer(self, call: Call) -> Reply:
        """The provider's answer; Refusal for its errors."""
        for route in self.routes:
            parts = route.parts(call)
            if parts is not None:
                if not route.public:
                    self.authorise(call)
                return self._handled(route, replace(call, parts=parts))
        return self.unknown_path()

    def _handled(self, route: Route, call: Call) -> Reply:
        try:
            return route.handler(call)
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            _log.info("sandbox could not read a body", provider=self.name, path=call.path, reason=repr(error))
            raise Refusal(self.malformed_body(str(error))) from error

    @property
    def now(self) -> datetime:
        """The sandbox's time."""
        return self.sandbox.clock.now()
