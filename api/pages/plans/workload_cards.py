"""The form of a workloads document: a card for each workload, and its fields with what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from api.schemas.base.document import MAX_SHOWN
from api.schemas.workloads.document_edit import EditedDocument, field_of
from api.schemas.workloads.form_fields import (
    DOCUMENT_FIELDS,
    WORKLOAD_FIELDS,
    Entry,
    FormField,
    beyond,
    kind_of_workload,
    pointer_to,
    shown,
    value_at,
)
from api.schemas.workloads.written_values import exact_time, meaning, start_of
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.workload import WorkloadKind

KIND_WORDS: Mapping[WorkloadKind, str] = {
    WorkloadKind.TRAINING: "Training run",
    WorkloadKind.SERVING: "Service",
    WorkloadKind.BATCH: "Batch",
}
MOST_CARDS = 20
"""A longer document is edited as text."""
AFTER = next(one for one in WORKLOAD_FIELDS[WorkloadKind.SERVING] if one.path == "starts/after")
"""The field of a service that names another workload: one of the runs of the document."""
_OF_WORKLOAD = re.compile(r"/workloads/(\d+)(?=/|$)")


@dataclass(frozen=True, slots=True)
class ShownField:
    """A field with its value; ``name`` is its JSON pointer, ``wrong`` what is wrong with the value, and
    ``meaning`` says in full what was understood.
    """

    field: FormField
    name: str
    value: str
    wrong: str = ""
    meaning: str = ""

    @property
    def id(self) -> str:
        """Its id in the page."""
        return "f" + self.name.replace("/", "-")

    @property
    def can_mean(self) -> bool:
        """Whether it is an amount, a time or the name of a run, which is said in full beneath it."""
        return self.field.entry in (Entry.NUMBER, Entry.TIME) or self.field.path == AFTER.path

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from; what the document has is always among them."""
        words = self.field.choices
        return words if not self.value or self.value in words else (*words, self.value)


@dataclass(frozen=True, slots=True)
class Understanding:
    """What the meaning of a field is told from: what was written into the form, and two times.

    ``start``: that of the horizon; None where the document says none.
    """

    written: Mapping[str, str]
    now: datetime
    start: datetime | None


