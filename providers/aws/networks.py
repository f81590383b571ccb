"""The network of spot instances in a region: its default VPC, a security group of it, and what that lets in.

A default VPC has a subnet in each zone whose instances get public addresses, so that orders name the group
alone. Each AWS account begins with one a region; where it was deleted, ``CreateDefaultVpc`` makes it again.
Source: EC2 API 2016-11-15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from broker.domain.basics.errors import LeaseNotFound, PayloadUnreadable
from broker.domain.holding.seller_network import NetworkRules
from providers.aws.ec2 import Ec2
from providers.aws.query import PROVIDER, Node, Params, listed, tagged
from providers.http import Operation
from providers.network_setup import NETWORK_NAME, Ids, NetworkStep

GROUP, VPC, INGRESS = "security_group", "vpc", "ingress"
_Opening = tuple[int, str]
"""A TCP port, and the IPv4 network to which it is open."""


class RegionNetwork:
    """The calls that find and make the network of one region."""

    def __init__(self, ec2: Ec2, region: str, rules: NetworkRules) -> None:
        self._ec2, self._region, self._rules = ec2, region, rules
        self._wanted = {(port, source) for port in rules.ports for source in rules.sources}

    def steps(self) -> Sequence[NetworkStep]:
        """Its parts in the order of making."""
        return (
            NetworkStep(VPC, "the default VPC", self._find_vpc, self._make_vpc),
            NetworkStep(GROUP, f"security group {NETWORK_NAME}", self._find_group, self._make_group),
            NetworkStep(INGRESS, self._rules.says, self._find_ingress, self._make_ingress),
        )

    async def _find_vpc(self, _: Ids) -> str | None:
        rows = await self._rows("DescribeVpcs", _filters({"is-default": "true"}), "vpcSet")
        return next((_id_of(row, "vpcId") for row in rows), None)

    async def _make_vpc(self, _: Ids) -> str:
        answer = await self._change("CreateDefaultVpc", {})
        return _id_of(answer.child("vpc") or answer, "vpcId")

    async def _find_group(self, ids: Ids) -> str | None:
        return next((_id_of(row, "groupId") for row in await self._groups(ids)), None)

    async def _make_group(self, ids: Ids) -> str:
        params = {
            "GroupName": NETWORK_NAME,
            "GroupDescription": "Machines of the GPU capacity broker",
            "VpcId": ids[VPC],
            **tagged("security-group", NETWORK_NAME),
        }
        return _id_of(await self._change("CreateSecurityGroup", params), "groupId")

    async def _find_ingress(self, ids: Ids) -> str | None:
        return ids[GROUP] if await self._openings(ids) == self._wanted else None

    async def _make_ingress(self, ids: Ids) -> str:
        """Adds what is missing, then takes away what is too much, so that nobody is shut out between."""
        open_now = await self._openings(ids)
        for action, openings in (
            ("AuthorizeSecurityGroupIngress", self._wanted - open_now),
            ("RevokeSecurityGroupIngress", open_now - self._wanted),
        ):
            if openings:
                await self._change(action, {"GroupId": ids[GROUP], **_permissions(openings)})
        return ids[GROUP]

    async def _openings(self, ids: Ids) -> set[_Opening]:
        rows = await self._groups(ids)
        if not rows:
            raise LeaseNotFound(PROVIDER, f"security group {ids[GROUP]} is gone")
        return set(_openings_of(rows[0]))

    async def _groups(self, ids: Ids) -> list[Node]:
        wanted = _filters({"group-name": NETWORK_NAME, "vpc-id": ids[VPC]})
        return await self._rows("DescribeSecurityGroups", wanted, "securityGroupInfo")

    async def _rows(self, action: str, params: Params, name: str) -> list[Node]:
        pages = await self._ec2.every_page(self._region, action, params, Operation.LEASES)
        return [item for page in pages for item in page.items(name)]

    async def _change(self, action: str, params: Params) -> Node:
        return await self._ec2.call(self._region, action, params, Operation.ORDER, repeatable=False)


def _filters(wanted: Mapping[str, str]) -> Params:
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(wanted.items(), start=1):
        found |= {f"Filter.{number}.Name": name, f"Filter.{number}.Value.1": value}
    return found


def _permissions(openings: Iterable[_Opening]) -> Params:
    """One permission a port, with every network to which it is open."""
    found: dict[str, str] = {}
    every = sorted(openings)
    for number, port in enumerate(sorted({port for port, _ in every}), start=1):
        name = f"IpPermissions.{number}"
        found |= {f"{name}.IpProtocol": "tcp", f"{name}.FromPort": str(port), f"{name}.ToPort": str(port)}
        sources = [source for one, source in every if one == port]
        ranges = listed(f"{name}.IpRanges", sources)
        found |= {f"{key}.CidrIp": source for key, source in ranges.items()}
    return found


def _openings_of(group: Node) -> Iterator[_Opening]:
    """What a group lets in, as far as it is single TCP ports from IPv4 networks."""
    for permission in group.items("ipPermissions"):
        first, last = permission.text("fromPort"), permission.text("toPort")
        if permission.text("ipProtocol") == "tcp" and first is not None and first == last:
            yield from ((int(first), row.text("cidrIp") or "") for row in permission.items("ipRanges"))


def _id_of(node: Node, name: str) -> str:
    """An id of an answer; PayloadUnreadable without it."""
    found = node.text(name)
    if found is None:
        raise PayloadUnreadable(PROVIDER, f"{node.name} without {name}")
    return found
