"""What forms are made of: exact amounts, quantities, and how tolerant a part is."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from broker.domain.money import format_usd


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


Money = Annotated[
    Decimal,
    BeforeValidator(_not_bool),
    Field(allow_inf_nan=False),
    PlainSerializer(format_usd, return_type=str, when_used="json"),
]
NotNegativeMoney = Annotated[Money, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class JsonPart(BaseModel):
    """A part of a document that we also read: extra fields are tolerated and kept out."""

    model_config = ConfigDict(extra="ignore")
