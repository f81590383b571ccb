"""The thin client of the EC2 query API: signs, posts, and pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from broker.domain.basics.errors import PayloadUnreadable
from providers.aws.query import CONTENT_TYPE, PROVIDER, Node, Params, form_body, next_token, parse_answer
from providers.aws.signing import AwsKeys, Scope, signed_headers
from providers.http import Operation, ProviderHttp

REAL_ROOT = "https://amazonaws.com"
"""Stands for all of AWS's hosts; any other base URL replaces every one of them."""
_MOST_PAGES = 100


@dataclass(slots=True)
class CallBudget:
    """How many calls are left."""

    left: int

    def take(self) -> bool:
        """Takes one call; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def utc_now() -> datetime:
    """This machine's time; AWS refuses signatures that are some minutes off."""
    return datetime.now(UTC)


class Ec2:
    """EC2 in any region, over one connection pool. ``now`` dates the signatures."""

    def __init__(
        self, http: ProviderHttp, base_url: str, keys: AwsKeys, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._http, self._base_url, self._keys, self._now = http, base_url, keys, now

    async def call(
        self, region: str, action: str, params: Params, operation: Operation, *, repeatable: bool = True
    ) -> Node:
        """The answer of one call.

        An order (``repeatable`` False) is sent at most once.
        """
        url = self._url(region)
        body = form_body(action, params)
        headers = signed_headers(
            "POST", url, {"content-type": CONTENT_TYPE}, body, self._keys, Scope(region), self._now()
        )
        reply = await self._http.request(
            "POST", url, operation=operation, repeatable=repeatable, content=body, headers=headers
        )
        try:
            return parse_answer(reply.body, action)
        except PayloadUnreadable as error:
            raise reply.unreadable(str(error)) from error

    async def pages(
        self, region: str, action: str, params: Params, operation: Operation, budget: CallBudget | None = None
    ) -> tuple[tuple[Node, ...], bool]:
        """All pages of a read, and whether they are complete: False when the call budget ended first."""
        budget = budget or CallBudget(_MOST_PAGES)
        found: list[Node] = []
        token: str | None = None
        while budget.take():
            page_params = params if token is None else {**params, "NextToken": token}
            found.append(await self.call(region, action, page_params, operation))
            before, token = token, next_token(found[-1])
            if token is None:
                return tuple(found), True
            if token == before:
                raise PayloadUnreadable(PROVIDER, f"{action} in {region} repeats a page")
        return tuple(found), False

    async def every_page(
        self, region: str, action: str, params: Params, operation: Operation
    ) -> tuple[Node, ...]:
        """All pages of a read; PayloadUnreadable when the list does not end."""
        found, complete = await self.pages(region, action, params, operation)
        if not complete:
            raise PayloadUnreadable(PROVIDER, f"{action} in {region} does not end")
        return found

    def _url(self, region: str) -> str:
        if self._base_url == REAL_ROOT:
            return f"https://ec2.{region}.amazonaws.com/"
        return f"{self._base_url}/"
