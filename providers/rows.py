"""Rows, nodes and times of answers: helpers that many parsers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from broker.domain.basics.machines import SSH_PORT, Access
from broker.domain.basics.window import Window
from broker.domain.market.offer import OfferBatch
from broker.domain.market.sku import Fabric, Form, Sku
from broker.provider_facts import infer_intra_node
from providers.payload import (
    RowRejected,
    as_dict,
    as_list,
    decode_json,
    join_batches,
    nominal_memory_gb,
    require_price,
)
from providers.spec import NamedPayload, Parse


def rows_under(provider: str, payload: bytes, key: str) -> list[Any]:
    """The list under ``key`` of an answer that is an object; PayloadUnreadable for anything else."""
    answer = as_dict(provider, decode_json(provider, payload), "the answer")
    return as_list(provider, answer.get(key), key)


def gpu_node(
    name: str,
    gpu: str,
    gpus: int,
    form: Form | None,
    *,
    vcpus: float | None = None,
    memory_gb: float | None = None,
    disk_gb: float | None = None,
    fabric: Fabric | None = None,
) -> Sku:
    """A node of ``gpus`` cards with their nominal memory, linked as their form implies (GB of 10⁹ bytes)."""
    return Sku(
        name=name,
        gpu=gpu,
        gpus_per_node=gpus,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=vcpus,
        memory_gb=memory_gb,
        disk_gb=disk_gb,
        form=form,
        intra_node=infer_intra_node(gpu, gpus),
        fabric=fabric,
    )


def page_by_page(parse_page: Callable[[bytes, datetime], OfferBatch]) -> Parse:
    """A ``parse`` function for recorded answers that are read one by one, whatever their file names."""

    def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
        return join_batches(parse_page(body, observed_at) for _, body in payloads)

    return parse


def row_name(row: Any, key: str = "id") -> str:
    """How a row is named where it is rejected: by its value under ``key``."""
    return str(row.get(key, f"row without {key}")) if isinstance(row, dict) else "row that is no object"


def rate_of(usd_per_hour: Decimal | None, nodes: int = 1) -> Decimal | None:
    """USD per node-hour of a rate for ``nodes`` nodes; None where it is no price.

    A lease that is being created, or was stopped, may show none, or zero.
    """
    try:
        return require_price(usd_per_hour) / max(1, nodes)
    except RowRejected:
        return None


def time_text(at: datetime) -> str:
    """ISO 8601 in UTC to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def as_utc(instant: datetime) -> datetime:
    """A time in UTC; a time without a zone is taken as UTC."""
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def window_between(start: datetime | None, end: datetime | None) -> Window | None:
    """The window between two instants; None when one is missing, or when it would be empty."""
    if start is None or end is None or as_utc(end) <= as_utc(start):
        return None
    return Window(as_utc(start), as_utc(end))


_CONNECTION = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>[^@:\s]+)(?::(?P<port>\d{1,5}))?(?:\s+-p\s*(?P<option>\d{1,5}))?"
)


def access_at(connection: str, user: str) -> Access | None:
    """The way into a machine by what follows ``ssh``, such as ``root@host -p 22``; None where it is none.

    ``user``: who logs in where it names nobody.
    """
    found = _CONNECTION.fullmatch(connection.strip())
    if found is None:
        return None
    return Access(found["host"], found["user"] or user, int(found["option"] or found["port"] or SSH_PORT))
