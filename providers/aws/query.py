"""The EC2 query protocol: requests with flat, numbered parameters in a form body, and answers in XML.

Answers are read safely: no entities, no external documents, namespaces dropped. An answer is
``<{Action}Response>``; lists are ``<xxxSet><item>…</item></xxxSet>``. Errors are
``<Response><Errors><Error><Code/><Message/></Error></Errors><RequestID/></Response>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.basics.window import require_utc
from providers.payload import RowRejected

VERSION = "2016-11-15"
TAG_KEY = "broker-key"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"

Params = Mapping[str, str]
PROVIDER = "aws"


def form_body(action: str, params: Params) -> bytes:
    """The encoded body of one call."""
    return urlencode({"Action": action, "Version": VERSION, **params}).encode()


def listed(name: str, values: Iterable[str]) -> dict[str, str]:
    """``Name.1``, ``Name.2`` …"""
    return {f"{name}.{number}": value for number, value in enumerate(values, start=1)}


def tagged(resource_type: str, tag: str, name: str = "TagSpecification") -> dict[str, str]:
    """The resource tag by which the broker finds its own purchases.

    ``name``: the parameter's name; CreateCapacityReservation uses the plural.
    """
    return {
        f"{name}.1.ResourceType": resource_type,
        f"{name}.1.Tag.1.Key": TAG_KEY,
        f"{name}.1.Tag.1.Value": tag,
    }


@dataclass(frozen=True, slots=True)
class Node:
    """One element of an answer, children found by their local name."""

    element: Element

    @property
    def name(self) -> str:
        """Local name."""
        return _local(self.element.tag)

    def children(self, name: str) -> Iterator[Node]:
        """Direct children of that name."""
        return (Node(child) for child in self.element if _local(child.tag) == name)

    def child(self, name: str) -> Node | None:
        """The first direct child of that name."""
        return next(self.children(name), None)

    def text(self, *path: str) -> str | None:
        """Stripped text at ``path``; None when it is missing or empty."""
        node: Node | None = self
        for name in path:
            node = node.child(name) if node is not None else None
        if node is None:
            return None
        return (node.element.text or "").strip() or None

    def need(self, *path: str) -> str:
        """Text at ``path``; RowRejected names what is missing."""
        found = self.text(*path)
        if found is None:
            raise RowRejected(f"{'/'.join(path)} is missing")
        return found

    def instant(self, *path: str) -> datetime:
        """Time at ``path`` in UTC; RowRejected when missing, unreadable or without a zone."""
        text = self.need(*path)
        try:
            return require_utc(datetime.fromisoformat(text), path[-1])
        except (ValueError, OverflowError):
            raise RowRejected(f"{'/'.join(path)} is not a time with a zone: {text!r}") from None

    def items(self, list_name: str) -> Iterator[Node]:
        """The ``item`` elements of a list; none when the list is missing."""
        holder = self.child(list_name)
        return holder.children("item") if holder is not None else iter(())

    def tag(self, key: str) -> str | None:
        """Value of the resource tag ``key`` in ``tagSet``."""
        for item in self.items("tagSet"):
            if item.text("key") == key:
                return item.text("value")
        return None


def parse_xml(payload: bytes | str) -> Node:
    """The root of an answer; PayloadUnreadable when it is not (safe) XML."""
    try:
        return Node(fromstring(payload))
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise PayloadUnreadable(PROVIDER, f"answer is not XML: {error}") from error


def parse_answer(payload: bytes | str, action: str) -> Node:
    """The root of the answer to ``action``; PayloadUnreadable when it is something else."""
    root = parse_xml(payload)
    if root.name != f"{action}Response":
        raise PayloadUnreadable(PROVIDER, f"expected {action}Response, found {root.name}")
    return root


def next_token(root: Node) -> str | None:
    """Token of the next page; a missing and an empty element both mean the end."""
    return root.text("nextToken")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
