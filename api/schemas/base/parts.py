"""What forms are made of: exact amounts, quantities, and how tolerant a part is."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from api.schemas.base.times import Instant
from broker.domain.basics.money import format_usd
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window

Item = TypeVar("Item")


def plain_digits(value: Any) -> Any:
    """The value; ValueError for text with digits of other scripts, which Decimal and int read as well."""
    if isinstance(value, str) and not value.isascii():
        raise ValueError("a number, in digits 0 to 9")
    return value


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return plain_digits(value)


Money = Annotated[
    Decimal,
    BeforeValidator(_not_bool),
    Field(allow_inf_nan=False),
    PlainSerializer(format_usd, return_type=str, when_used="json"),
]


def _not_everybody(team: str) -> str:
    if team == ALL_TEAMS:
        raise ValueError("the name of one team: * is everybody")
    return team


OneTeam = AfterValidator(_not_everybody)
NotNegativeMoney = Annotated[Money, Field(ge=0, le=10**12)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PageForm(BaseModel, Generic[Item]):
    """A part of a list; ``next_cursor`` null: its end."""

    items: list[Item]
    next_cursor: str | None = None


class JsonPart(BaseModel):
    """A part of a document that we also read: extra fields are tolerated and kept out."""

    model_config = ConfigDict(extra="ignore")


class SpanForm(JsonPart):
    """``[start, end)``."""

    start: Instant
    end: Instant

    @model_validator(mode="after")
    def _in_order(self) -> SpanForm:
        if self.end <= self.start:
            raise ValueError("an end after the start")
        return self

    def to_window(self) -> Window:
        """The domain's window."""
        return Window(self.start, self.end)
