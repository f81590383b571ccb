"""Posts webhooks to public HTTPS servers and allowed inner networks alone: no redirect, one DNS look-up."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.webhook import SendOutcome
from broker.redaction import origin_of, redacted
from broker.unseen import find_unseen

TIMEOUT_S = 10.0
LONGEST_URL = 2000
EXPECTED = "an https:// address of a public server"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class _Place:
    """The target of a URL. The connection goes to the IP address that was checked."""

    scheme: str
    host: str
    port: int
    address: Address
    rest: str

    @property
    def pinned(self) -> str:
        """The URL with the IP address in place of the name."""
        literal = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{self.scheme}://{literal}:{self.port}{self.rest}"

    @property
    def host_header(self) -> str:
        """The value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"https": 443, "http": 80}[self.scheme]
        return name if self.port == usual else f"{name}:{self.port}"


class HttpWebhookSender:
    """Implements the port ``WebhookSender``.

    ``allow_loopback``: this machine is allowed too, and ``networks``: addresses in these, both over HTTP too.
    """

    def __init__(self, *, allow_loopback: bool = False, networks: Sequence[Network] = ()) -> None:
        self._allow_loopback = allow_loopback
        self._networks = tuple(networks)

    async def require_allowed(self, url: str) -> None:
        """Raises InputError if the URL does not name a public HTTPS server."""
        await self._place(url)

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        """Posts, unless the URL is no longer allowed; the body of the answer is not read."""
        try:
            place = await self._place(url)
            async with (
                httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
                client.stream(
                    "POST",
                    place.pinned,
                    headers={**headers, "host": place.host_header, "user-agent": "gpu-capacity-broker"},
                    content=body.encode(),
                    extensions={"sni_hostname": place.host},
                ) as answer,
            ):
                status = answer.status_code
                return SendOutcome(status, "" if answer.is_success else f"HTTP {status}")
        except InputError as error:
            return SendOutcome(None, str(error))
        except httpx.InvalidURL:
            return SendOutcome(None, f"httpx refuses the address at {origin_of(url)}")
        except httpx.HTTPError as error:
            return SendOutcome(None, redacted(str(error)) or type(error).__name__)

    async def _place(self, url: str) -> _Place:
        if len(url) > LONGEST_URL:
            raise _refused(f"{len(url)} characters", f"at most {LONGEST_URL}")
        if any(character.isspace() for character in url) or find_unseen(url) is not None:
            raise _refused("an address with a space, a line break or an invisible character", EXPECTED)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _refused(repr(origin_of(url)), EXPECTED) from None
        if parts.scheme not in ("https", "http") or not host or parts.username is not None:
            raise _refused(repr(origin_of(url)), EXPECTED)
        if parts.scheme == "http" and not (self._allow_loopback or self._networks):
            raise _refused(
                repr(origin_of(url)), f"{EXPECTED}: over http:// anybody on the way could read events"
            )
        port = port or (443 if parts.scheme == "https" else 80)
        address = await self._allowed_address(host, port, parts.scheme)
        rest = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _Place(parts.scheme, host, port, address, rest)

    async def _allowed_address(self, host: str, port: int, scheme: str) -> Address:
        """One IP address of ``host``. Every address of it must be allowed, or none is used."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise _refused(repr(host), "a host that has an address") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        for address in addresses:
            inner = getattr(address, "ipv4_mapped", None) or address
            is_inner = self._allow_loopback and inner.is_loopback
            is_inner = is_inner or any(inner in network for network in self._networks)
            if not is_inner and (scheme != "https" or not _is_public(inner)):
                raise _refused(f"{host!r} at {address} by {scheme}", EXPECTED)
        return addresses[0]


def _is_public(address: Address) -> bool:
    """Whether an address is on the public internet; an address that embeds another one is not."""
    wrapped = isinstance(address, ipaddress.IPv6Address) and bool(address.sixtofour or address.teredo)
    nat64 = address in ipaddress.ip_network("64:ff9b::/96") if address.version == 6 else False
    return address.is_global and not address.is_multicast and not wrapped and not nat64


def _refused(found: str, expected: str) -> InputError:
    return InputError("webhook", (FieldProblem("/url", found, expected),))
