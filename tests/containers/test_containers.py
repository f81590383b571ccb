"""Dockerfile, compose file and dashboard are parsed: there is no container engine here to run them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import REGISTRY

import api.cli.installation.connections
import api.cli.installation.listening
import api.http.middleware
import api.jobs.cluster_node
import api.jobs.scheduler
import api.routes.operations
from api.cli.installation import sandbox
from broker.settings import Settings
from tests.peers_env import run

SERVER_GIB = 1.0
ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "config/grafana/dashboards/broker.json"
DECLARED_BY = (
    api.cli.installation.connections,
    api.cli.installation.listening,
    api.http.middleware,
    api.jobs.cluster_node,
    api.jobs.scheduler,
    api.routes.operations,
)


def instructions() -> list[tuple[str, str]]:
    """Keyword and rest of each instruction of the Dockerfile, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def test_the_image_is_slim_runs_without_root_and_tells_its_health() -> None:
    stage = dict(final_stage())
    assert "slim" in stage["FROM"]
    assert stage["USER"] not in {"root", "0"}
    assert "/healthz" in stage["HEALTHCHECK"]
    assert json.loads(stage["ENTRYPOINT"]) == ["broker"]
    assert json.loads(stage["CMD"]) == ["serve"]


def test_what_is_copied_exists_and_is_what_is_packaged() -> None:
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    assert {"api", "broker", "config", "fixtures", "optimizer", "providers"} <= copied


@pytest.mark.parametrize("name", ["broker-1", "broker-2"])
def test_brokers_have_a_read_only_root_and_known_settings(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["depends_on"]["db"] == {"condition": "service_healthy"}
    known = {f"BROKER_{field.upper()}" for field in Settings.model_fields}
    assert set(service["environment"]) <= known
    written = {volume.partition(":")[2] for volume in service["volumes"]} | set(service["tmpfs"])
    assert written == {"/data", "/tmp"}


@pytest.mark.parametrize("name", ["broker-1", "broker-2"])
def test_the_planning_processes_of_a_broker_fit_its_memory(name: str) -> None:
    service = compose()["services"][name]
    fields = {word: field.default for word, field in Settings.model_fields.items()}
    fields |= {word.removeprefix("BROKER_").lower(): value for word, value in service["environment"].items()}
    needed = int(fields["planner_processes"]) * float(fields["planner_memory_gib"]) + SERVER_GIB
    assert float(service["mem_limit"].removesuffix("g")) >= needed


def test_services_mount_what_exists_and_share_no_port() -> None:
    document = compose()
    assert {"db", "sandbox", "broker-1", "broker-2", "prometheus", "grafana"} == set(document["services"])
    ports = [port for one in document["services"].values() for port in one.get("ports", [])]
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for one in document["services"].values():
        for volume in one.get("volumes", []):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (ROOT / source).exists(), volume


def test_prometheus_asks_both_brokers() -> None:
    config = yaml.safe_load((ROOT / "config/prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    targets = [target for each in job["static_configs"] for target in each["targets"]]
    brokers = [name for name in compose()["services"] if name.startswith("broker-")]
    assert targets == [f"{name}:8080" for name in brokers]


def test_a_first_start_asks_the_sandbox_and_a_file_of_sellers_takes_its_place() -> None:
    services = compose()["services"]
    found = re.fullmatch(r"\$\{SELLERS:-(.*)\}", services["broker-1"]["env_file"][0])
    assert found is not None
    lines = (ROOT / found[1]).read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["BROKER_SANDBOX_URL=http://sandbox:8090"]
    context = typer.main.get_command(sandbox.app).make_context("sandbox", services["sandbox"]["command"][1:])
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 8090)
    assert "ports" not in services["sandbox"], "nobody outside reaches a market that asks for no key"


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "config/prometheus-alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_prometheus_reads_the_alerts() -> None:
    (rules,) = yaml.safe_load((ROOT / "config/prometheus.yaml").read_text())["rule_files"]
    mounted = [volume.split(":") for volume in compose()["services"]["prometheus"]["volumes"]]
    assert ["./config/prometheus-alerts.yaml", f"/etc/prometheus/{rules}", "ro"] in mounted
    assert len({rule["alert"] for rule in alerts()}) == len(alerts()) >= 6
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
        kept += ["instance"] if "up{" in rule["expr"] else []
        assert named <= {label for group in kept for label in group.split(", ")}, rule["alert"]


@pytest.mark.xdist_group("peers")
def test_kubernetes_own_schemas_take_the_manifests(tmp_path: Path) -> None:
    file = ROOT / "config/kubernetes.yaml"
    (tmp_path / file.name).write_text(file.read_text())
    found = run("kubernetes", "accept_kubernetes.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert found == {file.name: ["Deployment", "Service", "PodDisruptionBudget"]}
    (tmp_path / file.name).write_text(file.read_text().replace("replicas: 2", "replicas: two"))
    found = run("kubernetes", "accept_kubernetes.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert "two" in found[file.name][0]


def test_the_pods_are_those_of_the_image_and_fit_its_settings() -> None:
    deployment, service, _ = yaml.safe_load_all((ROOT / "config/kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    stage = dict(final_stage())
    assert str(pod["securityContext"]["runAsUser"]) == stage["USER"]
    assert str(container["ports"][0]["containerPort"]) == stage["EXPOSE"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    fields = {word: field.default for word, field in Settings.model_fields.items()}
    needed = fields["planner_processes"] * fields["planner_memory_gib"] + SERVER_GIB
    assert float(container["resources"]["limits"]["memory"].removesuffix("Gi")) >= needed
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert probes == ["/healthz", "/healthz", "/readyz"]


def test_dashboard_and_alerts_name_metrics_and_labels_that_exist() -> None:
    assert DECLARED_BY
    samples = {name for names in REGISTRY._collector_to_names.values() for name in names}
    labels = {label for one in REGISTRY._collector_to_names for label in getattr(one, "_labelnames", ())}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [rule["expr"] for rule in alerts()]
    assert queries
    named = {name for query in queries for name in re.findall(r"\bbroker_\w+", query)}
    assert named <= samples
    # Prometheus renames our label `job`, as it has one of its own.
    grouped = {
        name
        for query in queries
        for group in re.findall(r"by \(([^)]*)\)", query)
        for name in group.split(", ")
    }
    assert grouped - {"le", "exported_job", "instance"} <= labels
    assert "job" in labels
