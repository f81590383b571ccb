from __future__ import annotations

import pickle
import tomllib
from typing import Any

import pytest

from optimizer.calibration.sourced_constants import sourced_constants
from optimizer.calibration.table_constants import load_table_constants
from optimizer.performance.constants.calibrated import (
    CONFIG,
    load_calibration,
    parse_calibration,
    whole_classes,
)
from tests.bench.calibration.fit import read_parameters


def document() -> dict[str, Any]:
    return tomllib.loads(CONFIG.read_text())


def test_every_constant_has_a_source() -> None:
    data = document()
    for group, table in data.items():
        if not isinstance(table, dict) or group in {
            "software_by_framework",
            "engine_by_name",
            "client_by_name",
        }:
            continue
        entries = (
            table.items()
            if group not in {"software", "engines", "clients", "usual", "benchmarks"}
            else [e for t in table.values() for e in t.items()]
        )
        for name, entry in entries:
            assert entry["source"].strip(), f"{group}.{name}"


def test_a_class_repeats_nothing_that_is_usual() -> None:
    """What the fit may move stands in its class all the same."""
    data = document()
    fitted = {parameter.path for group in ("training", "serving") for parameter in read_parameters(group)}
    repeated = [
        f"{kind}.{name}.{key}"
        for kind, usual in data["usual"].items()
        for name, table in data[kind].items()
        for key, entry in table.items()
        if entry == usual.get(key) and f"{kind}.{name}.{key}" not in fitted
    ]
    assert repeated == []


def test_a_class_has_its_own_entries_then_those_of_its_base_then_the_usual_ones() -> None:
    data = document()
    whole = whole_classes(data, "engines")
    older = data["engines"]["rocm_v0"]
    assert older["inherits"]["value"] == "rocm"
    assert whole["rocm_v0"]["client_overhead_s"] == older["client_overhead_s"]
    assert whole["rocm_v0"]["burst_s"] == data["engines"]["rocm"]["burst_s"]
    assert whole["rocm_v0"]["step"] == data["usual"]["engines"]["step"]


def test_a_missing_or_unknown_constant_is_named() -> None:
    data = document()
    del data["compute"]["hbm_share"]
    with pytest.raises(ValueError, match=r"\[compute\].*hbm_share"):
        parse_calibration(data)
    data = document()
    data["memory"]["extra"] = {"value": 1.0, "source": "x"}
    with pytest.raises(ValueError, match=r"\[memory\].*extra"):
        parse_calibration(data)


def test_a_constant_without_source_is_refused() -> None:
    data = document()
    data["goodput"]["warm_up_s"] = {"value": 1.0}
    with pytest.raises(ValueError, match="warm_up_s: no source"):
        parse_calibration(data)


def test_one_constant_can_be_changed_for_a_fit() -> None:
    before = load_calibration()
    after = before.with_values({"serving.hbm_share_kv": 0.5, "software.tuned.slowdown": 2.0})
    assert after.serving.hbm_share_kv == 0.5
    assert after.software["tuned"].slowdown == 2.0
    assert before.software["tuned"].slowdown != 2.0
    assert after.value("software.tuned.slowdown") == 2.0
    assert pickle.loads(pickle.dumps(after)) == after


def test_classes_of_software_follow_the_one_they_are_like() -> None:
    before = load_calibration()
    after = before.with_values({"software.fsdp.logit_bytes_moved": 21.0, "software.fsdp.slowdown": 1.5})
    assert after.software["fsdp_2022"].logit_bytes_moved == 21.0
    assert after.software["fsdp_2022"].slowdown == before.software["fsdp_2022"].slowdown, "its own"
    own = before.with_values({"software.tuned.routed_share": 0.9, "software.tuned_2026.routed_share": 0.4})
    assert own.software["tuned_2026"].routed_share == 0.4
    assert own.software["megatron_lm"].routed_share == 0.9


def test_older_releases_of_an_engine_follow_the_newer_ones() -> None:
    after = load_calibration().with_values(
        {"engines.tensorrt_llm.prefill": 2.0, "engines.tensorrt_llm.decode_roofline_factor": 3.0}
    )
    old = after.engines["tensorrt_llm_v0"]
    assert (old.prefill, after.engines["vllm"].prefill) == (2.0, load_calibration().engines["vllm"].prefill)
    assert old.decode_roofline_factor != 3.0, "its own"


def test_frameworks_map_to_software_classes() -> None:
    calibration, words = load_calibration(), load_table_constants()
    assert words.software_of("Megatron-LM 2022 +sequence-parallel") == "megatron_2022"
    assert words.software_of("llm-foundry/Composer") == "fsdp"
    assert words.software_of("something new") == calibration.default_software
    assert set(words.software_by_framework.values()) <= set(calibration.software)


def test_every_engineering_prior_of_training_gives_a_reason() -> None:
    groups = {"compute", "network", "memory", "goodput"}
    found = [c for c in sourced_constants() if c.group in groups or c.group.startswith("software.")]
    priors = [constant for constant in found if "[prior]" in constant.source]
    assert len(priors) > 30
    assert not [f"{c.group}.{c.name}" for c in priors if len(c.source) < 20]
