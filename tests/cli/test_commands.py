"""The table of commands, their help, and the table of exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from api.cli.application import BrokerGroup
from api.cli.errors import EXIT_CODES, ExitCode, exit_code_of
from broker.domain.basics import errors
from tests.cli.running import ROOT, broker

COMMANDS = [*BrokerGroup.entries]
SUBCOMMANDS = [
    ("perf", "predict"),
    ("perf", "evaluate"),
    ("perf", "calibrate"),
    ("providers", "list"),
    ("providers", "parse"),
]
LEAVES = [(name,) for name in COMMANDS if name not in {"perf", "providers"}] + SUBCOMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str) -> None:
    assert importlib.import_module(BrokerGroup.entries[name].module).app is not None


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_the_help_of_each_command_shows_an_example(command: tuple[str, ...]) -> None:
    told = broker(*command, "--help")
    assert told.exit_code == 0
    assert "Example:" in told.stdout
    assert f"broker {' '.join(command)}" in " ".join(told.stdout.split())


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from api.cli.application import app;"
        "print(CliRunner().invoke(app, ['--help']).exit_code,"
        "[m for m in ('ortools', 'numpy', 'sqlalchemy', 'fastapi', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == "0 []"


def test_a_command_is_loaded_without_garbage_collections() -> None:
    """With them, and with them over what was loaded, the start of a server took two thirds longer."""
    code = (
        "import gc; from typer.testing import CliRunner; from api.cli.application import app;"
        "count = lambda: sum(one['collections'] for one in gc.get_stats()); before = count();"
        "print(CliRunner().invoke(app, ['poll', '--help']).exit_code, count() - before, gc.isenabled(),"
        "gc.get_freeze_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    exit_code, collections, goes_on, frozen = done.stdout.split()
    assert (exit_code, goes_on) == ("0", "True")
    assert int(collections) < 100, "more than five hundred with them"
    assert int(frozen) > 10_000


def test_the_version_is_told() -> None:
    assert broker("--version").stdout.startswith("broker ")


def concrete_errors() -> list[type[errors.BrokerError]]:
    """Every error of the domain."""
    found, queue = [], [errors.BrokerError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return found


INTERNAL = {
    errors.BrokerError,
    errors.LeadershipLost,
    errors.StoreUnavailable,
    errors.PlanInvalid,
    errors.PlannerDied,
    errors.PlannerOutOfMemory,
}


@pytest.mark.parametrize("kind", concrete_errors(), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code(kind: type[errors.BrokerError]) -> None:
    listed = any(issubclass(kind, known) for known, _ in EXIT_CODES)
    assert listed or kind in INTERNAL


def test_special_errors_stand_before_general_ones() -> None:
    assert exit_code_of(errors.CredentialsRejected("p", "no")) is ExitCode.CREDENTIALS
    assert exit_code_of(errors.InsufficientCapacity("p", "none left")) is ExitCode.PROVIDER
    assert exit_code_of(errors.StalePlan("moved")) is ExitCode.CONFLICT
    assert exit_code_of(errors.NotFound("plan", "x")) is ExitCode.NOT_FOUND
    assert exit_code_of(errors.ApprovalRequired("finance")) is ExitCode.MONEY
    assert exit_code_of(errors.BrokerError("?")) is ExitCode.UNEXPECTED
