"""``docs/workloads.md`` names every field that a workloads document may have, and its example is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from api.schemas.workloads.document_form import WorkloadsForm
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_geographies
from broker.domain.market.offer import HostKind, Tier
from broker.domain.planning.workload import Precision, ServingEngine, Survival, TrainingStack
from broker.domain.workloads.traffic import TrafficShape
from broker.domain.workloads.training_method import (
    AdapterKind,
    BaseFormat,
    Objective,
    Offload,
    OptimizerName,
    Target,
    WeightMode,
)
from tests.placement.market import T0

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text()
NAMED = set(re.findall(r"`([a-z0-9_]+)`", PAGE))

METHOD_WORDS = (Objective, AdapterKind, Target, BaseFormat, OptimizerName, Offload, WeightMode)


def test_every_field_is_named() -> None:
    schema = WorkloadsForm.model_json_schema()
    fields = {name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", ())}
    assert {"traffic", "drafted_tokens", "software", "cooldown_hours", "countries", "zones"} <= fields
    assert fields - NAMED == set()


@pytest.mark.parametrize(
    "words",
    [Precision, ServingEngine, TrafficShape, TrainingStack, Tier, HostKind, Survival, *METHOD_WORDS],
)
def test_every_word_of_a_closed_set_is_named(words: Any) -> None:
    assert {word.value for word in words} - NAMED == set()


def test_every_set_of_countries_is_named() -> None:
    assert set(load_geographies()) - NAMED == set()


def test_the_example_is_a_document() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    request = read_workloads(example, source="page", base=None, now=T0)
    assert [workload.name for workload in request.workloads] == ["finetune", "chat"]
