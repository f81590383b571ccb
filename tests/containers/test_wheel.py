"""The wheel: what it installs beside everybody's modules, and that it works away from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import write_market

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
FOR_COMPOSE = {
    "broker.service", "grafana", "kubernetes.yaml", "nginx.conf", "prometheus.yaml", "prometheus-alerts.yaml",
    "sandbox.env",
}  # fmt: skip
"""What of ``config`` only those read who run the broker: containers, Kubernetes, systemd, a proxy."""


def ran(*arguments: str | Path, **options: object) -> str:
    """What this Python told, asked for ``arguments``."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel was installed, without what it needs."""
    made, folder = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("installed")
    ran("-m", "hatchling", "build", "-t", "wheel", "-d", made, cwd=ROOT)
    (wheel,) = made.glob("*.whl")
    ran(
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        folder,
        wheel,
    )
    return folder


def test_four_packages_stand_at_the_top_and_nothing_else(installed: Path) -> None:
    names = {path.name.partition("-")[0] for path in installed.iterdir()} - {"bin"}
    assert names == {"api", "broker", "optimizer", "providers", "gpu_capacity_broker"}


def test_data_that_installed_code_reads_travel_and_no_fixtures_of_tests(installed: Path) -> None:
    data = installed / "broker" / "data"
    assert {path.name for path in (ROOT / "config").iterdir()} - FOR_COMPOSE == {
        path.name for path in (data / "config").iterdir()
    }
    assert {path.name for path in (data / "fixtures").iterdir()} == {"examples", "market"}
    assert {path.name for path in (ROOT / "docs").iterdir()} - {"site"} == {
        path.name for path in (data / "docs").iterdir()
    }


HELP = """
from api.pages.help.documentation import FOLDER, Documentation
pages = Documentation({})
assert FOLDER.is_relative_to(__import__("sys").argv[1]), FOLDER
print(len([pages.render(one.path) for part in pages.chapters for one in part.entries]))
"""


def test_its_pages_of_help_are_whole(installed: Path, tmp_path: Path) -> None:
    told = ran("-c", HELP, installed, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)})
    assert int(told) > len(list((ROOT / "docs").rglob("*.md")))


WORK = """
import sys
from api.cli.main import main
from api.cli.installation.up import BUNDLED
from providers.sandbox.market import recorded_prices
assert recorded_prices("lambda") and BUNDLED.is_file()
assert BUNDLED.is_relative_to(sys.argv.pop(1))
main()
"""


def test_it_plans_a_bundled_example_away_from_the_repository(installed: Path, tmp_path: Path) -> None:
    """Its loops are not compiled, as that takes a minute of the planner's."""
    example = installed / "broker" / "data" / "fixtures" / "examples" / "quickstart.yaml"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    market = write_market(tmp_path)
    told = ran(
        "-c", WORK, installed, "plan", example, "--market", market, "--time-limit", "1", "--json",
        cwd=tmp_path, env={**kept, "PYTHONPATH": str(installed), "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert json.loads(told)["placements"]
