"""Common types of forms: exact amounts, quantities, and parts that ignore unknown fields."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from broker.domain.basics.money import format_usd, plain_digits, to_cents


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


NotNegativeMoney = Annotated[Money, Field(ge=0, le=10**12)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class JsonPart(BaseModel):
    """A part of a document that we also read. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
