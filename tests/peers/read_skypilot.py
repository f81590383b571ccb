"""Prints what SkyPilot reads of its catalogue: CLOUD ... after an optional http:// address of a host of it.

Without an address the files are those that lie in its cache (``SKY_RUNTIME_DIR``). Of each cloud: every row
as its reader holds it, its own list of GPUs by type and region, and of Google what its price functions say of
machines with their GPUs.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from sky.skylet import constants


def plain(value: Any) -> Any:
    return None if pd.isna(value) else value.item() if hasattr(value, "item") else value


def rows(frame: Any) -> list[dict[str, Any]]:
    names = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
    columns = [name for name in (*names, "AvailabilityZone") if name in frame.columns]
    return [dict(zip(columns, map(plain, row), strict=True)) for row in frame[columns].to_numpy(dtype=object)]


def listed(common: Any, cloud: str, frame: Any) -> list[list[Any]]:
    found = common.list_accelerators_impl(cloud, frame, True, None, None, None, True, all_regions=True)
    return [
        [plain(one.instance_type), gpu, *map(plain, (one.accelerator_count, one.device_memory)), one.region]
        for gpu, infos in found.items()
        for one in infos
    ]


def google(frame: Any) -> Iterator[list[Any]]:
    """Type, zone, GPU, count, and the sum of machine and GPUs on demand and spot."""
    from sky.catalog import gcp_catalog as gcp  # it fetches when imported

    machines = frame[frame["InstanceType"].notna()]
    for kind, region, zone in machines[["InstanceType", "Region", "AvailabilityZone"]].to_numpy():
        found = gcp.get_accelerators_from_instance_type(kind)
        for gpu, count in (found or {}).items():
            sums = []
            for spot in (False, True):
                try:
                    machine = gcp.get_hourly_cost(kind, spot, region, zone)
                    cards = gcp.get_accelerator_hourly_cost(gpu, count, spot, region, zone)
                    sums.append(plain(machine + cards))
                except (ValueError, AssertionError):
                    sums.append(None)
            yield [kind, region, zone, gpu, count, *sums]


def main(arguments: list[str]) -> None:
    host, clouds = (arguments[0], arguments[1:]) if arguments[0].startswith("http") else (None, arguments)
    if host:
        constants.HOSTED_CATALOG_DIR_URL = f"{host}/skypilot-org/skypilot-catalog/master/catalogs"
        constants.HOSTED_CATALOG_DIR_URL_S3_MIRROR = f"{host}/catalogs"
    from sky.catalog import common  # after the address is set

    found: dict[str, Any] = {}
    for cloud in clouds:
        lazy = common.read_catalog(f"{cloud}/vms.csv")
        frame = lazy[lazy.columns]
        found[cloud] = {"rows": rows(frame), "listed": listed(common, cloud, frame)}
        if cloud == "gcp":
            found[cloud]["sums"] = list(google(frame))
    print(json.dumps(found))


main(sys.argv[1:])
