"""Types of the fields of a workloads document: their limits, and what may stand in their place.

The dataclasses of a workload are annotated with them, so that one definition is read from documents, written
to them and told in the OpenAPI document. ``Told`` marks texts that name something; the reader of a document
puts what they name in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from broker.domain.basics.money import LARGEST_USD, plain_digits
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.workloads.model_shape import ModelShape

MOST_DAYS = 1830
MOST_HOURS = MOST_DAYS * 24
MOST_TIMES = 366
MOST_ZONES = 100
MOST_SPARES = 100
MOST_DRAFTED = 64
MOST_SPREAD = 2.0
MOST_RANK = 4096
MOST_PREMIUM = 0.5
MOST_REQUESTS_PER_S = 10**9
MOST_MEASURED_PER_S = 10**12
MOST_GB = 10**9
LONGEST_NAME = 200
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""An earliest start that excludes nothing."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._ -]*(#[0-9]+)?$"
"""One time of a workload that is repeated has a number at its end."""
TRIMMED = r"^\S([^\x00-\x1f\x7f]*\S)?$"
_TIME_OF_DAY = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


class Told(StrEnum):
    """What a text of a document names."""

    MODEL = "model"
    TIME = "time"
    GPU = "gpu"
    GPUS = "gpus"
    COUNTRY = "country"
    GEOGRAPHY = "geography"
    TAG = "tag"
    PROVIDER = "provider"
    STORAGE = "storage"
    TIME_ZONE = "time_zone"


def _number(value: Any) -> Any:
    """Accepts quoted numbers and refuses true and false."""
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, str) and len(value) <= 64 and _NUMBER.fullmatch(value):
        return float(value.replace("_", ""))
    return value


def _money(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("an amount in USD")
    return plain_digits(value).replace("_", "") if isinstance(value, str) else value


def _time_of_day(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(_TIME_OF_DAY, value):
        raise ValueError('a time of day from "00:00" to "23:59"')
    return value


def _span(value: Any) -> Any:
    told = (
        re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([mhdw])", value, re.ASCII) if isinstance(value, str) else None
    )
    span = timedelta() if told is None else float(told[1]) * _UNITS[told[2]]
    if not timedelta(minutes=1) <= span <= timedelta(days=MOST_DAYS):
        raise ValueError("a span such as 6h, 1d or 1w, of a minute at least")
    return timedelta(seconds=round(span.total_seconds()))


def _not_everybody(team: str) -> str:
    if team == ALL_TEAMS:
        raise ValueError("the name of one team; * stands for all teams")
    return team


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(GroupedMetadata):
    """Limits of a number. They are checked, and added to the JSON schema by hand, because the validator
    before them hides them there.
    """

    kind: Literal["number", "integer"] = "number"
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __iter__(self) -> Iterator[Any]:
        """The annotations for pydantic."""
        told = {
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
            "exclusiveMaximum": self.below,
        }
        yield Field(ge=self.least, gt=self.above, le=self.most, lt=self.below)
        yield WithJsonSchema({"type": self.kind, **{name: n for name, n in told.items() if n is not None}})


@dataclass(frozen=True, slots=True)
class OneOrList:
    """A list without repetitions, for which one text may stand: ``bf16`` for ``[bf16]``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda items: tuple(dict.fromkeys(items)), handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        whole = handler(schema)
        return {"anyOf": [whole, whole["items"]]}


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A list with an item. It is checked after the items, so that a wrong item alone is told."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    @staticmethod
    def _checked(items: Any) -> Any:
        if not items:
            raise PydanticKnownError("too_short", {"field_type": "List", "min_length": 1, "actual_length": 0})
        return items

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "minItems": 1}


@dataclass(frozen=True, slots=True)
class OrObject:
    """An object, for which the value of its field ``name`` may stand: ``5000`` for ``{usd: 5000}``.

    ``many``: so may a list of such values.
    """

    name: str
    kind: Literal["number", "integer", "string"] = "string"
    least: int | None = None
    many: bool = False

    def whole(self, value: Any) -> Any:
        """The object that ``value`` stands for."""
        is_short = isinstance(value, (int, float, Decimal, str)) and not isinstance(value, bool)
        return {self.name: value} if is_short or (self.many and isinstance(value, list)) else value

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        limit = {} if self.least is None else {"minimum": self.least}
        short = {"type": self.kind, **limit}
        lists = [{"type": "array", "items": short}] if self.many else []
        return {"anyOf": [handler(schema), short, *lists]}


class OneOf:
    """One of some words of a wider set."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(str(word) for word in words)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._known, handler(source))

    def _known(self, word: Any) -> Any:
        if word not in self._words:
            *rest, last = (repr(one) for one in self._words)
            raise ValueError(f"{', '.join(rest)} or {last}")
        return word

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self._words), "type": "string"}


@dataclass(frozen=True, slots=True)
class AsText:
    """An object that a document names by a text, in whose place it stands when it is validated."""

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(source)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"maxLength": LONGEST_NAME, "minLength": 1, "type": "string"}


@dataclass(frozen=True, slots=True)
class NullMeans:
    """The value that null stands for, where it is not the default."""

    value: Any


@dataclass(frozen=True, slots=True)
class ByProvider:
    """Rows by the provider's key; ``row`` is the dataclass of a row, which ``made`` has with its key."""

    row: type
    made: type

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda rows: tuple(self.made(key, row.gpus, row.nodes) for key, row in sorted(rows.items())),
            handler.generate_schema(dict[Name, self.row]),  # type: ignore[name-defined]
        )


