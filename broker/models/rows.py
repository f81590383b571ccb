"""Rows of the table of named models (``config/models.csv``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.domain.workloads.model_shape import Attention, ModelShape

UNEQUAL_LAYERS = 0.05


def model_of(row: Mapping[str, str]) -> ModelShape:
    """The shape that a row of the table of models describes; an empty cell is the default of its field."""
    shape = {
        **{column: text for column, text in row.items() if text},
        "name": row["model"],
        "attention": _known_attention(row["attention"]),
        "total_params": _params(row, "total_params_b"),
        "active_params": _params(row, "active_params_b"),
        "states": _part(row, "states."),
        "index": _part(row, "index."),
        "packed": _packed(row["mixed_weights"]),
    }
    return msgspec.convert(shape, ModelShape, strict=False)


def _part(row: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The fields of an inner object, whose columns begin with its name."""
    cells = {column: text for column, text in row.items() if column.startswith(prefix) and text}
    return {column.removeprefix(prefix): text for column, text in cells.items()}


def _packed(text: str) -> dict[str, str | float] | None:
    if not text:
        return None
    precision, bytes_each, rest, *wide = text.split()
    wide_params = 1e9 * float(wide[0]) if wide else 0.0
    return {"precision": precision, "bytes_each": bytes_each, "rest": rest, "wide_params": wide_params}


def _params(row: Mapping[str, str], column: str) -> float:
    """Parameters computed from the sizes, or the published count if both differ by 5 % or more.

    They differ for models whose layers have different sizes.
    """
    counted = 1.0 - UNEQUAL_LAYERS < float(row["calc_vs_nominal"]) < 1.0 + UNEQUAL_LAYERS
    return float(row[f"{column}_calc" if counted else column]) * 1e9


def _known_attention(text: str) -> Attention:
    """The kind of attention; a hybrid model has that of its layers with a KV cache."""
    for kind in (Attention.MLA, Attention.GQA, Attention.MQA):
        if kind in text:
            return kind
    return Attention.MHA
