"""An answer of a provider as every adapter reads it, and what its status alone says.

What an error answer means is each adapter's own knowledge: its ``Classify`` function reads status and
body; ``classify_by_status`` is what it falls back on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel

from broker.domain.basics.errors import (
    CredentialsRejected,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from providers.pacing import retry_after_s
from providers.payload import as_list, as_payload, decode_json, decode_model

REQUEST_ID_HEADERS = ("x-request-id", "x-amzn-requestid", "x-amz-request-id", "request-id", "cf-ray")
_MESSAGE_CHARACTERS = 300

Model = TypeVar("Model", bound=BaseModel)


class Operation(StrEnum):
    """Classes of calls: pace and breaker are kept for each."""

    OFFERS = "offers"
    LEASES = "leases"
    ORDER = "order"
    RELEASE = "release"
    TOKEN = "token"  # noqa: S105  a word, not a secret


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its body read in full. ``headers`` have lower-case names.

    ``endpoint``: method and path of its call. ``noted``: is told the models that it is read as.
    """

    provider: str
    operation: Operation
    status: int
    headers: Mapping[str, str]
    body: bytes
    repeatable: bool
    endpoint: str = ""
    noted: Callable[[type[BaseModel]], None] | None = None

    @property
    def request_id(self) -> str | None:
        """The provider's id of the call, when it gives one."""
        return next((self.headers[name] for name in REQUEST_ID_HEADERS if name in self.headers), None)

    @property
    def text(self) -> str:
        """The body as text; undecodable bytes are replaced."""
        return self.body.decode("utf-8", "replace")

    @property
    def answered_at(self) -> datetime:
        """The seller's own time of the answer (its ``Date``); this machine's where it says none."""
        try:
            return parsedate_to_datetime(self.headers.get("date", "")).astimezone(UTC)
        except (TypeError, ValueError):
            return datetime.now(UTC)

    @property
    def retry_after_s(self) -> float | None:
        """The wait that the provider asks for, in seconds from now."""
        return retry_after_s(self.headers.get("retry-after", ""), self.headers.get("date", ""))

    def json(self) -> Any:
        """The body as JSON with exact decimals; raises what ``unreadable`` gives."""
        try:
            return decode_json(self.provider, self.body)
        except PayloadUnreadable as error:
            raise self.unreadable(str(error).removeprefix(f"{self.provider}: ")) from error

    def json_or_none(self) -> Any:
        """The body as JSON, or None when it is something else (an HTML page of a proxy)."""
        try:
            return decode_json(self.provider, self.body)
        except PayloadUnreadable:
            return None

    def read(self, model: type[Model]) -> Model:
        """The body as ``model``; raises what ``unreadable`` gives."""
        if self.noted is not None:
            self.noted(model)
        try:
            return decode_model(self.provider, self.body, model)
        except PayloadUnreadable as error:
            raise self.unreadable(str(error).removeprefix(f"{self.provider}: ")) from error

    def rows(self, what: str, model: type[Model]) -> list[Model]:
        """The rows of an answer that is a list of ``model``; raises what ``unreadable`` gives."""
        if self.noted is not None:
            self.noted(model)
        with self.being_read():
            found = as_list(self.provider, self.json(), what)
            return [as_payload(self.provider, row, model) for row in found]

    @property
    def retirement(self) -> Mapping[str, str]:
        """What it says of its endpoint's end: ``deprecation`` and ``sunset``, as far as it names them."""
        return {name: self.headers[name] for name in ("deprecation", "sunset") if name in self.headers}

    @property
    def is_gone(self) -> bool:
        """Whether its endpoint went (410); a 410 to an order speaks of what was ordered."""
        return self.status == 410 and self.operation is not Operation.ORDER

    def unreadable(self, message: str) -> ProviderError:
        """The error for an answer that makes no sense: after an order nobody knows what happened."""
        kind = PayloadUnreadable if self.repeatable else OutcomeUnknown
        return self.named(kind(self.provider, message, request_id=self.request_id))

    @contextlib.contextmanager
    def being_read(self) -> Iterator[None]:
        """While its rows are read: what is unreadable in them is so in this answer."""
        try:
            yield
        except PayloadUnreadable as error:
            self.named(error)
            raise

    def named(self, error: ProviderError) -> ProviderError:
        """``error`` as one of this answer: it names the call."""
        error.endpoint, error.status = self.endpoint or None, self.status
        return error


Classify = Callable[[Reply], ProviderError]


def classify_by_status(reply: Reply, message: str = "") -> ProviderError:
    """The fallback of every ``Classify``: what the status alone says."""
    text = (message or reply.text)[:_MESSAGE_CHARACTERS].strip() or f"HTTP {reply.status}"
    if reply.status == 429:
        return RateLimited(reply.provider, text, reply.retry_after_s)
    if reply.status >= 500 or reply.status == 408:
        return ProviderUnavailable(reply.provider, f"HTTP {reply.status}: {text}")
    if reply.status == 402:
        return QuotaExceeded(reply.provider, text)
    if reply.status in {401, 403}:
        return CredentialsRejected(reply.provider, text)
    if reply.operation is Operation.OFFERS:
        return PayloadUnreadable(reply.provider, f"HTTP {reply.status}: {text}")
    if reply.status in {404, 410} and reply.operation is not Operation.ORDER:
        return LeaseNotFound(reply.provider, text)
    return OrderRejected(reply.provider, text)
