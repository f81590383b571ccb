"""Our signatures against the oci SDK's own signer: PKCS #1 v1.5 gives the same bytes for the same text."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from broker.domain.basics.errors import CredentialsRejected
from providers.http import ProviderHttp
from providers.oci import SPEC
from providers.oci.adapter import retry_token
from providers.oci.signing import OciKey, load_private_key, signed_headers
from providers.spec import ProviderSettings, Secret
from tests.contract.exchanges import private_key_pem

oci = pytest.importorskip("oci")

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TENANCY, USER, PRINT = "ocid1.tenancy.oc1..a", "ocid1.user.oc1..b", "20:3b:97:13:55:1c"
BASE = "https://iaas.us-chicago-1.oraclecloud.com/20160918"


def theirs(method: str, url: str, body: bytes | None) -> Any:
    """The request as the SDK's signer leaves it; it takes the date that is there."""
    signer = oci.signer.Signer(TENANCY, USER, PRINT, None, private_key_content=private_key_pem())
    requests = oci.signer.requests
    request = requests.Request(method, url, data=body, headers={"date": "Sat, 21 Nov 2026 12:00:00 GMT"})
    if body is not None:
        request.headers["content-type"] = "application/json"
    return signer(request.prepare())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/computeCapacityReservations?compartmentId=ocid1.tenancy.oc1..a&limit=100", None),
        ("GET", "/availabilityDomains?compartmentId=a%20b%3Ac&page=x%3D%3D", None),
        ("DELETE", "/computeCapacityReservations/ocid1.capacityreservation.oc1..b", None),
        ("POST", "/computeCapacityReservations", b'{"displayName": "train-w1"}'),
    ],
)
def test_our_signature_is_theirs(method: str, path: str, body: bytes | None) -> None:
    key = OciKey(f"{TENANCY}/{USER}/{PRINT}", load_private_key(private_key_pem()))
    ours = signed_headers(method, BASE + path, body or b"", key, AT)
    sdk = theirs(method, BASE + path, body).headers
    assert ours["authorization"] == sdk["authorization"]
    names = {"date", "host"} | ({"x-content-sha256", "content-length", "content-type"} if body else set())
    assert {name: ours[name] for name in names} == {name: sdk[name] for name in names}


def test_what_is_no_rsa_key_is_refused_in_words() -> None:
    for text in ("secret", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", ""):
        with pytest.raises(ValueError, match="private key"):
            load_private_key(text)


def test_a_key_on_one_line_is_read() -> None:
    found = load_private_key(private_key_pem().replace("\n", "\\n"))
    assert isinstance(found, rsa.RSAPrivateKey)


async def test_a_broken_key_says_so_before_anything_is_sent() -> None:
    settings = ProviderSettings(
        provider="oci",
        base_url="http://provider.test",
        credentials=dict.fromkeys(SPEC.credentials, Secret("s3cr3t")),
        options={**SPEC.options, "regions": "us-chicago-1"},
    )
    adapter: Any = SPEC.build(settings, ProviderHttp)
    try:
        with pytest.raises(CredentialsRejected, match="private_key") as caught:
            await adapter.list_leases()
        assert "s3cr3t" not in json.dumps([str(caught.value), repr(caught.value)])
    finally:
        await adapter.aclose()


def test_a_retry_token_fits_and_is_that_of_the_tag() -> None:
    assert retry_token("broker-a-0-0") == "broker-a-0-0"
    long = "broker-" + "x" * 80
    assert retry_token(long) == retry_token(long)
    assert len(retry_token(long)) == 64
