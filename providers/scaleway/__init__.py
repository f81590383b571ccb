"""Scaleway: virtual GPU Instances, on demand, zone by zone.

Sold: commercial types by zone. On the wire: *euros* per Instance and hour (turned into dollars by the
table of exchange rates, the euros are kept), memory in bytes, GPU memory in bytes of one card (2³⁰), the
form factor as a part of the GPU's word. Types are an object by name, not a list; their stock is a second
call of three words: available, scarce, shortage (none). Pages are counted by the header
``X-Total-Count``.

An order is two calls: a server is created stopped, then powered on. When the second is refused, the first
is undone. When the answer to the first is lost, the server is looked up by its name and powered on, and
the outcome stays open until it is listed. A broker that dies between the two calls leaves a stopped
server: after five minutes it counts as failed, so that the order is made again, and the list that finds it
so deletes it with its volumes, if it bears our mark (its name as a tag) and never ran.

A termination deletes local volumes and only detaches block volumes, which would be billed as storage for
ever: they are tagged ``broker-ended`` first, and every list of leases deletes those that are detached by
then. Where tagging fails the server is terminated all the same and the volume named in a warning.

Public keys are tags of a server (``AUTHORIZED_KEY=``, with underscores for spaces), as Scaleway's own Packer
plugin sets them; the keys of the project open every server too. A start script is written as the server's
user data between its creation and its start.

The root volume is a block volume of the order's size, billed beside the Instance.

Not said: counts of stock, links, any network between Instances (no fabric), local disks. Billing by the
minute and the price of volumes are not in this API. Not verified against the live API: the bodies of 401
and 429, what refuses a release while a server starts, and that tags of an attached volume can be changed.

Environment: ``BROKER_SCALEWAY_SECRET_KEY``; ``BROKER_SCALEWAY_PROJECT_ID``, ``BROKER_SCALEWAY_IMAGE``,
``BROKER_SCALEWAY_ZONES`` (comma separated; default: four zones where GPUs are usual).
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.scaleway.adapter import Scaleway
from providers.scaleway.offers import NAME, ROWS, parse
from providers.spec import HOLDING, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://api.scaleway.com"

SPEC = ProviderSpec(
    name=NAME,
    title="Scaleway",
    base_url=BASE_URL,
    credentials={"secret_key": "secret key of an API key"},
    options={
        "project_id": "",
        "image": "ubuntu_jammy_gpu_os_12",
        "zones": "fr-par-1,fr-par-2,nl-ams-1,pl-waw-2",
    },
    capabilities=HOLDING,
    idempotency=Idempotency.TAG,
    adapter=Scaleway,
    build=Scaleway,
    parse=parse,
    rows=ROWS,
)
