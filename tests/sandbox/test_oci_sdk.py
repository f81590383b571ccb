"""The oci SDK as an independent client of the sandbox: it signs by its own code, parses by OCI's models."""

from datetime import datetime
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from providers.sandbox import SandboxHandle

oci = pytest.importorskip("oci")

REGION, DOMAIN = "us-chicago-1", "Uocm:US-CHICAGO-1-AD-1"
TENANCY, USER = "ocid1.tenancy.oc1..aaaa", "ocid1.user.oc1..bbbb"
SHAPE = "BM.GPU.H100.8"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()


def client(kind: Any, host: str, sandbox: SandboxHandle, key: rsa.RSAPrivateKey) -> Any:
    """A client of ``kind``."""
    config = {
        "tenancy": TENANCY,
        "user": USER,
        "fingerprint": "20:3b:97:13:55:1c:5b:0d:37:d3:50:4e:c5:3a:34:74",
        "key_content": pem(key),
        "region": REGION,
    }
    endpoint = f"{sandbox.url}/oci/{host}"
    return kind(config, service_endpoint=endpoint, retry_strategy=oci.retry.NoneRetryStrategy())


@pytest.fixture(scope="module")
def identity(sandbox: SandboxHandle, key: rsa.RSAPrivateKey) -> Any:
    return client(oci.identity.IdentityClient, f"identity.{REGION}.oci.oraclecloud.com", sandbox, key)


@pytest.fixture
def compute(sandbox: SandboxHandle, key: rsa.RSAPrivateKey) -> Any:
    return client(oci.core.ComputeClient, f"iaas.{REGION}.oraclecloud.com", sandbox, key)


@pytest.fixture(autouse=True)
def stock(sandbox: SandboxHandle) -> None:
    body = {"provider": "oci", "sku": SHAPE, "region": REGION, "stock": 5}
    httpx.post(f"{sandbox.url}/_sandbox/market", json=body).raise_for_status()


def advance(sandbox: SandboxHandle, seconds: float) -> None:
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": seconds}).raise_for_status()


def wish(name: str, count: int = 2) -> Any:
    models = oci.core.models
    config = models.InstanceReservationConfigDetails(instance_shape=SHAPE, reserved_count=count)
    return models.CreateComputeCapacityReservationDetails(
        compartment_id=TENANCY,
        availability_domain=DOMAIN,
        display_name=name,
        freeform_tags={"team": "research"},
        instance_reservation_configs=[config],
    )


def test_regions_and_domains(identity: Any) -> None:
    subscribed = identity.list_region_subscriptions(TENANCY).data
    assert {row.region_name for row in subscribed if row.status == "READY"} >= {REGION, "us-ashburn-1"}
    assert [domain.name for domain in identity.list_availability_domains(TENANCY).data] == [DOMAIN]


def test_a_report_counts_what_is_there(compute: Any) -> None:
    models = oci.core.models
    asked = [models.CreateCapacityReportShapeAvailabilityDetails(instance_shape=SHAPE)]
    details = models.CreateComputeCapacityReportDetails(
        compartment_id=TENANCY, availability_domain=DOMAIN, shape_availabilities=asked
    )
    report = compute.create_compute_capacity_report(details).data
    (line,) = report.shape_availabilities
    assert (line.instance_shape, line.availability_status, line.available_count) == (SHAPE, "AVAILABLE", 5)


def test_a_reservation_from_create_to_deleted(sandbox: SandboxHandle, compute: Any) -> None:
    made = compute.create_compute_capacity_reservation(wish("train-w1"), opc_retry_token="token-1").data
    assert (made.lifecycle_state, made.reserved_instance_count) == ("CREATING", 2)
    again = compute.create_compute_capacity_reservation(wish("train-w1"), opc_retry_token="token-1").data
    assert again.id == made.id

    advance(sandbox, 60)
    seen = compute.get_compute_capacity_reservation(made.id).data
    assert (seen.lifecycle_state, seen.display_name, seen.freeform_tags) == (
        "ACTIVE",
        "train-w1",
        {"team": "research"},
    )
    assert seen.instance_reservation_configs[0].instance_shape == SHAPE
    assert isinstance(seen.time_created, datetime)
    listed = compute.list_compute_capacity_reservations(TENANCY).data
    assert [row.id for row in listed] == [made.id]

    assert compute.delete_compute_capacity_reservation(made.id).headers["opc-work-request-id"]
    advance(sandbox, 60)
    assert compute.get_compute_capacity_reservation(made.id).data.lifecycle_state == "DELETED"
    with pytest.raises(oci.exceptions.ServiceError) as gone:
        compute.delete_compute_capacity_reservation(made.id)
    assert (gone.value.status, gone.value.code) == (404, "NotAuthorizedOrNotFound")
    with pytest.raises(oci.exceptions.ServiceError) as used_up:
        compute.create_compute_capacity_reservation(wish("train-w1"), opc_retry_token="token-1")
    assert (used_up.value.status, used_up.value.code) == (409, "InvalidatedRetryToken")


def test_no_capacity_is_a_500(compute: Any) -> None:
    with pytest.raises(oci.exceptions.ServiceError) as refused:
        compute.create_compute_capacity_reservation(wish("too-many", 50))
    assert (refused.value.status, refused.value.code) == (500, "InternalError")
    assert refused.value.message == "Out of host capacity."
