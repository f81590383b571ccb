"""Asks machines whether they can be reached: their SSH server, and the health path of what they serve."""

from __future__ import annotations

import asyncio

import asyncssh
import httpx

from broker.domain.basics.machines import Access

PATIENCE_S = 5.0
_SILENT = (OSError, TimeoutError, asyncssh.Error)


class MachineProbe:
    """Asks over the network of this process. ``patience_s``: how long an answer may take."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s

    async def host_key(self, access: Access) -> str | None:
        """The public key, as ``kind base64``, that the machine's SSH server shows; None without an answer."""
        try:
            async with asyncio.timeout(self._patience_s):
                key = await asyncssh.get_server_host_key(access.host, access.port, config=None)
        except _SILENT:
            return None
        return None if key is None else " ".join(key.export_public_key().decode().split()[:2])

    async def is_healthy(self, url: str) -> bool | None:
        """Whether ``url`` answers with a status of success; None if it does not answer in time."""
        try:
            async with httpx.AsyncClient(timeout=self._patience_s, trust_env=False) as http:
                return (await http.get(url)).is_success
        except httpx.TimeoutException:
            return None
        except httpx.HTTPError:
            return False
