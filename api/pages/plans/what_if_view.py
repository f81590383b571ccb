"""Pure functions from plans to what the pages of questions "what if" show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from markupsafe import Markup, escape

from api.pages.parts.charts import Charts, Plot, both_widths, money_axis, opened, scale_over
from api.pages.parts.words import seller
from api.schemas.base.times import find_time, parse_time
from api.schemas.plans.comparison import ComparedPlan
from api.schemas.workloads.form_fields import DOCUMENT_FIELDS, WORKLOAD_FIELDS, Entry, FormField
from broker.domain.basics.money import usd_words
from broker.ports.planning import PlanRecord

SHIFTS_H = (-96, -48, -24, -12, 12, 24, 48, 96)
FACTORS = ("0.5", "0.75", "1.5", "2")
PRICES = ("0.8", "1.2", "1.5")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DOT = 4.5


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a plan's page offers: its words, and the changes that answer it."""

    key: str
    words: str
    changes: tuple[str, ...]


def questions_of(record: PlanRecord) -> tuple[Question, ...]:
    """The questions that the document of a plan allows."""
    document = json.loads(record.document)
    horizon = document.get("horizon", {})
    starts_at = find_time(horizon.get("start"))
    ends_at = None if starts_at is None else starts_at + horizon["days"] * DAY
    found = [one for row in document.get("workloads", ()) for one in _of_workload(row, ends_at)]
    used = dict.fromkeys(p.provider for p in record.plan.placements) if record.plan is not None else {}
    found += [
        Question(f"without-{key}", f"Without {seller(key)}", (f"policy.providers.exclude+={key}",))
        for key in used
    ]
    found.append(
        Question("prices", "Prices, from 20 % less to 50 % more", tuple(f"prices*={f}" for f in PRICES))
    )
    return tuple(found)


def _of_workload(row: Mapping[str, Any], ends_at: datetime | None) -> Iterator[Question]:
    name = str(row["name"])
    if find_time(row.get("deadline")) is not None:
        shifts = [hours for hours in SHIFTS_H if _allows(row, hours * HOUR, ends_at)]
        if shifts:
            words = f"Deadline of {name}, {_shift(shifts[0])} to {_shift(shifts[-1])}"
            changes = tuple(f"{name}.deadline+={hours}h" for hours in shifts)
            yield Question(f"deadline-{name}", words, changes)
    if "traffic" in row:
        factors = tuple(f"{name}.traffic*={factor}" for factor in FACTORS)
        yield Question(f"traffic-{name}", f"Traffic of {name}, half to double", factors)
    if "slo" in row:
        both = tuple(
            f"{name}.slo.ttft_p95_ms*={factor}; {name}.slo.itl_p95_ms*={factor}" for factor in FACTORS
        )
        yield Question(f"latency-{name}", f"Latency objective of {name}, half to double", both)


def _allows(row: Mapping[str, Any], shift: timedelta, ends_at: datetime | None) -> bool:
    """Whether a shifted deadline is after the earliest start and within the horizon."""
    deadline = parse_time(row["deadline"]) + shift
    starts_at = find_time(row.get("earliest_start"))
    return (ends_at is None or deadline <= ends_at) and (starts_at is None or deadline > starts_at)


def _shift(hours: int) -> str:
    size = f"{abs(hours)} hours" if abs(hours) < 48 else f"{abs(hours) // 24} days"
    return f"{size} {'earlier' if hours < 0 else 'later'}"


@dataclass(frozen=True, slots=True)
class Point:
    """A plan on a curve: ``at`` on the axis, as ``label`` says it, and its cost in USD."""

    plan_id: str
    name: str
    at: float
    label: str
    usd: float
    is_base: bool = False


