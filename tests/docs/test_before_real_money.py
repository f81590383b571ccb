"""The guide *Before real money* names every call that costs rights, and every seller's least bill."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from broker.provider_facts import load_provider_facts
from providers.aws.query import TAG_KEY
from providers.registry import SPECS
from providers.spec import Capability
from tests.docs.fences import DOCS, ROOT, fences_of

pytestmark = pytest.mark.xdist_group("docs")

GUIDE = DOCS / "guides" / "before-real-money.md"
SECONDS = {"s": 1, "min": 60, "h": 3600}
BESIDES = {"AddTags", "CreateReservedCapacity", "CreateTags", "GetParameters"}
"""Rights that a call needs besides the one of its own name."""
SELLERS = sorted(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)


def policies() -> list[dict[str, Any]]:
    """The documents of the guide that are pasted: AWS's policy and Azure's role."""
    return [json.loads(fence.text) for fence in fences_of(GUIDE) if fence.language == "json"]


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the table below ``heading``, by the seller in its first one."""
    section = GUIDE.read_text().split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


def test_the_policy_of_aws_allows_the_calls_of_its_adapter_and_no_others() -> None:
    called = {
        action
        for path in (ROOT / "providers" / "aws").glob("*.py")
        for action in re.findall(
            r'"((?:Describe|Search|List|Create|Purchase|Run|Terminate|Cancel|Delete|Modify|Authorize|Revoke)'
            r'[A-Z]\w+)"',
            path.read_text(),
        )
    }
    allowed: set[str] = set()
    for statement in policies()[0]["Statement"]:
        actions = statement["Action"]
        allowed |= {name.partition(":")[2] for name in ([actions] if isinstance(actions, str) else actions)}
    assert allowed - BESIDES == called


def test_only_what_carries_the_tag_of_the_broker_may_be_ended_at_aws() -> None:
    [ending] = [row for row in policies()[0]["Statement"] if row["Sid"] == "EndOnlyOurOwn"]
    assert ending["Condition"] == {"StringLike": {f"aws:ResourceTag/{TAG_KEY}": "*"}}


def test_the_least_bill_of_every_seller_is_that_of_its_facts() -> None:
    told = rows("What an order costs at least")
    assert sorted(told) == SELLERS
    for name, (least, *_) in told.items():
        billed = load_provider_facts(name).billed
        count, unit = least.split()
        assert int(count) * SECONDS[unit] == max(billed.increment_s, billed.minimum_s), name


def test_every_seller_has_its_least_rights() -> None:
    text = GUIDE.read_text()
    with_documents = {"aws", "azure", "gcp", "oci"}
    assert all(f"### {SPECS[name].title}\n" in text for name in with_documents)
    assert sorted({*rows("Sellers with API keys"), *with_documents}) == SELLERS
