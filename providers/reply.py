"""A provider's answer as every adapter reads it, and what its status alone means.

Each adapter's ``Classify`` function knows its error answers by status and body; ``classify_by_status`` is
the default.
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
    """Kinds of calls; each has its own pace and circuit breaker."""

    OFFERS = "offers"
    LEASES = "leases"
    ORDER = "order"
    RELEASE = "release"
    TOKEN = "token"  # noqa: S105  a word, not a secret


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its whole body.

    ``headers`` have lower-case names. ``endpoint``: method and path of the call. ``noted`` is called with
    each model by which the answer is read.
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
        """The seller's time of the answer (its ``Date`` header), else this machine's."""
        try:
            return parsedate_to_datetime(self.headers.get("date", "")).astimezone(UTC)
        except (TypeError, ValueError):
            return datetime.now(UTC)

    @property
    def retry_after_s(self) -> float | None:
        """The wait that the provider asks for, in seconds from now."""
        return retry_after_s(self.headers.get("retry-after", ""), self.headers.get("date", ""))

    def json(self) -> Any:
        """The body as JSON with exact decimals; raises the error of ``unreadable``."""
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
        """The body as ``model``; raises the error of ``unreadable``."""
        if self.noted is not None:
            self.noted(model)
        try:
            return decode_model(self.provider, self.body, model)
        except PayloadUnreadable as error:
            raise self.unreadable(str(error).removeprefix(f"{self.provider}: ")) from error

    def rows(self, what: str, model: type[Model]) -> list[Model]:
        """The rows of an answer that is a list of ``model``; raises the error of ``unreadable``."""
        if self.noted is not None:
            self.noted(model)
        with self.being_read():
            found = as_list(self.provider, self.json(), what)
            return [as_payload(self.provider, row, model) for row in found]

    @property
    def retirement(self) -> Mapping[str, str]:
        """The ``deprecation`` and ``sunset`` of the endpoint, as far as the answer names them."""
        return {name: self.headers[name] for name in ("deprecation", "sunset") if name in self.headers}

    @property
    def is_gone(self) -> bool:
        """Whether the endpoint is retired (410); a 410 answer to an order concerns the ordered item."""
        return self.status == 410 and self.operation is not Operation.ORDER

    def unreadable(self, message: str) -> ProviderError:
        """The error of an unreadable answer; after an order it is OutcomeUnknown."""
        kind = PayloadUnreadable if self.repeatable else OutcomeUnknown
        return self.named(kind(self.provider, message, request_id=self.request_id))

    @contextlib.contextmanager
    def being_read(self) -> Iterator[None]:
        """A context in which unreadable rows raise the error of this answer."""
        try:
            yield
        except PayloadUnreadable as error:
            self.named(error)
            raise

    def named(self, error: ProviderError) -> ProviderError:
        """``error`` with the name of the call."""
        error.endpoint, error.status = self.endpoint or None, self.status
        return error


Classify = Callable[[Reply], ProviderError]


def classify_by_status(reply: Reply, message: str = "") -> ProviderError:
    """The typed error that the status alone implies: the default of every ``Classify``."""
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
