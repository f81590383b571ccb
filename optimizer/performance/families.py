"""Families of models, by name."""

from __future__ import annotations


def family(model: str) -> str:
    """Models that share a shape and differ in size or version: the name up to its first digit or dash."""
    word = model.lower().split("-")[0]
    return word.rstrip("0123456789.") or word