def _nullable(schema: dict[str, Any]) -> None:
    """Tells that null may be written for what is then derived, in place of the default of the dataclass."""
    whole = {name: schema.pop(name) for name in list(schema) if name not in ("title", "default")}
    alternatives = whole["anyOf"] if set(whole) == {"anyOf"} else [whole]
    schema.update({"anyOf": [*alternatives, {"type": "null"}], "default": None})


def _needs_kind(schema: dict[str, Any]) -> None:
    """Tells that a document must say the kind, which a dataclass has by itself."""
    del schema["properties"]["kind"]["default"]
    schema["required"].append("kind")


NEEDS_KIND = ConfigDict(extra="forbid", json_schema_extra=_needs_kind)
NO_OTHER_FIELDS = ConfigDict(extra="forbid")
OrNull = Field(json_schema_extra=_nullable)
"""Null, or no such field, lets the reader of the document derive the value."""
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_number)]
AtLeastOne = Annotated[Number, Limits(least=1)]
Share = Annotated[Number, Limits(least=0, most=1)]
Spread = Annotated[Number, Limits(least=0, most=MOST_SPREAD)]
PartShare = Annotated[Number, Limits(above=0, most=1)]
Premium = Annotated[Number, Limits(least=0, most=MOST_PREMIUM)]
Days = Annotated[Number, Limits(above=0, most=MOST_DAYS)]
Hours = Annotated[Number, Limits(least=0, most=MOST_HOURS)]
SomeHours = Annotated[Number, Limits(above=0, most=MOST_HOURS)]
SomeMinutes = Annotated[Number, Limits(above=0, most=MOST_HOURS * 60)]
HourOfDay = Annotated[Number, Limits(least=0, below=24)]
BurstMinutes = Annotated[Number, Limits(above=0, most=24 * 60)]
Milliseconds = Annotated[Number, Limits(above=0)]
Gigabytes = Annotated[Number, Limits(least=0, most=MOST_GB)]
SomeGigabytes = Annotated[Number, Limits(above=0, most=MOST_GB)]
Demand = Annotated[Number, Limits(least=0, most=MOST_REQUESTS_PER_S)]
PeakDemand = Annotated[Number, Limits(above=0, most=MOST_REQUESTS_PER_S)]
Measured = Annotated[Number, Limits(above=0, most=MOST_MEASURED_PER_S)]
Count = Annotated[Whole, Limits(kind="integer", least=1, most=10**9)]
CountOrNone = Annotated[Whole, Limits(kind="integer", least=0, most=10**9)]
Times = Annotated[Whole, Limits(kind="integer", least=2, most=MOST_TIMES)]
Zones = Annotated[Whole, Limits(kind="integer", least=1, most=MOST_ZONES)]
Spares = Annotated[Whole, Limits(kind="integer", least=0, most=MOST_SPARES)]
Replicas = Annotated[Whole, Limits(kind="integer", least=0, most=MOST_SPARES)]
Rank = Annotated[Whole, Limits(kind="integer", least=1, most=MOST_RANK)]
Drafted = Annotated[Whole, Limits(kind="integer", least=1, most=MOST_DRAFTED)]
Usd = Annotated[Decimal, BeforeValidator(_money), Field(ge=0, le=int(LARGEST_USD), allow_inf_nan=False)]
DecimalShare = Annotated[Decimal, BeforeValidator(_money), Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
WorkloadName = Annotated[str, Field(min_length=1, max_length=100, pattern=NAME)]
TimeOfDay = Annotated[
    str, BeforeValidator(_time_of_day), WithJsonSchema({"pattern": _TIME_OF_DAY, "type": "string"})
]
Span = Annotated[timedelta, BeforeValidator(_span), WithJsonSchema({"type": "string"})]
TimeZone = Annotated[Name, Told.TIME_ZONE]
Team = Annotated[Name, Field(pattern=TRIMMED), AfterValidator(_not_everybody)]
Countries = Annotated[tuple[Annotated[Name, Told.COUNTRY], ...], NotEmpty(), OneOrList()]
Geographies = Annotated[tuple[Annotated[Name, Told.GEOGRAPHY], ...], NotEmpty(), OneOrList()]
Patterns = Annotated[tuple[Name, ...], NotEmpty(), OneOrList()]
Tags = Annotated[tuple[Annotated[Name, Told.TAG], ...], OneOrList()]
Keys = Annotated[tuple[Annotated[Name, Told.PROVIDER], ...], OneOrList()]
Gpu = Annotated[Name, Told.GPU]
GpuPatterns = Annotated[tuple[Annotated[Name, Told.GPUS], ...], OneOrList()]
Storage = Annotated[Name, Told.STORAGE]
NamedModel = Annotated[ModelShape, Told.MODEL, AsText()]
Moment = Annotated[datetime, Told.TIME, WithJsonSchema({"type": "string"})]


def prepared(convert: Callable[[Any], Any]) -> BeforeValidator:
    """A value that ``convert`` turns into what is validated; its ValueError says what is expected."""
    return BeforeValidator(convert)


MOST_SCRIPT = 16_000
"""The longest script in characters: sellers take 16 KiB of user data or more."""
Script = Annotated[str, Field(min_length=1, max_length=MOST_SCRIPT)]
Image = Annotated[str, Field(max_length=500, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
Variable = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(max_length=MOST_SCRIPT)]
SECRET_NAME = r"^[A-Z][A-Z0-9_]{0,63}$"  # noqa: S105  a pattern, not a secret
SecretKey = Annotated[str, Field(pattern=SECRET_NAME)]
FEW = Field(max_length=100)
Confidence = Annotated[Number, Limits(least=0.5, most=0.99)]
DrainMinutes = Annotated[Number, Limits(least=0, most=720)]