@dataclass(frozen=True, slots=True)
class Card:
    """One workload: the first fields, the folded ones, other problems, and what the form does not show."""

    index: int
    kind: str
    title: str
    first: tuple[ShownField, ...]
    folded: tuple[ShownField, ...]
    problems: tuple[FieldProblem, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def is_unfolded(self) -> bool:
        """Whether the further fields are open: something is wrong in them."""
        return any(one.wrong for one in self.folded)


@dataclass(frozen=True, slots=True)
class DocumentCards:
    """The whole form. ``problems`` are those that belong to no card and to no field."""

    head: tuple[ShownField, ...]
    cards: tuple[Card, ...]
    problems: tuple[FieldProblem, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[tuple[str, str], ...]:
        """The places in the page where something is wrong, in its order: id, and what stands there."""
        found = [(one.id, one.field.label) for one in self.head if one.wrong]
        for card in self.cards:
            if card.problems:
                found.append((f"card-{card.index}", card.title))
            found += [
                (one.id, f"{card.title}: {one.field.label}") for one in card.first + card.folded if one.wrong
            ]
        return tuple(found)


def can_be_shown(document: EditedDocument) -> bool:
    """Whether every workload has a card."""
    rows = document.workloads
    return len(rows) <= MOST_CARDS and all(kind_of_workload(row) is not None for row in rows)


def build_cards(
    document: EditedDocument,
    now: datetime,
    problems: Sequence[FieldProblem] = (),
    written: Mapping[str, str] | None = None,
) -> DocumentCards:
    """The form of a document that can be shown, with each problem at its field, card or on top.

    ``written``: the fields as they were sent; beside those it says what was understood.
    """
    understood = Understanding(written or {}, now, start_of(document.data, now))
    named = [(pointer_to(one, None), one) for one in DOCUMENT_FIELDS]
    for index, row in enumerate(document.workloads):
        kind = kind_of_workload(row)
        assert kind is not None
        named += [(pointer_to(one, index), one) for one in WORKLOAD_FIELDS[kind]]
    wrong: dict[str, str] = {}
    of_card: dict[int, list[FieldProblem]] = {}
    others: list[FieldProblem] = []
    for problem in problems[:MAX_SHOWN]:
        at, card = field_of(problem.pointer, named), workload_of(problem.pointer)
        if at is not None:
            wrong[at] = "; ".join(filter(None, (wrong.get(at), f"Expected {problem.expected}")))
        elif card is not None and card < len(document.workloads):
            of_card.setdefault(card, []).append(problem)
        else:
            others.append(problem)
    cards = tuple(
        _card(document, index, wrong, of_card.get(index, ()), understood)
        for index in range(len(document.workloads))
    )
    rest = {name: value for name, value in document.data.items() if name != "workloads"}
    return DocumentCards(
        head=tuple(_shown(one, rest, None, wrong, understood) for one in DOCUMENT_FIELDS),
        cards=cards,
        problems=tuple(others),
        beyond=beyond(rest, DOCUMENT_FIELDS),
    )


def workload_of(pointer: str) -> int | None:
    """The number of the workload that a JSON pointer leads into; None for another part of the document."""
    found = _OF_WORKLOAD.match(pointer)
    return None if found is None else int(found[1])


def title_of(workload: object, index: int) -> str:
    """The name of a workload; its number where it has none."""
    return shown(value_at(workload, ("name",))) or f"workload {index + 1}"


def _card(
    document: EditedDocument,
    index: int,
    wrong: Mapping[str, str],
    problems: Sequence[FieldProblem],
    understood: Understanding,
) -> Card:
    row = document.workloads[index]
    kind = kind_of_workload(row)
    assert kind is not None
    rows = document.workloads
    runs = tuple(title_of(one, at) for at, one in enumerate(rows) if one["kind"] == WorkloadKind.TRAINING)
    known = (replace(one, choices=runs) if one is AFTER else one for one in WORKLOAD_FIELDS[kind])
    fields = [_shown(one, row, index, wrong, understood) for one in known]
    return Card(
        index=index,
        kind=KIND_WORDS[kind],
        title=title_of(row, index),
        first=tuple(one for one in fields if not one.field.folded),
        folded=tuple(one for one in fields if one.field.folded),
        problems=tuple(problems),
        beyond=beyond(row, WORKLOAD_FIELDS[kind]),
    )


def _shown(
    one: FormField, holder: object, index: int | None, wrong: Mapping[str, str], understood: Understanding
) -> ShownField:
    name, value = pointer_to(one, index), value_at(holder, one.steps)
    written = understood.written.get(name, "")
    says = meaning(one, value, written, understood.now, understood.start)
    if one.path == AFTER.path and written.strip() and value is not None and written.strip() != shown(value):
        says = f"{shown(value)}, as the run is called now"
    return ShownField(one, name, shown(value), wrong.get(name, ""), says)


def take_over(document: EditedDocument, fields: Mapping[str, str], now: datetime) -> None:
    """Puts what was written into the form's fields, named by JSON pointers, into the document.

    Words of time such as ``next friday`` become times, counted from ``now``.
    """
    before = _names_of(document)
    for one in DOCUMENT_FIELDS:
        _take(document, one, None, fields, now)
    for index, row in enumerate(document.workloads):
        kind = kind_of_workload(row)
        for one in WORKLOAD_FIELDS[kind] if kind is not None else ():
            _take(document, one, index, fields, now)
    _follow_new_names(document, before)


def _names_of(document: EditedDocument) -> list[str]:
    return [shown(value_at(row, ("name",))) for row in document.workloads]


def _follow_new_names(document: EditedDocument, before: Sequence[str]) -> None:
    """Services that start after a run name it as it is called now."""
    names = _names_of(document)
    new_names = {old: new for old, new in zip(before, names, strict=True) if old and new and old not in names}
    for index, row in enumerate(document.workloads):
        new = new_names.get(shown(value_at(row, AFTER.steps)))
        if new is not None:
            document.put(AFTER, index, new)


def _take(
    document: EditedDocument, one: FormField, index: int | None, fields: Mapping[str, str], now: datetime
) -> None:
    written = fields.get(pointer_to(one, index))
    if written is not None:
        document.put(one, index, exact_time(one, written, now))
