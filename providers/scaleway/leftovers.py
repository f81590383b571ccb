"""Block volumes that outlive their servers: marked before a termination, deleted once they are detached."""

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
    """The volumes that carry ``tag``, which nobody but a release gives."""

    def __init__(self, http: ProviderHttp, tag: str) -> None:
        self._http = http
        self._tag = tag

    async def mark(self, zone: str, volume_ids: Iterable[str]) -> None:
        """Tags volumes as to be deleted; a failure is logged, since storage costs less than a server kept."""
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
        """Deletes what is marked and detached by now; what fails is logged, and tried again next time."""
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
        """Deletes what ``path`` names; what is gone is a success."""
        try:
            await self._http.request("DELETE", path, operation=Operation.RELEASE, repeatable=True)
        except LeaseNotFound:
            return
