"""Compiled loops: what is kept on disk is that of all sources, and what is compiled ahead is what a plan
calls."""

from __future__ import annotations

import ast
import subprocess
import sys
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import NO_LIMIT, FleetLimits
from broker.ports.planning import PlanOptions
from optimizer.placement import compile_ahead, fleets
from optimizer.placement.runtime import compiled
from tests.placement.market import T0, offer, plan, planner, request, serving

LIMITS = (3, 4, NO_LIMIT)


def loops_of(package: ModuleType) -> dict[str, Any]:
    """The compiled functions of a package's modules, by name."""
    modules = [import_module(found.name) for found in iter_modules(package.__path__, package.__name__ + ".")]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "signatures") and value.__module__ == module.__name__
    }


LOOPS = loops_of(fleets)


def test_what_is_kept_is_that_of_all_sources(tmp_path: Path) -> None:
    """A function takes in others of other files: a change of any of them must compile all anew."""
    (tmp_path / "calls.py").write_text("@compiled\ndef calls(): ...")
    (tmp_path / "called.py").write_text("@compiled\ndef called(): ...")
    before = compiled.fingerprint(tmp_path)
    (tmp_path / "plain.py").write_text("def plain(): ...")
    assert compiled.fingerprint(tmp_path) == before
    (tmp_path / "called.py").write_text("@compiled\ndef called(): pass")
    assert compiled.fingerprint(tmp_path) != before
    kept = str(compiled.kept_in())
    assert kept.endswith(compiled.fingerprint(compiled.HERE))
    assert all(str(loop._cache.cache_path).startswith(kept) for loop in LOOPS.values())


def test_where_it_is_kept_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has it on a volume: its own files cannot be written."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled.kept_in.__wrapped__().parent == tmp_path


def test_what_other_sources_became_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = tmp_path / "compiled-1", tmp_path / "compiled-2"
    for folder in (mine, other):
        (folder / "placement").mkdir(parents=True)
    monkeypatch.setattr(compiled, "kept_in", lambda: mine)
    compiled.forget_others()
    assert mine.exists()
    assert not other.exists()


def test_all_is_compiled_once_before_the_first_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was installed without compiling ahead does it with the first plan, which says so."""
    monkeypatch.setattr(compiled, "kept_in", lambda: tmp_path / "kept")
    called: list[str] = []
    monkeypatch.setattr(compile_ahead, "LOOPS", {"a": lambda: called.append("a")})
    stages: list[str] = []
    options = PlanOptions(10.0, 0.01, seed=1, baselines=False)
    for _ in range(2):
        planner().plan(
            request(serving()), market(), T0, options, lambda progress: stages.append(progress.stage)
        )
    assert called == ["a"]
    assert [stage for stage in stages if stage.startswith("compiling")] == stages[:1]


def market() -> list[Offer]:
    """Six pools in as many places, two with commitments and one that is paid upfront."""
    return [
        offer("base", "1.30", min_hours=24, zone="a"),
        offer("near", "2.00", zone="b"),
        offer("owed", "0.80", nodes=3, zone="b", tier=Tier.COMMITTED, min_hours=48),
        offer("cheap", "1.00", nodes=2, zone="c"),
        offer("small", "0.40", gpu="TINY", zone="d"),
        offer("upfront", "1.10", nodes=3, zone="e", upfront_usd=Decimal("0.30")),
        offer("else", "1.20", gpu="MID", zone="f", provider="aws"),
    ]


def compiled_by_plans() -> dict[str, list[str]]:
    """What is compiled after that which was compiled ahead, by loop; printed by a process of its own."""
    for name in compile_ahead.LOOPS:
        compile_ahead.compile_one(name)
    ahead = {name: set(loop.signatures) for name, loop in LOOPS.items()}
    hourly = [1.0, 6.0, 14.0, 3.0] * 6
    for limits in (FleetLimits(pools, kinds) for pools in LIMITS for kinds in (2, NO_LIMIT)):
        for zones in (1, 2):
            services = [serving(f"s{n}", hourly, zones=zones, spare=1, fleet=limits) for n in range(2)]
            found = plan(request(*services), market(), time_limit_s=2.0, gap=0.2)
            assert not found.unplaced
    fresh = {name: set(loop.signatures) - ahead[name] for name, loop in LOOPS.items()}
    return {name: [str(one) for one in more] for name, more in fresh.items() if more}


def test_what_is_compiled_ahead_is_all_that_plans_call() -> None:
    """Else the first plan would spend seconds on it. A process of its own has compiled nothing else."""
    code = "from tests.placement import test_compiled_loops as me; print(me.compiled_by_plans())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(told.stdout.splitlines()[-1]) == {}
