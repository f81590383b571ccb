"""Signature Version 4 against the documented example and against botocore's signer."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote, urlencode

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.aws.signing import AwsKeys, Scope, canonical_request, signed_headers
from tests.depth import examples

KEYS = AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
AT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)


def test_the_documented_example() -> None:
    """IAM ListUsers of the AWS General Reference."""
    url = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08"
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    signed = signed_headers("GET", url, headers, b"", KEYS, Scope("us-east-1", "iam"), AT)
    assert signed["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date, "
        "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    )
    assert signed["x-amz-date"] == "20150830T123600Z"


def by_botocore(method: str, url: str, body: bytes, keys: AwsKeys, region: str, at: datetime) -> str:
    request = AWSRequest(method=method, url=url, data=body, headers={"content-type": "text/x"})
    credentials = Credentials(keys.access_key_id, keys.secret_access_key, keys.session_token)
    with patch.object(botocore.auth, "get_current_datetime", return_value=at.replace(tzinfo=None)):
        botocore.auth.SigV4Auth(credentials, "ec2", region).add_auth(request)
    return str(request.headers["Authorization"])


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST"]),
    host=st.sampled_from(["https://ec2.us-east-1.amazonaws.com", "http://127.0.0.1:8123", "https://h:443"]),
    path=st.lists(st.text("abz09-_.~ %é", min_size=1, max_size=6), max_size=3).map("/".join),
    query=st.dictionaries(
        st.text("abz -/é", min_size=1, max_size=4), st.text("xy&= +", max_size=4), max_size=3
    ),
    body=st.binary(max_size=40),
    token=st.none() | st.just("token/of+a=session"),
    at=st.integers(946_684_800, 4_070_908_800).map(lambda s: datetime.fromtimestamp(s, UTC)),
)
def test_botocore_signs_alike(
    method: str,
    host: str,
    path: str,
    query: dict[str, str],
    body: bytes,
    token: str | None,
    at: datetime,
) -> None:
    url = f"{host}/{quote(path)}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
    keys = AwsKeys(KEYS.access_key_id, KEYS.secret_access_key, token)
    ours = signed_headers(method, url, {"Content-Type": "text/x"}, body, keys, Scope("eu-west-2"), at)
    assert ours["authorization"] == by_botocore(method, url, body, keys, "eu-west-2", at)


def test_the_body_is_covered() -> None:
    url, headers = "https://ec2.us-east-1.amazonaws.com/", {"host": "ec2.us-east-1.amazonaws.com"}
    assert canonical_request("POST", url, headers, b"a") != canonical_request("POST", url, headers, b"b")


def test_keys_do_not_show_their_secrets() -> None:
    shown = repr(AwsKeys("AKID", "hush", "hush-token"))
    assert "hush" not in shown
