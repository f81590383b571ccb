"""Common types of forms: exact amounts, quantities, and parts that ignore unknown fields."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from broker.domain.basics.money import format_usd, to_cents
from broker.domain.basics.webhook import ALL_TEAMS


def plain_digits(value: Any) -> Any:
    """The value. Raises ValueError for digits of other scripts, which Decimal and int would accept."""
    if isinstance(value, str) and not value.isascii():
        raise ValueError("a number in the digits 0 to 9")
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
Cents = Annotated[
    Money, PlainSerializer(lambda usd: format_usd(to_cents(usd)), return_type=str, when_used="json")
]
"""Money in whole cents."""


def _not_everybody(team: str) -> str:
    if team == ALL_TEAMS:
        raise ValueError("the name of one team; * stands for all teams")
    return team


OneTeam = AfterValidator(_not_everybody)
NotNegativeMoney = Annotated[Money, Field(ge=0, le=10**12)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class JsonPart(BaseModel):
    """A part of a document that we also read. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