def points_of(
    base: PlanRecord, others: Sequence[PlanRecord], rows: Mapping[str, ComparedPlan]
) -> tuple[str, tuple[Point, ...]] | None:
    """The field in which the documents differ, and the plans along it in order.

    None unless there are two plans besides the base and they differ from it in one field alone (or in the
    fields of one latency objective).
    """
    documents = {record.plan_id: dict(_leaves(json.loads(record.document))) for record in (base, *others)}
    ours = documents[base.plan_id]
    changed = {
        path
        for record in others
        for path in ours.keys() | documents[record.plan_id].keys()
        if documents[record.plan_id].get(path) != ours.get(path)
    }
    if len({path.rpartition("/")[0] if "/slo/" in path else path for path in changed}) != 1:
        return None
    path = max(changed)  # of a latency objective the time to the first token
    points = []
    for record in (base, *others):
        row, value = rows[record.plan_id], documents[record.plan_id].get(path)
        place = _place(value, ours.get(path))
        if place is None or row.cost_usd is None or row.prices is not None:
            continue
        at, label = place
        is_base = record.plan_id == base.plan_id
        points.append(Point(record.plan_id, row.name, at, label, float(row.cost_usd), is_base))
    if len(points) < 3:
        return None
    return _field_words(json.loads(base.document), path), tuple(sorted(points, key=lambda one: one.at))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a document with its path; a list of numbers is one value, its largest."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}/{name}")
    elif isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
        yield path, max(value)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}/{index}")
    else:
        yield path, value


def _place(value: Any, base: Any) -> tuple[float, str] | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), f"{value:,.6g}"
    instant, origin = find_time(value), find_time(base)
    if instant is None or origin is None:
        return None
    shift = (instant - origin) / HOUR
    return shift, _shift_words(shift)


def _shift_words(hours: float) -> str:
    """``+12 h``, ``−4 d``; the base itself stands at 0."""
    if not hours:
        return "as it is"
    sign, size = "+" if hours > 0 else "−", abs(hours)
    return f"{sign}{size:g} h" if size < 48 or size % 24 else f"{sign}{size / 24:g} d"


def _field_words(document: Mapping[str, Any], path: str) -> str:
    steps = path.split("/")[1:]
    if steps[0] != "workloads":
        return _label(steps, DOCUMENT_FIELDS)
    workload = document["workloads"][int(steps[1])]
    return f"{_label(steps[2:], WORKLOAD_FIELDS[workload['kind']])} of {workload['name']}"


def _label(steps: Sequence[str], fields: Sequence[FormField]) -> str:
    """A number as the form calls it, else the path of the field in words."""
    path = "/".join(steps)
    label = next((one.label for one in fields if one.path == path and one.entry is Entry.NUMBER), None)
    if label is None:
        return " ".join(steps).replace("_", " ")
    return label[0].lower() + label[1:] if label[1].islower() else label


def cost_curve(field: str, points: Sequence[Point]) -> Charts:
    """Cost against a field of the document; each point leads to its plan."""
    return both_widths(lambda width: _curve(field, points, width))


def _curve(field: str, points: Sequence[Point], width: int, height: int = 260) -> Markup:
    plot = Plot(66, 22, width - 66 - 24, height - 22 - 30)
    costs = [point.usd for point in points]
    scale = scale_over(min(costs), max(costs))
    least, most = points[0].at, points[-1].at
    span = most - least or 1.0
    places = [
        (plot.left + plot.width * (point.at - least) / span, scale.y(plot, point.usd)) for point in points
    ]
    parts = [opened(width, height, f"Cost against {field}"), *money_axis(plot, scale)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline class="line" points="{line}"/>')
    for point, (x, y) in zip(points, places, strict=True):
        note = escape(
            f"{point.label}: {usd_words(Decimal(str(point.usd)))}" + (" (as it is)" if point.is_base else "")
        )
        look = "s5" if point.is_base else "s0"
        parts.append(
            f'<a href="/plans/{escape(point.plan_id)}"><circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" '
            f'r="{DOT:g}"><title>{note}</title></circle></a>'
            f'<text class="tick mid" x="{x:.1f}" y="{plot.bottom + 18:.1f}">{escape(point.label)}</text>'
        )
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape
