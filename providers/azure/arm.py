"""Azure Resource Manager: tokens, calls within one resource group, pagination, and the meaning of its
errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
)
from providers.azure.windows import PROVIDER
from providers.http import Operation, ProviderHttp, Reply, classify_by_status
from providers.payload import PayloadModel, as_dict, as_list

API_VERSION = "2026-04-01"
"""API version of Microsoft.Compute: the first one with Future reservations (Block: 2025-04-01)."""
DEPLOYMENTS_VERSION = "2025-04-01"
"""API version of Microsoft.Resources."""
SCOPE = "https://management.azure.com/.default"
TOKEN_MARGIN_S = 300.0
MOST_PAGES = 200
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}

_ERRORS: Mapping[str, type[ProviderError]] = {
    "AllocationFailed": InsufficientCapacity,
    "ZonalAllocationFailed": InsufficientCapacity,
    "OverconstrainedAllocationRequest": InsufficientCapacity,
    "OverconstrainedZonalAllocationRequest": InsufficientCapacity,
    "SkuNotAvailable": InsufficientCapacity,
    "QuotaExceeded": QuotaExceeded,
    "AuthenticationFailed": CredentialsRejected,
    "AuthorizationFailed": CredentialsRejected,
    "ExpiredAuthenticationToken": CredentialsRejected,
    "InvalidAuthenticationToken": CredentialsRejected,
    "InvalidAuthenticationTokenTenant": CredentialsRejected,
    "LinkedAuthorizationFailed": CredentialsRejected,
    "ResourceGroupNotFound": CredentialsRejected,
    "SubscriptionNotFound": CredentialsRejected,
    "invalid_client": CredentialsRejected,
    "invalid_request": CredentialsRejected,
    "unauthorized_client": CredentialsRejected,
    "InternalServerError": ProviderUnavailable,
    "ServerTimeout": ProviderUnavailable,
}
_GONE = frozenset({"NotFound", "ParentResourceNotFound", "ResourceNotFound"})


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer: codes in the body take precedence over the status.

    Quota errors are ``OperationNotAllowed`` and only recognizable by their text.
    """
    codes = tuple(_codes(reply.json_or_none()))
    if reply.status == 429 or not codes:
        return classify_by_status(reply)
    for code, message in codes:
        text = f"{code}: {message}"
        if code == "OperationNotAllowed" and "quota" in message.lower():
            return QuotaExceeded(PROVIDER, text)
        if code in _ERRORS:
            return _ERRORS[code](PROVIDER, text)
        if code in _GONE:
            is_order = reply.operation is Operation.ORDER
            return OrderRejected(PROVIDER, text) if is_order else LeaseNotFound(PROVIDER, text)
    return classify_by_status(reply, ": ".join(codes[0]))


