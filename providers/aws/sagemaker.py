"""The thin client of SageMaker's API: JSON 1.1, the operation in a header, signed for ``sagemaker``.

Times on the wire are seconds since 1970 (whole or decimal).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from broker.domain.basics.errors import PayloadUnreadable
from providers.aws.ec2 import REAL_ROOT, utc_now
from providers.aws.query import PROVIDER
from providers.aws.signing import AwsKeys, Scope, signed_headers
from providers.http import Operation, ProviderHttp
from providers.payload import RowRejected

SERVICE = "sagemaker"
CONTENT_TYPE = "application/x-amz-json-1.1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SECONDS = Decimal(10) ** 11


class SageMaker:
    """SageMaker in any region. ``now`` dates the signatures."""

    def __init__(
        self, http: ProviderHttp, base_url: str, keys: AwsKeys, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._http, self._base_url, self._keys, self._now = http, base_url, keys, now

    async def call(
        self,
        region: str,
        action: str,
        wish: Mapping[str, Any],
        operation: Operation,
        *,
        repeatable: bool = True,
        rows: str | None = None,
    ) -> Mapping[str, Any]:
        """The answer of one call.

        An order (``repeatable`` False) is sent at most once. ``rows``: the list that the answer must hold,
        otherwise it is unreadable.
        """
        url, body = self._url(region), json.dumps(wish).encode()
        headers = {"content-type": CONTENT_TYPE, "x-amz-target": f"SageMaker.{action}"}
        signed = signed_headers("POST", url, headers, body, self._keys, Scope(region, SERVICE), self._now())
        reply = await self._http.request(
            "POST", url, operation=operation, repeatable=repeatable, content=body, headers=signed
        )
        answer = reply.json()
        if not isinstance(answer, dict):
            raise reply.unreadable(f"{action} answered with something else than an object")
        if rows is not None and not isinstance(answer.get(rows), list):
            raise reply.unreadable(f"{action} answered without a list {rows}")
        return answer

    def _url(self, region: str) -> str:
        if self._base_url == REAL_ROOT:
            return f"https://api.sagemaker.{region}.amazonaws.com/"
        return f"{self._base_url}/"


def seconds_of(at: datetime) -> int:
    """An instant in the wire format."""
    return int(at.timestamp())


def instant_of(value: object, name: str) -> datetime:
    """An instant of an answer in UTC; RowRejected when it is none."""
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or abs(seconds := Decimal(str(value))) > _MOST_SECONDS:
        raise RowRejected(f"{name} is not a time in seconds: {str(value)[:40]!r}")
    return _EPOCH + timedelta(microseconds=int(seconds * 1_000_000))


def rows_of(answer: Mapping[str, Any], name: str) -> Iterator[Any]:
    """The rows of a list; PayloadUnreadable when the answer has no list of that name."""
    rows = answer.get(name)
    if not isinstance(rows, list):
        raise PayloadUnreadable(PROVIDER, f"{name} is not a list")
    return iter(rows)
