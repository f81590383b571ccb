"""botocore as an independent client of the sandbox's EC2: it signs and parses by AWS's own model."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import botocore.session
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from providers.sandbox import SandboxHandle

TYPE = "p5.48xlarge"


def client(sandbox: SandboxHandle, region: str = "us-east-1") -> Any:
    return botocore.session.get_session().create_client(
        "ec2",
        region_name=region,
        endpoint_url=f"{sandbox.url}/aws",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}, parameter_validation=True),
    )


@pytest.fixture
def ec2(sandbox: SandboxHandle) -> Iterator[Any]:
    made = client(sandbox)
    yield made
    made.close()


def advance(sandbox: SandboxHandle, seconds: float) -> None:
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": seconds}).raise_for_status()


def stock(sandbox: SandboxHandle, sku: str, count: int) -> None:
    body = {"provider": "aws", "sku": sku, "stock": count}
    httpx.post(f"{sandbox.url}/_sandbox/market", json=body).raise_for_status()


def sandbox_now(sandbox: SandboxHandle) -> datetime:
    return datetime.fromisoformat(httpx.get(f"{sandbox.url}/_sandbox/clock").json()["now"])


def ledger(sandbox: SandboxHandle, instance_id: str) -> Any:
    rows = httpx.get(f"{sandbox.url}/_sandbox/ledger").json()["instances"]
    (found,) = [row for row in rows if row["instance_id"] == instance_id]
    return found


def test_a_block_from_search_to_expiry(sandbox: SandboxHandle, ec2: Any) -> None:
    start = sandbox_now(sandbox) + timedelta(days=2)
    found = ec2.describe_capacity_block_offerings(
        InstanceType=TYPE, InstanceCount=4, CapacityDurationHours=48, StartDateRange=start
    )["CapacityBlockOfferings"]
    assert 1 <= len(found) <= 6
    offering = found[0]
    assert (offering["StartDate"].hour, offering["StartDate"].minute) == (11, 30)
    assert offering["StartDate"] >= start
    assert offering["EndDate"] - offering["StartDate"] == timedelta(hours=48)
    assert Decimal(offering["UpfrontFee"]) == Decimal("47.757") * 4 * 48

    tags = [{"Key": "broker-key", "Value": "broker-b1"}]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offering["CapacityBlockOfferingId"],
        InstancePlatform="Linux/UNIX",
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
    )
    reservation = bought["CapacityReservation"]
    reservation_id = reservation["CapacityReservationId"]
    assert (reservation["State"], reservation["ReservationType"]) == ("payment-pending", "capacity-block")
    assert bought["CapacityBlocks"][0]["CapacityReservationIds"] == [reservation_id]
    row = ledger(sandbox, reservation_id)
    assert (row["tag"], row["nodes"], row["tier"]) == ("broker-b1", 4, "window")
    assert Decimal(row["billed_usd"]) == Decimal(offering["UpfrontFee"])

    one = {"CapacityReservationIds": [reservation_id]}
    advance(sandbox, 5)
    (seen,) = ec2.describe_capacity_reservations(**one)["CapacityReservations"]
    assert (seen["Tags"], seen["State"]) == (tags, "scheduled")
    with pytest.raises(ClientError, match="Capacity Block"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)

    advance(sandbox, (offering["StartDate"] - sandbox_now(sandbox)).total_seconds() + 60)
    (seen,) = ec2.describe_capacity_reservations(**one)["CapacityReservations"]
    assert (seen["State"], seen["AvailableInstanceCount"]) == ("active", 4)

    advance(sandbox, (offering["EndDate"] - sandbox_now(sandbox)).total_seconds() + 60)
    (seen,) = ec2.describe_capacity_reservations(**one)["CapacityReservations"]
    assert seen["State"] == "expired"
    assert ledger(sandbox, reservation_id)["released_at"] is not None


def test_search_can_start_now_and_refuses_odd_durations(sandbox: SandboxHandle, ec2: Any) -> None:
    stock(sandbox, TYPE, 30)
    found = ec2.describe_capacity_block_offerings(
        InstanceType=TYPE, InstanceCount=1, CapacityDurationHours=24
    )
    soonest = found["CapacityBlockOfferings"][0]
    held = soonest["EndDate"] - soonest["StartDate"]
    hours, minutes = soonest["CapacityBlockDurationHours"], soonest["CapacityBlockDurationMinutes"]
    assert held == timedelta(hours=hours, minutes=minutes)
    assert (soonest["EndDate"].hour, soonest["EndDate"].minute) == (11, 30)
    late = datetime(2030, 1, 1, tzinfo=UTC)
    far = ec2.describe_capacity_block_offerings(
        InstanceType=TYPE, InstanceCount=1, CapacityDurationHours=24, StartDateRange=late
    )
    assert far["CapacityBlockOfferings"] == []
    for hours in (25, 15 * 24):
        with pytest.raises(ClientError) as refused:
            ec2.describe_capacity_block_offerings(
                InstanceType=TYPE, InstanceCount=1, CapacityDurationHours=hours
            )
        assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_an_offering_goes_stale_and_its_capacity_runs_out(sandbox: SandboxHandle, ec2: Any) -> None:
    stock(sandbox, TYPE, 10)
    wanted = {"InstanceType": TYPE, "InstanceCount": 6, "CapacityDurationHours": 24}
    offering = ec2.describe_capacity_block_offerings(**wanted)["CapacityBlockOfferings"][1]
    order = {
        "CapacityBlockOfferingId": offering["CapacityBlockOfferingId"],
        "InstancePlatform": "Linux/UNIX",
    }
    ec2.purchase_capacity_block(**order)
    with pytest.raises(ClientError) as refused:
        ec2.purchase_capacity_block(**order)
    assert refused.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    advance(sandbox, 3600)
    with pytest.raises(ClientError) as refused:
        ec2.purchase_capacity_block(**order)
    assert refused.value.response["Error"]["Code"].endswith("NotFound")


def test_on_demand_reservation_is_idempotent_and_cancelled(sandbox: SandboxHandle, ec2: Any) -> None:
    stock(sandbox, TYPE, 3)
    wish: dict[str, Any] = {
        "ClientToken": "token-1",
        "InstanceType": TYPE,
        "InstancePlatform": "Linux/UNIX",
        "InstanceCount": 2,
        "AvailabilityZone": "us-east-1a",
        "InstanceMatchCriteria": "targeted",
    }
    tags = [{"Key": "broker-key", "Value": "broker-od"}]
    wish["TagSpecifications"] = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    made = ec2.create_capacity_reservation(**wish)["CapacityReservation"]
    assert made["Tags"] == tags
    assert ledger(sandbox, made["CapacityReservationId"])["tag"] == "broker-od"
    again = ec2.create_capacity_reservation(**wish)["CapacityReservation"]
    reservation_id = made["CapacityReservationId"]
    assert again["CapacityReservationId"] == reservation_id
    with pytest.raises(ClientError) as refused:
        ec2.create_capacity_reservation(**wish | {"InstanceCount": 1})
    assert refused.value.response["Error"]["Code"] == "IdempotentParameterMismatch"
    with pytest.raises(ClientError) as refused:
        ec2.create_capacity_reservation(**wish | {"ClientToken": "token-2"})
    assert refused.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    advance(sandbox, 3600)
    assert ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)["Return"] is True
    (seen,) = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
        "CapacityReservations"
    ]
    assert seen["State"] == "cancelled"
    billed = Decimal(ledger(sandbox, reservation_id)["billed_usd"])
    assert 2 * Decimal("55.04") <= billed < 2 * Decimal("55.3")
    with pytest.raises(ClientError) as refused:
        ec2.cancel_capacity_reservation(CapacityReservationId="cr-0")
    assert refused.value.response["Error"]["Code"] == "InvalidCapacityReservationId.NotFound"


def test_spot_instances(sandbox: SandboxHandle, ec2: Any) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "broker-key", "Value": "broker-i1"}]}]
    wish: dict[str, Any] = {
        "ImageId": "ami-1",
        "InstanceType": "p5en.48xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceMarketOptions": {"MarketType": "spot"},
        "TagSpecifications": tags,
    }
    (made,) = ec2.run_instances(**wish)["Instances"]
    assert made["State"]["Name"] == "pending"
    assert (made["InstanceLifecycle"], ledger(sandbox, made["InstanceId"])["tier"]) == ("spot", "spot")
    (shown,) = ec2.describe_instances()["Reservations"]
    assert shown["Instances"][0]["InstanceId"] == made["InstanceId"]
    with pytest.raises(ClientError) as refused:
        ec2.run_instances(**wish | {"MinCount": 50, "MaxCount": 50})
    assert refused.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    for _ in range(2):
        ended = ec2.terminate_instances(InstanceIds=[made["InstanceId"]])["TerminatingInstances"]
        assert ended[0]["CurrentState"]["Name"] == "shutting-down"
    with pytest.raises(ClientError) as refused:
        ec2.terminate_instances(InstanceIds=["i-0"])
    assert refused.value.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
    with pytest.raises(ClientError) as refused:
        ec2.run_instances(**wish, DryRun=True)
    assert refused.value.response["Error"]["Code"] == "DryRunOperation"


def test_paging_ends_with_an_empty_token(sandbox: SandboxHandle, ec2: Any) -> None:
    first = ec2.describe_spot_price_history(MaxResults=3)
    assert (len(first["SpotPriceHistory"]), first["NextToken"]) == (3, "3")
    pages = ec2.get_paginator("describe_spot_price_history").paginate(PaginationConfig={"PageSize": 7})
    rows = [row for page in pages for row in page["SpotPriceHistory"]]
    whole = ec2.describe_spot_price_history()
    assert len(rows) == len(whole["SpotPriceHistory"])
    assert whole["NextToken"] == ""
    wanted = ec2.describe_spot_price_history(
        InstanceTypes=["p5en.48xlarge"], ProductDescriptions=["Linux/UNIX"]
    )["SpotPriceHistory"]
    prices = {
        row["AvailabilityZoneId"]: Decimal(row["SpotPrice"])
        for row in wanted
        if row["SpotPrice"] != "0.000000"
    }
    assert prices["use1-az2"] == Decimal("18.2492")
    assert any(row["SpotPrice"] == "0.000000" for row in whole["SpotPriceHistory"])
