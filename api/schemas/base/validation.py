"""Turns pydantic's errors into our problems: field, found, expected, line and column."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from api.schemas.base.document import MAX_SHOWN, Document, describe, input_error, pointer_of
from broker.domain.basics.errors import FieldProblem
from broker.domain.workloads.document_fields import NAME, TRIMMED

NEAR_ENOUGH = 0.7
"""A slip of a field's name; ``vcpus`` is none of ``gpus``."""
MOST_DETAILED = MAX_SHOWN + 1
"""Problems that are told in full, each with its nearest word; one more than is shown, so that it is known."""
Form = TypeVar("Form", bound=BaseModel)
Read = TypeVar("Read")

THIS_FIELD = "this field"
"""What is expected where a field is missing."""
_PHRASES: Mapping[str, str] = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "finite_number": "a finite number",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "value_error": "{error}",
    "missing": THIS_FIELD,
    "extra_forbidden": "no such field",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "float_type": "a number",
    "float_parsing": "a number",
    "decimal_type": "an amount in USD",
    "decimal_parsing": "an amount in USD",
    "decimal_max_digits": "an amount of at most {max_digits} digits",
    "decimal_max_places": "an amount of at most {decimal_places} decimals",
    "decimal_whole_digits": "an amount of at most {whole_digits} digits before the point",
    "string_type": "text",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_unicode": "text that can be encoded in UTF-8",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "model_attributes_type": "an object",
    "timezone_aware": "a time with its zone such as 2026-11-23T00:00:00Z",
    "datetime_parsing": "a time such as 2026-11-23T00:00:00Z",
    "datetime_from_date_parsing": "a time such as 2026-11-23T00:00:00Z",
    "date_type": "a date such as 2026-11-23",
    "date_parsing": "a date such as 2026-11-23",
    "date_from_datetime_parsing": "a date such as 2026-11-23",
    "date_from_datetime_inexact": "a date such as 2026-11-23",
    "datetime_type": "a time such as 2026-11-23T00:00:00Z",
}
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
PATTERNS: Mapping[str, str] = {
    PRINTABLE: "text without control characters",
    NAME: "letters, digits, '.', '_', '-' and spaces, a letter or digit first",
    TRIMMED: "one line of text without spaces at its ends",
}
_KIND_TAGS = frozenset({"training", "serving", "batch"})


def validate(
    form: type[Form], document: Document, forms_by_field: Mapping[str, type[BaseModel]] | None = None
) -> Form:
    """``document`` as ``form``. Raises InputError with every problem found.

    ``forms_by_field`` maps a field name to the form of its value, so that a message about a wrong name can
    suggest the nearest right one.
    """
    return validated(form.model_validate, document, {"": form, **(forms_by_field or {})})


def validated(
    read: Callable[[Any], Read],
    document: Document,
    forms_by_field: Mapping[str, type[BaseModel]] | None = None,
) -> Read:
    """The result of ``read`` on the document's data. Raises InputError with every problem that pydantic
    finds.
    """
    try:
        return read(document.data)
    except ValidationError as error:
        problems = list(problems_of(error, document, forms_by_field))
        raise input_error(document.source, problems, further=further_of(error)) from None


def problems_of(
    error: ValidationError,
    document: Document,
    forms_by_field: Mapping[str, type[BaseModel]] | None = None,
    under: tuple[str | int, ...] = (),
) -> Iterator[FieldProblem]:
    """The first problems of ``error``, from validating the part of ``document`` at the path ``under``."""
    for details in error.errors(include_url=False)[:MOST_DETAILED]:
        yield _problem(document, details, forms_by_field or {}, under)


def further_of(error: ValidationError) -> int:
    """The number of problems that ``problems_of`` does not tell."""
    return max(0, error.error_count() - MOST_DETAILED)


def _problem(
    document: Document,
    details: ErrorDetails,
    forms: Mapping[str, type[BaseModel]],
    under: tuple[str | int, ...],
) -> FieldProblem:
    location = details["loc"]
    pointer = pointer_of(*under, *without_tags(location))
    if details["type"] == "extra_forbidden":
        name = str(location[-1])
        return document.problem(pointer, f"unknown field {name!r}", _expected_fields(name, location, forms))
    if details["type"].startswith("union_tag"):
        pointer = f"{pointer}/kind"
        return document.problem(pointer, describe(document.value_at(pointer)), "training, serving or batch")
    found = "nothing" if details["type"] == "missing" else describe(details["input"])
    return document.problem(pointer, found, expected_of(details))


def without_tags(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A location in the document: drops the union tag that pydantic puts after the index of a workload."""
    if len(location) > 2 and location[0] == "workloads" and location[2] in _KIND_TAGS:
        return (*location[:2], *location[3:])
    return location


def expected_of(details: Mapping[str, Any]) -> str:
    """What is expected where pydantic reports an error."""
    phrase = _PHRASES.get(details["type"])
    if phrase is None:
        return str(details["msg"])
    context: dict[str, Any] = details.get("ctx", {})
    if context.get("min_length") == 1 and details["type"] == "string_too_short":
        return "text that is not empty"
    if context.get("pattern") in PATTERNS:
        return PATTERNS[context["pattern"]]
    return phrase.format(**context)


def _expected_fields(name: str, location: tuple[str | int, ...], forms: Mapping[str, type[BaseModel]]) -> str:
    parents = [token for token in location[:-1] if isinstance(token, str)]
    form = next((forms[name] for name in reversed(["", *parents]) if name in forms), None)
    if form is None:
        return "no such field"
    fields = list(form.model_fields)
    near = difflib.get_close_matches(name, fields, n=1, cutoff=NEAR_ENOUGH)
    return f"the field {near[0]!r}" if near else f"one of {', '.join(fields)}"
