import csv
import io

import pytest

from providers.sandbox.sellers.aws.market import zone_name, zone_prefix
from tests.sandbox.conftest import SIGNED, Bench

OFFERS = "/aws/offers/v1.0/aws/AmazonEC2/current/{}/index.csv"


async def test_the_price_list_needs_no_key_and_must_be_filtered(bench: Bench) -> None:
    answer = await bench.client.get(OFFERS.format("us-east-1"), headers={"Authorization": ""})
    lines = answer.text.splitlines()
    assert [line.split(",")[0].strip('"') for line in lines[:5]] == [
        "FormatVersion",
        "Disclaimer",
        "Publication Date",
        "Version",
        "OfferCode",
    ]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[5:]))))
    plain = [
        row
        for row in rows
        if (row["Instance Type"], row["TermType"], row["Tenancy"]) == ("p5.48xlarge", "OnDemand", "Shared")
        and (row["Operating System"], row["CapacityStatus"], row["Pre Installed S/W"])
        == ("Linux", "Used", "NA")
    ]
    assert {row["MarketOption"]: row["PricePerUnit"] for row in plain} == {
        "OnDemand": "55.0400000000",
        "CapacityBlock": "0.0000000000",
    }
    assert any(row["GPU"] == "" for row in rows)
    assert len({row["SKU"] for row in rows}) == len(rows)
    assert (await bench.call("GET", OFFERS.format("moon-1"))).status_code == 404


async def test_the_signature_must_be_formed_and_scoped_to_ec2(bench: Bench) -> None:
    data = {"Action": "DescribeInstances", "Version": "2016-11-15"}
    good = SIGNED.format(region="us-east-1")
    cases = {
        "": (401, "AuthFailure"),
        "Bearer key": (401, "AuthFailure"),
        good[:-1]: (401, "AuthFailure"),
        good.replace("/ec2/", "/s3/"): (403, "SignatureDoesNotMatch"),
        good: (200, ""),
    }
    for header, (status, code) in cases.items():
        answer = await bench.client.post("/aws", data=data, headers={"Authorization": header})
        assert answer.status_code == status, header
        assert code in answer.text


async def test_answers_are_in_the_namespace_and_errors_are_not_wrapped(bench: Bench) -> None:
    answer = await bench.ec2("DescribeCapacityReservations")
    assert 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"' in answer.text
    assert "<nextToken/>" in answer.text
    for action, params, code in (
        ("Fly", {}, "InvalidAction"),
        ("PurchaseCapacityBlock", {}, "MissingParameter"),
        ("CreateCapacityReservation", {"InstanceCount": "0"}, "InvalidParameterValue"),
    ):
        refused = await bench.ec2(action, **params)
        assert refused.status_code == 400
        assert f"<Code>{code}</Code>" in refused.text


@pytest.mark.parametrize(
    ("region", "zone_id", "name"),
    [
        ("us-east-2", "use2-az1", "us-east-2a"),
        ("ap-northeast-1", "apne1-az4", "ap-northeast-1d"),
        ("us-east-1", "use1-atl2-az1", "us-east-1-atl-2a"),
    ],
)
def test_zone_names(region: str, zone_id: str, name: str) -> None:
    assert zone_name(region, zone_id) == name
    assert zone_id.startswith(zone_prefix(region))


async def test_a_reservation_ends_by_date_and_gives_its_stock_back(bench: Bench) -> None:
    await bench.stock("aws", "p5.48xlarge", 1)
    wish = {
        "InstanceType": "p5.48xlarge",
        "InstancePlatform": "Linux/UNIX",
        "InstanceCount": "1",
        "AvailabilityZone": "us-east-1a",
        "EndDateType": "limited",
        "EndDate": "2026-11-23T10:00:00Z",
    }
    await bench.ec2("CreateCapacityReservation", **wish)
    full = await bench.ec2("CreateCapacityReservation", **wish)
    assert "InsufficientInstanceCapacity" in full.text
    await bench.advance(2 * 3600)
    assert "<state>expired</state>" in (await bench.ec2("DescribeCapacityReservations")).text
    (reservation,) = await bench.ledger()
    assert reservation["released_at"] == "2026-11-23T10:00:00Z"
    assert reservation["billed_usd"].startswith("55.0")
    later = wish | {"EndDate": "2026-11-23T12:00:00Z"}
    assert (await bench.ec2("CreateCapacityReservation", **later)).status_code == 200


async def test_dense_types_cannot_be_reserved_for_later(bench: Bench) -> None:
    refused = await bench.ec2(
        "CreateCapacityReservation",
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        InstanceCount="1",
        AvailabilityZone="us-east-1a",
        StartDate="2026-12-10T00:00:00Z",
    )
    assert "<Code>Unsupported</Code>" in refused.text
