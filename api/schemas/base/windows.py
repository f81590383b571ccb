"""Time windows and the use of bought windows as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.schemas.base.forms import Form
from api.schemas.base.parts import NotNegative
from broker.domain.basics.window import Segment, Window, Wish
from broker.domain.market.offer import WindowBilling
from broker.domain.planning.window_use import WindowUse


def _in_order(span: dict[str, Any]) -> dict[str, Any]:
    if span["end"] <= span["start"]:
        raise ValueError("an end after the start")
    return span


SPAN = Form(Window, name="SpanForm", about="``[start, end)``.", prepare=_in_order)
Span = Annotated[Window, SPAN]
WISH = Form(Wish, about="The requested time; ``end`` null: until released.")
SEGMENT = Form(
    Segment,
    about="``nodes`` over ``[start, end)``.",
    types={"nodes": Annotated[int, Field(ge=1)]},
    prepare=_in_order,
)
WINDOW_USE = Form(
    WindowUse,
    about="How much of a bought window is wanted and usable, what is paid for the rest, and when.",
    types={"unwanted_hours": NotNegative},
    optional={"billed": WindowBilling.AT_ORDER},
)
