"""Models as JSON: what a workloads document may name, with sizes and published format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

from api.schemas.base.forms import From
from broker.domain.workloads.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model by its name, and its name at Hugging Face if it has one."""

    shape: ModelShape
    hugging_face: str | None


class ModelForm(BaseModel):
    """A model that workloads documents may name."""

    model: Annotated[
        str, From("shape.name"), Field(description="Name in documents", examples=["Llama-3.3-70B"])
    ]
    hugging_face: Annotated[
        str | None,
        Field(description="Name at Hugging Face; null: none", examples=["meta-llama/Llama-3.3-70B-Instruct"]),
    ]
    total_params: Annotated[
        float, From("shape.total_params"), Field(description="Number of parameters", examples=[7.06e10])
    ]
    active_params: Annotated[
        float, From("shape.active_params"), Field(description="Parameters that a token uses")
    ]
    context: Annotated[
        int | None,
        From(lambda one: one.shape.context or None),
        Field(description="Longest sequence in tokens, prompt and answer; null: unknown", examples=[131072]),
    ]
    published_precision: Annotated[
        str,
        From("shape.published_precision"),
        Field(description="Number format of the published weights", examples=["bf16"]),
    ]
    experts: Annotated[int, From("shape.experts"), Field(description="Routed experts; 0: a dense model")]