def _codes(body: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Codes with their messages, the innermost ``details`` first, for deployments wrap what happened.

    Three forms: ``{"error": {code, message, details}}``, the price list's ``{"Error": {Code, Message}}``
    and the login's ``{"error": code, "error_description": message}``.
    """
    if not isinstance(body, dict) or depth > 3:
        return
    error = body.get("error", body.get("Error", body if depth else None))
    if isinstance(error, str):
        yield error, str(body.get("error_description", ""))[:300]
        return
    if not isinstance(error, dict):
        return
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        yield from _codes(detail, depth + 1)
    code = error.get("code", error.get("Code"))
    if isinstance(code, str):
        yield code, str(error.get("message", error.get("Message", "")))[:300]


class _Token(PayloadModel):
    access_token: str | None = None
    expires_in: float = 0.0


class Arm:
    """Calls below ``…/resourceGroups/{group}/providers/Microsoft.Compute``, with a token of the client."""

    def __init__(
        self, http: ProviderHttp, login_url: str, credentials: Mapping[str, str], group: str
    ) -> None:
        self._http, self._login_url, self._credentials = http, login_url, credentials
        self._root = (
            f"/subscriptions/{credentials['subscription_id']}/resourceGroups/{group}"
            "/providers/Microsoft.Compute/"
        )
        self._token = ""
        self._token_until_s = 0.0
        self._token_lock = asyncio.Lock()

    def id_of(self, path: str) -> str:
        """The full resource id of ``path``; a path that begins with a slash is one already."""
        return path if path.startswith("/") else f"{self._root}{path}"

    @property
    def network_root(self) -> str:
        """The id of the resource group's Microsoft.Network provider, with a slash."""
        return self._root.replace("/Microsoft.Compute/", "/Microsoft.Network/")

    @property
    def sizes_path(self) -> str:
        """The path of the list of the subscription's sizes."""
        return f"/subscriptions/{self._credentials['subscription_id']}/providers/Microsoft.Compute/skus"

    def validation_path(self, name: str) -> str:
        """The path that validates a template, under the name of a deployment that is never created."""
        return self._root.replace("/Microsoft.Compute/", f"/Microsoft.Resources/deployments/{name}/validate")

    async def sign_in(self) -> None:
        """Fetches a token if there is none; CredentialsRejected when the login is refused."""
        await self._fresh_token(renew=False)

    async def call(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        repeatable: bool | None = None,
        json: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends one call; if its token was refused, fetches a new one and tries once more."""
        for renew in (False, True):
            token = await self._fresh_token(renew=renew)
            try:
                return await self._http.request(
                    method,
                    self.id_of(path),
                    operation=operation,
                    repeatable=repeatable,
                    params={"api-version": API_VERSION, **(query or {})},
                    json=json,
                    headers={"Authorization": f"Bearer {token}"},
                )
            except CredentialsRejected:
                if renew:
                    raise
        raise CredentialsRejected(PROVIDER, "no token was accepted")

    async def rows(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        operation: Operation = Operation.LEASES,
    ) -> AsyncIterator[tuple[Any, Reply]]:
        """Every row of a paginated list, each with the answer that contained it."""
        query = query or {}
        links: set[str] = set()
        while len(links) < MOST_PAGES:
            reply = await self.call("GET", path, operation, query=query)
            with reply.being_read():
                page = as_dict(PROVIDER, reply.json(), "the answer")
                rows = as_list(PROVIDER, page.get("value"), "value")
            for row in rows:
                yield row, reply
            link = page.get("nextLink")
            if not isinstance(link, str) or not link:
                return
            if link in links:
                raise PayloadUnreadable(PROVIDER, "the list repeats a page")
            links.add(link)
            query = query_of(link)
        raise PayloadUnreadable(PROVIDER, f"the list has more than {MOST_PAGES} pages")

    async def _fresh_token(self, *, renew: bool) -> str:
        async with self._token_lock:
            if renew or time.monotonic() >= self._token_until_s:
                await self._fetch_token()
            return self._token

    async def _fetch_token(self) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._credentials["client_id"],
            "client_secret": self._credentials["client_secret"],
            "scope": SCOPE,
        }
        reply = await self._http.request(
            "POST",
            f"{self._login_url}/{self._credentials['tenant_id']}/oauth2/v2.0/token",
            operation=Operation.TOKEN,
            repeatable=True,
            content=urlencode(form).encode(),
            headers=_FORM,
        )
        token = reply.read(_Token)
        if not token.access_token:
            raise reply.unreadable("a token answer without a token")
        self._http.add_secret(token.access_token)
        self._token = token.access_token
        self._token_until_s = time.monotonic() + max(0.0, token.expires_in - TOKEN_MARGIN_S)


def query_of(link: str) -> dict[str, str]:
    """The query of a next link; its host is ignored. PayloadUnreadable when it has none."""
    try:
        found = dict(parse_qsl(urlsplit(link).query, keep_blank_values=True))
    except ValueError:
        found = {}
    if not found:
        raise PayloadUnreadable(PROVIDER, "the next link has no parameters")
    return found
