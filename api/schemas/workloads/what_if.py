"""Questions "what if": changes of the document of a plan, each of which becomes a plan."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonpatch
from jsonpointer import JsonPointerException, resolve_pointer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.schemas.base.document import Document, describe, read_document
from api.schemas.base.given_text import require_seen
from api.schemas.base.validation import validate
from api.schemas.workloads.document_changes import operations_of
from api.schemas.workloads.policy_words import provider_expected
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import plain_digits
from broker.domain.planning.comparison import AssumedPrices
from broker.domain.planning.patch import PatchOperation
from broker.domain.workloads.document_fields import TRIMMED
from broker.provider_facts import load_provider_names

MOST_CHANGES = 20
LONGEST_NAME = 80
MOST_OPERATIONS = 200
MOST_FACTOR = 100
MOST_COPIED = 1_000_000
"""Characters that all copies of a change may add: a copy of the whole into itself doubles it."""
_ASSUMED = re.compile(r"prices(?:\.(?P<provider>[\w-]+))?\s*\*=\s*(?P<factor>\S+)")


class QuestionPart(BaseModel):
    """A part of the document: a field that is not listed is an error."""

    model_config = ConfigDict(extra="forbid")


class PatchOperationForm(QuestionPart):
    """An operation of JSON Patch (RFC 6902) on the workloads document."""

    op: Literal["add", "remove", "replace", "move", "copy", "test"]
    path: str
    from_: Annotated[str | None, Field(alias="from")] = None
    value: Any = None


class AssumedPricesForm(QuestionPart):
    """Prices to assume: ``factor`` times today's, of ``provider`` (null: of all)."""

    factor: Annotated[
        Decimal, BeforeValidator(plain_digits), Field(gt=0, le=MOST_FACTOR, allow_inf_nan=False)
    ]
    provider: str | None = None


class ChangeForm(QuestionPart):
    """One question. ``patch`` and then ``set`` change the document; ``set`` has short changes such as
    ``chat.traffic*=1.5``. Without either the document is planned again as it is. A plan with ``prices`` can
    only be compared, not bought."""

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=TRIMMED)]
    patch: Annotated[list[PatchOperationForm], Field(max_length=MOST_OPERATIONS)] = []
    set_: Annotated[list[str], Field(alias="set", max_length=MOST_OPERATIONS)] = []
    prices: AssumedPricesForm | None = None


class WhatIfForm(QuestionPart):
    """Questions about the plan ``based_on``."""

    based_on: str
    changes: Annotated[list[ChangeForm], Field(min_length=1, max_length=MOST_CHANGES)]


_FORMS_BY_FIELD: Mapping[str, type[BaseModel]] = {
    "changes": ChangeForm, "patch": PatchOperationForm, "prices": AssumedPricesForm
}  # fmt: skip


def may_ask_what_if(text: str) -> bool:
    """Whether a request's body may be a question and not a workloads document: cheap, and never wrong for a
    document that is valid.
    """
    return "based_on" in text and "changes" in text


def read_what_if(text: str) -> WhatIfForm | None:
    """The questions of a YAML or JSON text; None for a document without ``based_on``. Raises InputError."""
    document = read_document(text, "request")
    if not isinstance(document.data, dict) or "based_on" not in document.data:
        return None
    require_seen(document)
    return read_changes(document)


def read_changes(document: Document) -> WhatIfForm:
    """The questions of a document. Raises InputError."""
    asked = validate(WhatIfForm, document, _FORMS_BY_FIELD)
    problems = [*_repeated_names(document, asked), *_unknown_providers(document, asked)]
    if problems:
        raise InputError(document.source, tuple(problems))
    return asked


def _repeated_names(document: Document, asked: WhatIfForm) -> list[FieldProblem]:
    seen: set[str] = set()
    found = []
    for index, change in enumerate(asked.changes):
        if change.name in seen:
            pointer = f"/changes/{index}/name"
            found.append(document.problem(pointer, f"{change.name!r} a second time", "another name"))
        seen.add(change.name)
    return found


def _unknown_providers(document: Document, asked: WhatIfForm) -> list[FieldProblem]:
    found = []
    for index, change in enumerate(asked.changes):
        provider = None if change.prices is None else change.prices.provider
        if provider is not None and provider not in load_provider_names():
            pointer = f"/changes/{index}/prices/provider"
            found.append(document.problem(pointer, describe(provider), provider_expected(provider)))
    return found


def change_of(words: str) -> dict[str, Any]:
    """The change of a question that says ``words``, as a request has it: short changes between semicolons.

    ``prices*=1.2`` assumes dearer prices of all providers, ``prices.aws*=1.2`` of one. Raises InputError.
    """
    change: dict[str, Any] = {"name": words.strip()[:LONGEST_NAME], "set": []}
    for word in (part.strip() for part in words.split(";")):
        assumed = _ASSUMED.fullmatch(word)
        if assumed is None:
            change["set"] += [word] if word else []
        elif "prices" in change:
            raise InputError("change", (FieldProblem("", word, "prices once in a change"),))
        else:
            change["prices"] = {"factor": assumed["factor"], "provider": assumed["provider"]}
    return change


def assumed_prices(change: ChangeForm) -> AssumedPrices | None:
    """The prices that a change assumes."""
    asked = change.prices
    return None if asked is None else AssumedPrices(asked.factor, asked.provider)


def changed_document(document: str, change: ChangeForm, index: int) -> str:
    """The stored workloads document after one change, as JSON text. Raises InputError."""
    data, copied = json.loads(document), 0
    for number, operation in enumerate(change.patch):
        pointer = f"/changes/{index}/patch/{number}"
        try:
            if operation.op == "copy":
                copied += len(json.dumps(resolve_pointer(data, operation.from_ or "")))
            if copied > MOST_COPIED:
                found = f"copies of more than {MOST_COPIED:,} characters"
                raise InputError("request", (FieldProblem(pointer, found, "fewer or smaller copies"),))
            data = jsonpatch.apply_patch(data, json.dumps([_plain(operation)]), in_place=True)
        except (jsonpatch.JsonPatchException, JsonPointerException):
            found = f"{operation.op} at {describe(operation.path)}"
            expected = "an operation that the document of the plan allows (`workloads` of the plan)"
            raise InputError("request", (FieldProblem(pointer, found, expected),)) from None
    changes = operations_of(copy.deepcopy(data), change.set_, f"/changes/{index}/set")
    data = jsonpatch.apply_patch(data, json.dumps(changes))
    return json.dumps(data)


def patched(document: Any, patch: Iterable[PatchOperation]) -> Any:
    """The workloads document (plain data) after the operations of a fix."""
    operations = [
        {"op": str(one.op), "path": one.path}
        | ({} if one.value_json is None else {"value": json.loads(one.value_json)})
        for one in patch
    ]
    return jsonpatch.apply_patch(document, json.dumps(operations))


def _plain(operation: PatchOperationForm) -> dict[str, Any]:
    told = operation.model_dump(by_alias=True, exclude_unset=True)
    if operation.op in ("add", "replace", "test"):
        told["value"] = operation.value
    return told
