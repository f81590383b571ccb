"""Spans of time and the use of bought windows as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.schemas.base.parts import JsonPart, Money, SpanForm
from api.schemas.base.times import format_time
from broker.domain.basics.money import format_usd
from broker.domain.basics.window import Window
from broker.domain.planning.window_use import WindowUse


class WindowUseForm(JsonPart):
    """What of a bought window is wanted and usable, and what is paid for nothing."""

    wanted: SpanForm
    bought: SpanForm
    usable: SpanForm
    unwanted_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    unwanted_usd: Money

    def to_use(self) -> WindowUse:
        """The domain's words."""
        return WindowUse(
            self.wanted.to_window(),
            self.bought.to_window(),
            self.usable.to_window(),
            self.unwanted_hours,
            self.unwanted_usd,
        )


def span_to_document(window: Window) -> dict[str, Any]:
    """The JSON form of a window of time."""
    return {"start": format_time(window.start), "end": format_time(window.end)}


def window_use_to_document(use: WindowUse | None) -> dict[str, Any] | None:
    """The JSON form of what a bought window is used for."""
    if use is None:
        return None
    return {
        "wanted": span_to_document(use.wanted),
        "bought": span_to_document(use.bought),
        "usable": span_to_document(use.usable),
        "unwanted_hours": use.unwanted_hours,
        "unwanted_usd": format_usd(use.unwanted_usd),
    }
