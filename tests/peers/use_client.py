"""Drives a provider's own Python client against the sandbox and prints what it got: CLIENT ADDRESS CONTROL.

``ADDRESS`` is the provider's root in the sandbox, ``CONTROL`` the sandbox's own. Each client lists, orders,
looks, releases and meets an error; what comes out is what its own models hold.
"""

import base64
import importlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

TAG = "broker-by-client"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICApaeQoxoir3DDcvTFSsiNd0+6fKaZrTd1Hgr8r9n3M"
SCRIPT = "#!/bin/bash\ntrue\n"


class Bench:
    """The sandbox beside the client."""

    def __init__(self, address: str, control: str) -> None:
        self.address = address
        self._control = control

    def control(self, name: str, **body: Any) -> None:
        url = f"{self._control}/_sandbox/{name}"
        sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(sent, timeout=10).close()

    def wait(self, seconds: float) -> None:
        self.control("clock", advance_s=seconds)


def refusal(call: Callable[[], Any]) -> str:
    """What the client says when its call is refused; empty when it is not."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def verda(bench: Bench) -> dict[str, Any]:
    from verda import VerdaClient

    client = VerdaClient("id", "secret", base_url=f"{bench.address}/v1")
    types = {row.instance_type: row for row in client.instance_types.get()}
    free = {row["location_code"]: row["availabilities"] for row in client.instances.get_availabilities()}
    place, kind = next((place, kinds[0]) for place, kinds in free.items() if kinds)
    key = client.ssh_keys.create("laptop", PUBLIC_KEY)
    script = client.startup_scripts.create("setup", SCRIPT)
    stored = [[row.name, row.public_key] for row in client.ssh_keys.get()]
    stored += [[row.name, row.script] for row in client.startup_scripts.get()]
    asked: dict[str, Any] = {"image": "ubuntu-24.04", "description": "a test", "wait_for_status": None}
    asked |= {"ssh_key_ids": [key.id], "startup_script_id": script.id}
    made = client.instances.create(kind, hostname=TAG, location=place, **asked)
    early = refusal(lambda: client.instances.action(made.id, "delete"))
    bench.wait(600)
    running = client.instances.get_by_id(made.id)
    hardware = [running.gpu["number_of_gpus"], running.gpu_memory["size_in_gigabytes"]]
    client.instances.action(made.id, "delete", volume_ids=[running.os_volume_id], delete_permanently=True)
    again = refusal(lambda: client.instances.action(made.id, "delete"))
    bench.wait(600)
    client.ssh_keys.delete_by_id(key.id)
    client.startup_scripts.delete_by_id(script.id)
    return {
        "stored": stored,
        "named": [running.ssh_key_ids == [key.id], running.startup_script_id == script.id],
        "address": [made.ip, running.ip],
        "kept": len(client.ssh_keys.get()) + len(client.startup_scripts.get()),
        "types": {name: [row.price_per_hour, row.spot_price_per_hour] for name, row in types.items()},
        "ordered": [made.id, made.instance_type, made.hostname, made.location],
        "statuses": [made.status, running.status],
        "hardware": hardware,
        "refusals": [early, again],
        "left": [row.id for row in client.instances.get()],
    }


def runpod(bench: Bench) -> dict[str, Any]:
    os.environ["RUNPOD_API_BASE_URL"] = bench.address
    import runpod as client

    client.api_key = "any-key"
    gpus = {row["id"]: row for row in client.get_gpus()}
    kind = "NVIDIA L40S"
    detail = client.get_gpu(kind, 2)
    return {"gpus": len(gpus), "detail": detail, "refusals": [refusal(lambda: client.get_pods(api_key=" "))]}


def vast(bench: Bench) -> dict[str, Any]:
    from vastai import VastAI

    client = VastAI(api_key="any-key", server_url=bench.address, retry=1)
    found = client.search_offers(query="gpu_name=H100_SXM num_gpus>=2", order="dph_total", limit=50)
    asked = {"image": "vastai/base", "disk": 16}
    made = [client.create_instance(found[0]["id"], label=TAG, **asked)["new_contract"]]
    singles = client.search_offers(query="num_gpus=1", limit=30)
    more = [client.create_instance(row["id"], label=f"{TAG}-{row['id']}", **asked) for row in singles]
    made += [answer["new_contract"] for answer in more]
    bench.wait(600)
    mine = client.show_instances()
    seen = client.show_instance(made[0])
    taken = refusal(lambda: client.create_instance(found[0]["id"], **asked))
    for contract in made:
        client.destroy_instance(contract)
    return {
        "offers": [[row["gpu_name"], row["num_gpus"], row["dph_total"]] for row in found],
        "made": made,
        "mine": [[row["id"], row["label"], row["actual_status"]] for row in mine],
        "seen": [seen["id"], seen["label"], seen["dph_total"]],
        "refusals": [taken, refusal(lambda: client.destroy_instance(made[0]))],
        "left": client.show_instances(),
    }


def hyperstack(bench: Bench) -> dict[str, Any]:
    import hyperstack as api

    settings = api.Configuration(host=f"{bench.address}/v1", api_key={"apiKey": "any-key"})
    with api.ApiClient(settings) as client:
        prices = api.PricebookApi(client).get_pricebook()
        stocks = api.StockApi(client).get_gpu_stock().stocks
        groups = api.FlavorApi(client).list_flavors().data
        flavor = next(
            one for group in groups for one in group.flavors if one.stock_available and one.gpu_count
        )
        machines = api.VirtualMachineApi(client)
        wish = api.CreateInstancesPayload(
            name=TAG,
            environment_name=f"default-{flavor.region_name}",
            flavor_name=flavor.name,
            image_name="Ubuntu Server 22.04 LTS",
            key_name="broker",
            count=1,
            labels=[TAG],
        )
        (made,) = machines.create_vms(wish).instances
        bench.wait(600)
        seen = machines.get_vm(made.id).instance
        listed = machines.list_vms(page=1, page_size=5, search=TAG)
        machines.delete_vm(made.id)
        bench.wait(600)
        return {
            "prices": {row.name: row.value for row in prices},
            "models": sorted({model.model for stock in stocks for model in stock.models}),
            "flavor": [flavor.name, flavor.gpu, flavor.gpu_count, flavor.region_name],
            "ordered": [made.id, made.name],
            "statuses": [made.status, seen.status],
            "labels": seen.labels,
            "listed": [listed.count, [row.id for row in listed.instances]],
            "refusals": [
                refusal(lambda: machines.get_vm(made.id)),
                refusal(lambda: machines.create_vms(wish.model_copy(update={"flavor_name": "n9-none"}))),
            ],
            "left": machines.list_vms().count,
        }


def prime(bench: Bench) -> dict[str, Any]:
    os.environ["PRIME_API_BASE_URL"] = bench.address
    from prime_cli.api.availability import AvailabilityClient
    from prime_cli.api.pods import PodsClient
    from prime_cli.core import APIClient

    client = APIClient(api_key="any-key")
    market, pods = AvailabilityClient(client), PodsClient(client)
    found = [row for rows in market.get().values() for row in rows]
    row = next(
        one
        for one in found
        if one.stock_status not in {"Unavailable", "Low"}
        and one.gpu_type != "CPU_NODE"
        and not one.prepaid_time
    )
    wish = {
        "pod": {
            "name": TAG,
            "cloudId": row.cloud_id,
            "gpuType": row.gpu_type,
            "socket": row.socket,
            "gpuCount": row.gpu_count,
            "dataCenterId": row.data_center,
            "country": row.country,
            "security": row.security,
            "image": "ubuntu_22_cuda_12",
        },
        "provider": {"type": row.provider},
    }
    made = pods.create(wish)
    bench.wait(600)
    seen, listed = pods.get(made.id), pods.list()
    pods.delete(made.id)
    bench.wait(600)
    unknown = {"pod": {**wish["pod"], "cloudId": "nowhere"}, "provider": wish["provider"]}
    return {
        "offers": len(found),
        "fabrics": sorted({one.interconnect_type for one in found if one.interconnect_type}),
        "row": [row.gpu_type, row.gpu_count, row.prices.price],
        "ordered": [made.id, made.name, made.gpu_type, made.gpu_count, made.price_hr],
        "statuses": [made.status, seen.status],
        "listed": [listed.total_count, [one.id for one in listed.data]],
        "refusals": [refusal(lambda: pods.get(made.id)), refusal(lambda: pods.create(unknown))],
        "left": pods.list().total_count,
    }


def lambda_cloud(bench: Bench) -> dict[str, Any]:
    """Answers of its functions are bytes: its models read them."""
    import lambda_cloud_api_client as api
    from lambda_cloud_api_client import models
    from lambda_cloud_api_client.api import default

    client = api.AuthenticatedClient(base_url=f"{bench.address}/api/v1", token="any-key")

    def said(name: str, **more: Any) -> Any:
        call = importlib.import_module(f"{default.__name__}.{name}").sync_detailed
        return json.loads(call(client=client, **more).content)

    rows = said("instance_types")["data"].values()
    types = [models.InstanceType.from_dict(row["instance_type"]) for row in rows]
    places = [
        [models.Region.from_dict(one) for one in row["regions_with_capacity_available"]] for row in rows
    ]
    kind, free = next(
        (kind, free) for kind, free in zip(types, places, strict=True) if free and kind.specs.gpus
    )
    wish = {"instance_type_name": kind.name, "ssh_key_names": ["sandbox"], "name": TAG}
    body = models.LaunchInstanceBody(region_name=free[0].name, **wish)
    (made,) = said("launch_instance", body=body)["data"]["instance_ids"]
    first = models.Instance.from_dict(said("get_instance", id=made)["data"])
    bench.wait(900)
    listed = [models.Instance.from_dict(row) for row in said("list_instances")["data"]]
    gone = said("terminate_instance", body=models.TerminateInstanceBody(instance_ids=[made]))["data"]
    bench.wait(900)
    nowhere = models.LaunchInstanceBody(region_name="nowhere-1", **wish)
    refused = models.ErrorResponseBody.from_dict(said("launch_instance", body=nowhere)).error
    return {
        "types": {one.name: [one.price_cents_per_hour, one.specs.gpus, one.description] for one in types},
        "ordered": [made, kind.name, free[0].name],
        "first": [first.id, first.name, first.status.value],
        "listed": [[one.id, one.status.value, one.region.name, one.instance_type.name] for one in listed],
        "terminated": [models.Instance.from_dict(row).id for row in gone["terminated_instances"]],
        "refusals": [refused.code.value],
        "left": said("list_instances")["data"],
    }


def vultr(bench: Bench) -> dict[str, Any]:
    """Plans are read as plain JSON: the client takes only whole dollars for their costs of a month."""
    import vultr_python_client as api
    from vultr_python_client.apis.tags.instances_api import InstancesApi
    from vultr_python_client.apis.tags.plans_api import PlansApi
    from vultr_python_client.apis.tags.ssh_api import SshApi

    settings = api.Configuration(host=f"{bench.address}/v2")
    settings.access_token = "any-key"
    client = api.ApiClient(settings)
    listed = PlansApi(client).list_plans(query_params={"per_page": 500}, skip_deserialization=True)
    plans = json.loads(listed.response.data)["plans"]
    plan = next(row for row in plans if row["locations"] and row["type"] == "vcg")
    keys = SshApi(client)
    key = str(keys.create_ssh_key(body={"name": "laptop", "ssh_key": PUBLIC_KEY}).body["ssh_key"]["id"])
    stored = [[str(row["name"]), str(row["ssh_key"])] for row in keys.list_ssh_keys().body["ssh_keys"]]
    wish = {"region": plan["locations"][0], "plan": plan["id"], "os_id": 2284, "label": TAG}
    wish |= {"sshkey_id": [key], "user_data": base64.b64encode(SCRIPT.encode()).decode()}
    machines = InstancesApi(client)
    answer = machines.create_instance(body=wish)
    made = str(answer.body["instance"]["id"])
    one = {"path_params": {"instance-id": made}}
    rows = machines.list_instances().body["instances"]
    bench.wait(900)
    seen = machines.get_instance(**one).body["instance"]
    ended = machines.delete_instance(**one)
    bench.wait(900)
    keys.delete_ssh_key(path_params={"ssh-key-id": key})
    return {
        "stored": stored,
        "address": [str(rows[0]["main_ip"]), str(seen["main_ip"]), str(seen["internal_ip"])],
        "kept": len(keys.list_ssh_keys().body["ssh_keys"]),
        "plans": {row["id"]: row["hourly_cost"] for row in plans},
        "ordered": [made, plan["id"], plan["locations"][0]],
        "codes": [answer.response.status, ended.response.status],
        "listed": [[str(row["id"]), str(row["label"]), str(row["status"])] for row in rows],
        "seen": [str(seen["label"]), str(seen["status"])],
        "refusals": [
            refusal(lambda: machines.get_instance(**one)),
            refusal(lambda: machines.create_instance(body={**wish, "plan": "vcg-none"})),
        ],
        "left": len(machines.list_instances().body["instances"]),
    }


CLIENTS = {
    "hyperstack": hyperstack,
    "lambda": lambda_cloud,
    "prime": prime,
    "runpod": runpod,
    "vast": vast,
    "verda": verda,
    "vultr": vultr,
}


def main(client: str, address: str, control: str) -> None:
    started = time.monotonic()
    found = CLIENTS[client](Bench(address, control))
    print(json.dumps({**found, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:])
