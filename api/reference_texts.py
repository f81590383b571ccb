"""The reference as Markdown, made from the code: settings, events, fields of workloads documents, constants.

The server renders the pages beside the written ones (``pages/help``); the documentation's site does too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from api.schemas.base.field_descriptions import description_of
from api.schemas.workloads.document_form import WorkloadsForm
from api.setting_list import own_settings, settings_of
from broker.catalogue import load_events
from broker.domain.basics.webhook import FAMILIES
from broker.ports.planning import PlanState
from optimizer.calibration.sourced_constants import sourced_constants
from providers.registry import SPECS


def settings_page() -> str:
    """Every setting of the broker and of each provider, with its default and its meaning."""
    lines = [
        "# Settings",
        "",
        "A setting is an environment variable, or a name in `broker.toml` without the prefix `BROKER_` and",
        "in small letters. The environment wins. A setting that is given but empty is refused.",
        "`broker settings` prints what is given.",
        "",
        *table(
            ("variable", "kind", "default", "limits", "means"),
            (
                (f"`{one.variable}`", one.kind, _code(one.default), one.limits, one.says)
                for one in own_settings()
            ),
        ),
    ]
    for spec in sorted(SPECS.values(), key=lambda one: one.title.lower()):
        rows = ((f"`{one.variable}`", one.kind, _code(one.default), one.says) for one in settings_of(spec))
        lines += ["", f"## {spec.title}", "", *table(("variable", "kind", "default", "means"), rows)]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def events_page() -> str:
    """Every event, by family, with what it tells of; and the events of a plan that is being made."""
    told = load_events()
    lines = [
        "# Events",
        "",
        "Each change is an entry of the audit trail (`GET /v1/audit`) and an event for webhooks. A webhook",
        "names patterns, such as `plan.*`. [Webhooks](../finance.md#webhooks) describes the message, its",
        "signature and how it is repeated.",
        "",
    ]
    for family in FAMILIES:
        names = sorted(name for name in told if name.startswith(f"{family}."))
        lines += [f"## `{family}`", "", *table(("event", "means"), ((f"`{n}`", told[n]) for n in names)), ""]
    lines += [
        "## The stream of a plan",
        "",
        "`GET /v1/plans/{plan_id}/events` streams server-sent events while a plan is made. Each has",
        "a `state`:",
        f"{', '.join(f'`{state}`' for state in PlanState)}.",
        "While the search runs an event has `stage`, `seconds`, `incumbent_usd`, `bound_usd` and `gap`. The",
        "last one has `status` and `cost_usd`, or `problem`.",
        "",
    ]
    return "\n".join(lines)


def workloads_page() -> str:
    """Every form of the workloads document with its fields, from its JSON schema."""
    schema = WorkloadsForm.model_json_schema()
    lines = [
        "# Fields of the workloads document",
        "",
        "[The workloads document](../workloads.md) explains the fields. This page lists them with their",
        "types and limits.",
        "",
    ]
    forms = {"WorkloadsForm": schema, **schema["$defs"]}
    for name, form in forms.items():
        if "properties" not in form:
            continue
        needed = form.get("required", ())
        rows = (
            (
                f"`{field}`",
                _kind(part),
                "needed" if field in needed else _json_default(part),
                part.get("description") or description_of(f"Workloads.{name}", field),
            )
            for field, part in form["properties"].items()
        )
        lines += [f"## {_noun(name)}", "", cell(form.get("description")), ""]
        lines += [*table(("field", "type and limits", "default", "means"), rows), ""]
    words = {name: form["enum"] for name, form in forms.items() if "enum" in form}
    for name, values in words.items():
        lines += [f"## {_noun(name)}", "", "One of " + ", ".join(f"`{value}`" for value in values) + ".", ""]
    return "\n".join(lines)


def _noun(form: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", form.removesuffix("Form")).capitalize()


def _kind(part: Mapping[str, Any]) -> str:
    for joint in ("anyOf", "oneOf"):
        if joint in part:
            return " or ".join(_kind(one) for one in part[joint])
    if "$ref" in part:
        noun = _noun(part["$ref"].rsplit("/", 1)[1])
        return f"[{noun}](#{noun.lower().replace(' ', '-')})"
    if "enum" in part or "const" in part:
        return ", ".join(f"`{value}`" for value in part.get("enum", (part.get("const"),)))
    if part.get("type") == "array":
        return f"list of {_kind(part['items'])}"
    if "additionalProperties" in part:
        return f"by name: {_kind(part['additionalProperties'])}"
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {_plain(part[word])}" for word, sign in signs if word in part]
    if "maxLength" in part:
        limits.append(f"{part['maxLength']} characters at most")
    return ", ".join([part.get("type", "anything"), *limits])


def _plain(figure: float) -> str:
    return f"{figure:,.10g}"


def _json_default(part: Mapping[str, Any]) -> str:
    value = part.get("default")
    if value is None or value in ([], {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def constants_page() -> str:
    """Every constant of the performance core: prior, fitted value, source."""
    lines = [
        "# Constants of the performance core",
        "",
        "`broker perf constants` prints the same. *Prior → fitted*: an arrow where the fit moved the prior.",
        "Sources in brackets are named at the head of `config/performance.toml`; `[prior]` marks an estimate",
        "that no publication gives.",
        "[Equations](../performance-reference.md) shows what each is used for.",
        "",
    ]
    for group, members in groupby(sourced_constants(), key=lambda constant: constant.group):
        rows = ((f"`{one.name}`", one.value_words, one.source) for one in members)
        lines += [f"## {group}", "", *table(("constant", "prior → fitted", "source"), rows), ""]
    return "\n".join(lines)


def table(header: tuple[str, ...], rows: Iterable[Sequence[str | None]]) -> list[str]:
    """A table in Markdown."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def cell(text: str | None) -> str:
    """A text as a cell of a table."""
    return " ".join((text or "").replace("|", "\\|").split())


REFERENCE_TEXTS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings": settings_page,
        "workloads": workloads_page,
        "events": events_page,
        "constants": constants_page,
    }
)
"""Every page by its name."""
