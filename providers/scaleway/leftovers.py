"""Block volumes that outlive their servers: tagged before a termination, deleted once they are detached."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from broker.domain.basics.errors import LeaseNotFound, ProviderError
from providers.http import Operation, ProviderHttp
from providers.payload import Name, PayloadModel
from providers.scaleway.offers import NAME

log = structlog.get_logger(__name__)

MOST_VOLUMES = 100


class _Volume(PayloadModel):
    id: Name
    status: str = ""
    tags: tuple[str, ...] = ()


class _Volumes(PayloadModel):
    volumes: tuple[_Volume, ...]


class Leftovers:
    """The volumes that carry ``tag``, which only a release sets."""

    def __init__(self, http: ProviderHttp, tag: str) -> None:
        self._http = http
        self._tag = tag

    async def mark(self, zone: str, volume_ids: Iterable[str]) -> None:
        """Tags volumes for deletion.

        A failure is logged and ignored, because storage costs less than the server.
        """
        for volume_id in volume_ids:
            path = f"/block/v1/zones/{zone}/volumes/{volume_id}"
            try:
                await self._http.request(
                    "PATCH",
                    path,
                    operation=Operation.RELEASE,
                    repeatable=True,
                    json={"tags": [self._tag]},
                )
            except ProviderError as error:
                log.warning("block_volume_left", provider=NAME, zone=zone, volume=volume_id, error=str(error))

    async def sweep(self, zone: str) -> None:
        """Deletes tagged volumes that are detached; a failure is logged, and the next call tries again."""
        path = f"/block/v1/zones/{zone}/volumes"
        params = {"tags": self._tag, "include_deleted": "false", "page_size": str(MOST_VOLUMES)}
        try:
            reply = await self._http.request("GET", path, operation=Operation.LEASES, params=params)
            for volume in reply.read(_Volumes).volumes:
                if volume.status == "available" and self._tag in volume.tags:
                    await self.remove(f"{path}/{volume.id}")
        except ProviderError as error:
            log.warning("block_volumes_not_swept", provider=NAME, zone=zone, error=str(error))

    async def remove(self, path: str) -> None:
        """Deletes the resource at ``path``; one that is already gone counts as success."""
        try:
            await self._http.request("DELETE", path, operation=Operation.RELEASE, repeatable=True)
        except LeaseNotFound:
            return
