"""RunPod: container pods of the secure cloud, on demand and interruptible.

Sold: pods of 1, 2, 4 or 8 GPUs by the second. On the wire: USD per hour and *GPU*, as JSON numbers; the
node's price is that times the GPUs. The id of a GPU type lies about the form factor ("NVIDIA H100 80GB
HBM3" is SXM), so its display name is read. REST v2 gives a stock level per data centre and for one GPU
count a call; interruptible pods are in GraphQL alone, whose catalogue is open to all and names no data
centre (region ``any``). Neither answer says how many GPUs it was asked for: a recorded file carries that
in its name (``…count8.json``), else only the price is known for more than one GPU.
Not said: the link between GPUs, the network between pods (no fabric), the host, memory of the pod.
The community cloud is left out. An exited pod keeps its disk and is billed for it until it is deleted.

A pod opens to the keys in its variable ``PUBLIC_KEY``, which takes the place of the account's keys; images
must run an SSH server themselves, as RunPod's own do. A start script comes as a variable, too, and the
container's arguments run it beside ``/start.sh``, what RunPod's own images start with. An order that names an
image has its command as the arguments, and its variables. Port 22 is mapped to another one.

Hosts whose driver is older than the image's CUDA cannot run it: the version in the image's name
(``…cuda12.8.1…``) is the least that is asked for, in orders and in what is on sale.

Environment: ``BROKER_RUNPOD_API_KEY``; ``BROKER_RUNPOD_IMAGE``, ``BROKER_RUNPOD_DISK_GB``.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.runpod.adapter import RunPod
from providers.runpod.offers import NAME, ROWS, parse
from providers.spec import HOLDING, Capability, ProviderSpec

__all__ = ["SPEC"]

BASE_URL = "https://api.runpod.io"

SPEC = ProviderSpec(
    name=NAME,
    title="RunPod",
    base_url=BASE_URL,
    credentials={"api_key": "an API key with read and write access to pods"},
    options={"image": "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04", "disk_gb": "50"},
    capabilities=HOLDING | {Capability.SPOT, Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=RunPod,
    build=RunPod,
    parse=parse,
    rows=ROWS,
    keyless=True,
)
