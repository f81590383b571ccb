"""botocore as an independent client of SageMaker's training plans and of later starts, by AWS's own model."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import botocore.session
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from providers.sandbox import SandboxHandle

TYPE = "ml.p5.48xlarge"
LATER = "g6e.48xlarge"
DAY = timedelta(days=1)


def client(sandbox: SandboxHandle, service: str, region: str = "us-east-1") -> Any:
    return botocore.session.get_session().create_client(
        service,
        region_name=region,
        endpoint_url=f"{sandbox.url}/aws",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}, parameter_validation=True),
    )


@pytest.fixture
def sagemaker(sandbox: SandboxHandle) -> Iterator[Any]:
    made = client(sandbox, "sagemaker")
    yield made
    made.close()


@pytest.fixture
def ec2(sandbox: SandboxHandle) -> Iterator[Any]:
    made = client(sandbox, "ec2")
    yield made
    made.close()


def control(sandbox: SandboxHandle, path: str, **body: Any) -> Any:
    url = f"{sandbox.url}/_sandbox/{path}"
    answer = httpx.post(url, json=body) if body else httpx.get(url)
    return answer.raise_for_status().json()


def now(sandbox: SandboxHandle) -> datetime:
    return datetime.fromisoformat(control(sandbox, "clock")["now"])


def advance_to(sandbox: SandboxHandle, instant: datetime) -> None:
    control(sandbox, "clock", advance_s=max(0.0, (instant - now(sandbox)).total_seconds()) + 1)


def ledger(sandbox: SandboxHandle, instance_id: str) -> Any:
    rows = control(sandbox, "ledger")["instances"]
    (found,) = [row for row in rows if row["instance_id"] == instance_id]
    return found


def search(sagemaker: Any, **wish: Any) -> list[Any]:
    asked = {
        "InstanceType": TYPE,
        "InstanceCount": 2,
        "DurationHours": 96,
        "TargetResources": ["hyperpod-cluster"],
    }
    found: list[Any] = sagemaker.search_training_plan_offerings(**{**asked, **wish})["TrainingPlanOfferings"]
    return found


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def test_a_search_answers_with_whole_plans_and_one_in_two_parts(
    sandbox: SandboxHandle, sagemaker: Any
) -> None:
    after = now(sandbox) + 3 * DAY
    found = search(sagemaker, StartTimeAfter=after, EndTimeBefore=after + 20 * DAY)
    assert {len(offering["ReservedCapacityOfferings"]) for offering in found} == {1, 2}
    for offering in found:
        parts = offering["ReservedCapacityOfferings"]
        assert parts[0]["StartTime"] > after
        assert parts[-1]["EndTime"] < after + 20 * DAY
        assert sum((part["EndTime"] - part["StartTime"] for part in parts), timedelta()) == 4 * DAY
        assert offering["DurationHours"] == sum(part["DurationHours"] for part in parts) == 96
        assert {(part["InstanceType"], part["InstanceCount"]) for part in parts} == {(TYPE, 2)}
        assert Decimal(offering["UpfrontFee"]) == Decimal("47.757") * 2 * 96
        assert (offering["CurrencyCode"], offering["TargetResources"]) == ("USD", ["hyperpod-cluster"])
    assert search(sagemaker, InstanceCount=3) == []
    assert search(sagemaker, InstanceType="ml.trn2.48xlarge") == []
    with pytest.raises(ClientError) as refused:
        search(sagemaker, TargetResources=["toaster"])
    assert code_of(refused) == "ValidationException"


def test_a_plan_from_search_to_expiry(sandbox: SandboxHandle, sagemaker: Any) -> None:
    offering = next(o for o in search(sagemaker) if len(o["ReservedCapacityOfferings"]) == 2)
    first, second = offering["ReservedCapacityOfferings"]
    order = {
        "TrainingPlanName": "broker-p1",
        "TrainingPlanOfferingId": offering["TrainingPlanOfferingId"],
        "Tags": [{"Key": "broker-key", "Value": "broker-p1"}],
    }
    arn = sagemaker.create_training_plan(**order)["TrainingPlanArn"]
    with pytest.raises(ClientError) as refused:
        sagemaker.create_training_plan(**order)
    assert code_of(refused) == "ResourceInUse"
    row = ledger(sandbox, arn)
    assert (row["tag"], row["nodes"], row["tier"], row["sku"]) == ("broker-p1", 2, "window", TYPE)
    assert Decimal(row["billed_usd"]) == Decimal(offering["UpfrontFee"])

    def shown() -> Any:
        by_name = sagemaker.describe_training_plan(TrainingPlanName="broker-p1")
        by_arn = sagemaker.describe_training_plan(TrainingPlanName=arn)
        assert by_name["TrainingPlanArn"] == by_arn["TrainingPlanArn"] == arn
        return by_name

    assert shown()["Status"] == "Pending"
    control(sandbox, "clock", advance_s=5)
    plan = shown()
    assert (plan["Status"], plan["TotalInstanceCount"]) == ("Scheduled", 2)
    assert (plan["StartTime"], plan["EndTime"]) == (first["StartTime"], second["EndTime"])
    advance_to(sandbox, first["EndTime"])
    statuses = [part["Status"] for part in shown()["ReservedCapacitySummaries"]]
    assert (shown()["Status"], statuses) == ("Active", ["Expired", "Scheduled"])
    advance_to(sandbox, second["EndTime"])
    assert shown()["Status"] == "Expired"
    assert Decimal(ledger(sandbox, arn)["billed_usd"]) == Decimal(offering["UpfrontFee"])
    assert not hasattr(sagemaker, "delete_training_plan")


def test_plans_are_listed_in_pages(sandbox: SandboxHandle, sagemaker: Any) -> None:
    offering = search(sagemaker, InstanceCount=1, DurationHours=24)[0]["TrainingPlanOfferingId"]
    made = [
        sagemaker.create_training_plan(TrainingPlanName=f"broker-l{n}", TrainingPlanOfferingId=offering)
        for n in range(3)
    ]
    pages = sagemaker.get_paginator("list_training_plans").paginate(PaginationConfig={"PageSize": 2})
    listed = [plan["TrainingPlanArn"] for page in pages for plan in page["TrainingPlanSummaries"]]
    assert {plan["TrainingPlanArn"] for plan in made} <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_plan_that_cannot_be_had_says_why(sandbox: SandboxHandle, sagemaker: Any) -> None:
    control(sandbox, "market", provider="aws", sku=TYPE, stock=4)
    offering = search(sagemaker, InstanceCount=4)[0]["TrainingPlanOfferingId"]
    sagemaker.create_training_plan(TrainingPlanName="broker-w1", TrainingPlanOfferingId=offering)
    cases = {
        "broker-w2": (offering, "ResourceNotFound"),
        "broker-w3": ("tpo-0", "ResourceNotFound"),
    }
    for name, (wanted, code) in cases.items():
        with pytest.raises(ClientError) as refused:
            sagemaker.create_training_plan(TrainingPlanName=name, TrainingPlanOfferingId=wanted)
        assert code_of(refused) == code
    with pytest.raises(ClientError) as refused:
        sagemaker.describe_training_plan(TrainingPlanName="broker-w2")
    assert code_of(refused) == "ResourceNotFound"
    control(sandbox, "market", provider="aws", sku=TYPE, stock=40)


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        ("http_500", "InternalFailure", 500),
        ("rate_limited", "ThrottlingException", 400),
        ("out_of_capacity", "ResourceNotFound", 400),
    ],
)
def test_faults_come_in_sagemakers_form(
    sandbox: SandboxHandle, sagemaker: Any, kind: str, code: str, status: int
) -> None:
    offering = search(sagemaker, InstanceCount=1, DurationHours=24)[0]["TrainingPlanOfferingId"]
    control(sandbox, "faults", provider="aws", operation="create", kind=kind, count=1)
    with pytest.raises(ClientError) as refused:
        sagemaker.create_training_plan(TrainingPlanName=f"broker-{status}", TrainingPlanOfferingId=offering)
    assert code_of(refused) == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


def test_a_plan_whose_capacity_is_lost_fails(sandbox: SandboxHandle, sagemaker: Any) -> None:
    offering = search(sagemaker, InstanceCount=1, DurationHours=24)[0]["TrainingPlanOfferingId"]
    control(sandbox, "faults", provider="aws", operation="create", kind="async_out_of_capacity", count=1)
    made = sagemaker.create_training_plan(TrainingPlanName="broker-f1", TrainingPlanOfferingId=offering)
    control(sandbox, "clock", advance_s=5)
    assert sagemaker.describe_training_plan(TrainingPlanName="broker-f1")["Status"] == "Failed"
    assert Decimal(ledger(sandbox, made["TrainingPlanArn"])["billed_usd"]) == 0


def later(sandbox: SandboxHandle, token: str, **wish: Any) -> dict[str, Any]:
    start = (now(sandbox) + 10 * DAY).replace(microsecond=0)
    return {
        "ClientToken": token,
        "InstanceType": LATER,
        "InstancePlatform": "Linux/UNIX",
        "InstanceCount": 1,
        "AvailabilityZone": "us-east-1a",
        "InstanceMatchCriteria": "targeted",
        "StartDate": start,
        "CommitmentDuration": 14 * 86400,
        "DeliveryPreference": "incremental",
        "TagSpecifications": [
            {"ResourceType": "capacity-reservation", "Tags": [{"Key": "broker-key", "Value": token}]}
        ],
    } | wish


def seen(ec2: Any, reservation_id: str) -> Any:
    (found,) = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
        "CapacityReservations"
    ]
    return found


def test_a_later_start_is_assessed_scheduled_active_and_free_after_its_commitment(
    sandbox: SandboxHandle, ec2: Any
) -> None:
    wish = later(sandbox, "later-1")
    made = ec2.create_capacity_reservation(**wish)["CapacityReservation"]
    reservation_id = made["CapacityReservationId"]
    again = ec2.create_capacity_reservation(**wish)["CapacityReservation"]
    assert again["CapacityReservationId"] == reservation_id
    assert (made["State"], made["DeliveryPreference"]) == ("assessing", "incremental")
    committed_until = wish["StartDate"] + 14 * DAY
    assert made["CommitmentInfo"] == {
        "CommittedInstanceCount": 1,
        "CommitmentEndDate": committed_until,
        "CommitmentDuration": 14 * 86400,
    }
    control(sandbox, "clock", advance_s=5)
    assert seen(ec2, reservation_id)["State"] == "scheduled"
    assert Decimal(ledger(sandbox, reservation_id)["billed_usd"]) == 0
    with pytest.raises(ClientError, match="quote"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    advance_to(sandbox, wish["StartDate"])
    assert seen(ec2, reservation_id)["State"] == "active"
    with pytest.raises(ClientError, match="quote"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    advance_to(sandbox, committed_until)
    assert ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)["Return"] is True
    assert seen(ec2, reservation_id)["State"] == "cancelled"
    billed = Decimal(ledger(sandbox, reservation_id)["billed_usd"])
    rate = next(
        Decimal(row["usd_per_unit_hour"])
        for row in control(sandbox, "market")["cells"]
        if (row["provider"], row["sku"], row["region"], row["tier"])
        == ("aws", LATER, "us-east-1", "on_demand")
    )
    assert rate * 14 * 24 <= billed < rate * (14 * 24 + 1)


def test_a_later_start_is_cancelled_while_it_is_assessed(sandbox: SandboxHandle, ec2: Any) -> None:
    made = ec2.create_capacity_reservation(**later(sandbox, "later-2"))["CapacityReservation"]
    reservation_id = made["CapacityReservationId"]
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    assert seen(ec2, reservation_id)["State"] == "cancelled"
    assert Decimal(ledger(sandbox, reservation_id)["billed_usd"]) == 0


def test_what_the_zone_cannot_hold_is_unsupported_after_the_assessment(
    sandbox: SandboxHandle, ec2: Any
) -> None:
    made = ec2.create_capacity_reservation(**later(sandbox, "later-3", InstanceCount=900))
    reservation_id = made["CapacityReservation"]["CapacityReservationId"]
    assert made["CapacityReservation"]["State"] == "assessing"
    control(sandbox, "clock", advance_s=5)
    assert seen(ec2, reservation_id)["State"] == "unsupported"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"StartDate": 2}, "InvalidParameterValue"),
        ({"StartDate": 130}, "InvalidParameterValue"),
        ({"InstanceType": "p5.48xlarge"}, "Unsupported"),
        ({"InstanceType": "g6.xlarge", "InstanceCount": 7}, "InvalidParameterValue"),
        ({"InstanceMatchCriteria": "open"}, "InvalidParameterCombination"),
        ({"DeliveryPreference": "fixed"}, "InvalidParameterValue"),
        ({"CommitmentDuration": None}, "MissingParameter"),
        ({"EndDateType": "limited", "EndDate": 20}, "InvalidParameterCombination"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    sandbox: SandboxHandle, ec2: Any, change: dict[str, Any], code: str
) -> None:
    days = {"StartDate", "EndDate"}
    wish = {k: now(sandbox) + v * DAY if k in days else v for k, v in change.items()}
    full = {k: v for k, v in (later(sandbox, f"no-{change}") | wish).items() if v is not None}
    with pytest.raises(ClientError) as refused:
        ec2.create_capacity_reservation(**full)
    assert code_of(refused) == code
