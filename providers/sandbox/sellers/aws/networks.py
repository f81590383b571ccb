"""EC2's default VPCs and security groups: described, made, opened and closed.

Every region begins with a default VPC and its group ``default``, as in a new account; a default VPC that was
deleted can be made again. A group opens ports; the sandbox's machines, on loopback, are reached whatever it
says. Source: EC2 API model 2016-11-15.
"""

from __future__ import annotations

from typing import Any

from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.query import OWNER_ID, Ec2Call, ec2_error

_VPC, _GROUP = "aws_vpc", "aws_security_group"
_GONE = "gone"
_CIDR = "172.31.0.0/16"


class Networks:
    """The network actions of one account."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox
        self.actions = {
            "DescribeVpcs": self._vpcs,
            "CreateDefaultVpc": self._make_vpc,
            "DeleteVpc": self._drop_vpc,
            "DescribeSecurityGroups": self._groups,
            "CreateSecurityGroup": self._make_group,
            "AuthorizeSecurityGroupIngress": self._open,
            "RevokeSecurityGroupIngress": self._close,
        }

    def require(self, call: Ec2Call) -> None:
        """Refuses an instance in a subnet or security group that is not there, or without a default VPC."""
        if (subnet := call.params.get("SubnetId")) is not None:
            raise ec2_error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
        if self._vpc_of(call.region) is None:
            raise ec2_error(
                "VPCIdNotSpecified",
                "No default VPC for this user. GroupName is only supported for EC2-Classic",
            )
        known = {group["id"] for group in self._known(call.region)}
        for wanted in call.values("SecurityGroupId"):
            if wanted not in known:
                raise ec2_error("InvalidGroup.NotFound", f"The security group '{wanted}' does not exist")

    def _vpc_of(self, region: str) -> str | None:
        kept = self._sandbox.store.document(_VPC, region)
        vpc = f"vpc-default-{region}" if kept is None else str(kept["id"])
        return None if vpc == _GONE else vpc

    def _vpcs(self, call: Ec2Call) -> dict[str, Any]:
        vpc = self._vpc_of(call.region)
        return {"vpcSet": [] if vpc is None else [_vpc_row(vpc)], "nextToken": ""}

    def _make_vpc(self, call: Ec2Call) -> dict[str, Any]:
        if self._vpc_of(call.region) is not None:
            raise ec2_error(
                "DefaultVpcAlreadyExists", "A Default VPC already exists for this account in this region."
            )
        vpc = "vpc-" + self._sandbox.new_id("aws-vpc", 17)
        self._sandbox.store.put_document(_VPC, call.region, {"id": vpc})
        return {"vpc": _vpc_row(vpc)}

    def _drop_vpc(self, call: Ec2Call) -> dict[str, Any]:
        vpc = call.required("VpcId")
        if vpc != self._vpc_of(call.region):
            raise ec2_error("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
        for group in self._known(call.region):
            self._sandbox.store.drop_document(_GROUP, group["id"])
        self._sandbox.store.put_document(_VPC, call.region, {"id": _GONE})
        return {"return": True}

    def _known(self, region: str) -> list[dict[str, Any]]:
        """Groups of a region, the default VPC's own first."""
        made = [one for one in self._sandbox.store.documents(_GROUP).values() if one["region"] == region]
        vpc = self._vpc_of(region)
        if vpc is None:
            return made
        own = {
            "id": f"sg-default-{region}",
            "name": "default",
            "vpc": vpc,
            "says": "default VPC security group",
        }
        return [{**own, "region": region, "openings": [], "tags": []}, *made]

    def _groups(self, call: Ec2Call) -> dict[str, Any]:
        filters = {
            call.params[f"Filter.{number}.Name"]: call.values(f"Filter.{number}.Value")
            for number in range(1, 20)
            if f"Filter.{number}.Name" in call.params
        }
        fields = {"group-name": "name", "vpc-id": "vpc", "group-id": "id"}
        unknown = set(filters) - set(fields)
        if unknown:
            raise ec2_error("InvalidParameterValue", f"The filter '{min(unknown)}' is invalid")
        rows = [
            _group_row(group)
            for group in self._known(call.region)
            if all(group[fields[name]] in wanted for name, wanted in filters.items())
        ]
        page, token = call.page(rows)
        return {"securityGroupInfo": page, "nextToken": token}

    def _make_group(self, call: Ec2Call) -> dict[str, Any]:
        name, vpc = call.required("GroupName"), call.params.get("VpcId") or self._vpc_of(call.region)
        says = call.required("GroupDescription")
        if vpc is None or vpc != self._vpc_of(call.region):
            raise ec2_error("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
        if any(group["name"] == name for group in self._known(call.region)):
            raise ec2_error(
                "InvalidGroup.Duplicate", f"The security group '{name}' already exists for VPC '{vpc}'"
            )
        group = {
            "id": "sg-" + self._sandbox.new_id("aws-sg", 17),
            "name": name,
            "vpc": vpc,
            "says": says,
            "region": call.region,
            "openings": [],
            "tags": call.tags("security-group"),
        }
        self._sandbox.store.put_document(_GROUP, str(group["id"]), group)
        return {"groupId": group["id"], "tagSet": group["tags"]}

    def _open(self, call: Ec2Call) -> dict[str, Any]:
        group, wanted = self._of(call), _openings(call)
        twice = [one for one in wanted if one in group["openings"]]
        if twice:
            raise ec2_error("InvalidPermission.Duplicate", f"the specified rule {twice[0]} already exists")
        return self._kept({**group, "openings": [*group["openings"], *wanted]})

    def _close(self, call: Ec2Call) -> dict[str, Any]:
        group, wanted = self._of(call), _openings(call)
        missing = [one for one in wanted if one not in group["openings"]]
        if missing:
            raise ec2_error("InvalidPermission.NotFound", f"The specified rule {missing[0]} does not exist.")
        return self._kept({**group, "openings": [one for one in group["openings"] if one not in wanted]})

    def _of(self, call: Ec2Call) -> dict[str, Any]:
        wanted = call.required("GroupId")
        group = self._sandbox.store.document(_GROUP, wanted)
        if group is None or group["region"] != call.region:
            raise ec2_error("InvalidGroup.NotFound", f"The security group '{wanted}' does not exist")
        return group

    def _kept(self, group: dict[str, Any]) -> dict[str, Any]:
        self._sandbox.store.put_document(_GROUP, group["id"], group)
        return {"return": True}


def _openings(call: Ec2Call) -> list[list[str]]:
    """Protocol, port and network of each permission that a call names."""
    found: list[list[str]] = []
    number = 1
    while (protocol := call.params.get(name := f"IpPermissions.{number}.IpProtocol")) is not None:
        name = name.removesuffix(".IpProtocol")
        first, last = call.required(f"{name}.FromPort"), call.required(f"{name}.ToPort")
        if first != last:
            raise ec2_error("InvalidParameterValue", "The sandbox opens single ports.")
        place = 1
        while (network := call.params.get(f"{name}.IpRanges.{place}.CidrIp")) is not None:
            found.append([protocol, first, network])
            place += 1
        number += 1
    if not found:
        call.required("IpPermissions.1.IpProtocol")
        call.required("IpPermissions.1.IpRanges.1.CidrIp")
    return found


def _vpc_row(vpc: str) -> dict[str, Any]:
    return {
        "vpcId": vpc,
        "ownerId": OWNER_ID,
        "state": "available",
        "cidrBlock": _CIDR,
        "isDefault": True,
        "instanceTenancy": "default",
        "tagSet": [],
    }


def _group_row(group: dict[str, Any]) -> dict[str, Any]:
    ports: dict[tuple[str, str], list[str]] = {}
    for protocol, port, network in group["openings"]:
        ports.setdefault((protocol, port), []).append(network)
    return {
        "ownerId": OWNER_ID,
        "groupId": group["id"],
        "groupName": group["name"],
        "groupDescription": group["says"],
        "vpcId": group["vpc"],
        "ipPermissions": [
            {
                "ipProtocol": protocol,
                "fromPort": port,
                "toPort": port,
                "ipRanges": [{"cidrIp": network} for network in networks],
            }
            for (protocol, port), networks in ports.items()
        ],
        "tagSet": group["tags"],
    }
