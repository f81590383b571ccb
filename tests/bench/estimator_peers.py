"""Rates of other estimators in the same run, where they are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table

SCRIPT = Path(__file__).with_name("llm_analysis_rate.py")
CALCULON = "Calculon is not beside them: it is on no package index (PyPI's calculon is another library)."


def peer_table(training: float, serving: float, llm_analysis: str | None) -> Table:
    """Estimates a second in a given layout, ours over theirs."""
    table = Table("estimator", "training/s", "serving/s", "ratio training", "ratio serving", caption=CALCULON)
    table.add_row("this core", f"{training:,.0f}", f"{serving:,.0f}", "", "")
    python = llm_analysis or (sys.executable if find_spec("llm_analysis") else None)
    found = llm_analysis_rates(python) if python else None
    if found is None:
        why = "does not run there" if python else "not installed: --llm-analysis PYTHON names one that has it"
        table.add_row("llm-analysis", why, "", "", "")
    else:
        version, theirs_training, theirs_serving = found
        table.add_row(
            f"llm-analysis {version}",
            f"{theirs_training:,.0f}",
            f"{theirs_serving:,.0f}",
            f"{training / theirs_training:.1f}",
            f"{serving / theirs_serving:.1f}",
        )
    return table


def llm_analysis_rates(python: str) -> tuple[str, float, float] | None:
    """Version, and estimates per CPU second of training and serving; None where it cannot be run."""
    try:
        done = subprocess.run([python, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return found["version"], found["training"], found["serving"]
