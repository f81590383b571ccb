"""OVHcloud Public Cloud: GPU instances by the hour.

Sold: flavors by region, on demand. On the wire: the public catalogue has prices as integers of a
hundred-millionth of the subsidiary's currency per instance and hour (EUR for most; turned into dollars at
the dated rate of ``config/exchange_rates.csv``), with GPU model and number as text and memory in GB; the
project's flavors say in which region each is and whether it is ``available``. One price holds in all
regions of a subsidiary. The catalogue needs no key; without one there are prices and no places (region
``any``, not orderable). Addons that are no instances (storage, network, licences) are not read; plans by
the month and with Windows are rejected.

Not said: how many are in stock, the GPU's form, any network between instances, spot. An order is taken and
may turn to ``ERROR`` afterwards. Unverified: whether ``gpu.memory.size`` is of one GPU or of all (either is
accepted where it fits the card), the words of refusals for quota and capacity, that names are kept up to 63
characters, that the user of an image is named as its first word. Calls are signed with this machine's clock,
which must be right.

Environment: ``BROKER_OVH_APPLICATION_KEY``, ``BROKER_OVH_APPLICATION_SECRET``,
``BROKER_OVH_CONSUMER_KEY``, ``BROKER_OVH_PROJECT_ID``; ``BROKER_OVH_SUBSIDIARY`` (``FR``: whose
catalogue), ``BROKER_OVH_IMAGE`` (name of an image), ``BROKER_OVH_SSH_KEY_ID`` (for orders without a key of
their own); ``BROKER_OVH_BASE_URL`` for Canada and the United States.
"""

from __future__ import annotations

from broker.domain.holding.reservation import Idempotency
from providers.ovh.adapter import Ovh
from providers.ovh.offers import NAME, ROWS, parse
from providers.spec import HOLDING, ProviderSpec

__all__ = ["SPEC"]

SPEC = ProviderSpec(
    name=NAME,
    title="OVHcloud",
    base_url="https://eu.api.ovh.com",
    credentials={
        "application_key": "an application's key",
        "application_secret": "its secret",
        "consumer_key": "a consumer key of it with rights on the project",
        "project_id": "the Public Cloud project",
    },
    options={"subsidiary": "FR", "image": "Ubuntu 22.04", "ssh_key_id": ""},
    capabilities=HOLDING,
    idempotency=Idempotency.TAG,
    adapter=Ovh,
    build=Ovh,
    parse=parse,
    rows=ROWS,
    keyless=True,
)
