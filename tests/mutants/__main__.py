"""Would the tests notice? ``python -m tests.mutants --seed N [--count 150] [--room ROOM …] [--least 0]``.

Draws small damages of the modules below, plants one at a time in a copy of the tree, runs the tests that are
to notice it, the nearest first, and prints what survives and the share that was noticed. What survives is a
missing test, or a damage that changes nothing. Exit code 1: less than ``--least`` percent were noticed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.places import Place, places_of

ROOT = Path(__file__).parents[2]
COPIED = ("api", "broker", "config", "fixtures", "optimizer", "providers", "tests", "pyproject.toml")
LONGEST_S = 600.0
"""Least time that a mutant's tests have; more where its room takes long on a busy machine."""
LONGEST_SOUND_S = 3_600.0
OUTCOMES = {0: "survived", 1: "noticed", 2: "noticed", None: "endless"}
"""By pytest's exit code: a test failed, a module could not be imported; None: it took too long."""


@dataclass(frozen=True, slots=True)
class Room:
    """Modules (patterns under the root), and the tests that are to notice what is wrong in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _modules(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names.split())


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


ROOMS: Mapping[str, Room] = {
    "money": Room(
        _modules("broker/domain", "basics/money market/billing market/price_gate")
        + _modules("broker/domain/spend", "approvals budget_effects budgets charging billed_spans")
        + _modules("broker/services/spend", "approving budget_gate"),
        (
            "tests/domain",
            *_tests("focus", "focus_check validator"),
            "tests/services/test_budget_gate.py",
            *_tests("api", "budgets moves_and_budgets"),
        ),
    ),
    "stock": Room(
        _modules("broker/domain", "market/stock_pools reconciling/held_offers")
        + _modules("optimizer/placement/problem", "stock"),
        _tests("domain", "stock_pools held_offers reoptimizing") + _tests("placement", "stock"),
    ),
    "access": Room(
        _modules("broker/domain", "basics/access")
        + _modules("broker/services/accounts", "keys webhooks")
        + _modules("broker/services/spend", "approvals budgets intervals")
        + _modules("broker/services", "holding/changes moving/proposals"),
        _tests("api", "team_isolation access keys approvals budgets economics webhooks")
        + _tests("services", "keys proposals finance_access"),
    ),
    "checker": Room(
        _modules("optimizer/placement/rules", "*"),
        _tests("placement", "check_rules check_edges check_services check_facts")
        + _tests("placement", "waiting cold_starts check_mutations validity"),
    ),
    "reconciling": Room(
        _modules("broker/domain/reconciling", "ending reconciling")
        + _modules("broker/domain", "moving/moving holding/spot"),
        ("tests/domain", *_tests("services", "reconcile moves orphans vanished")),
    ),
    "formulas": Room(
        _modules("optimizer/performance", "hardware/collectives intervals serving/queueing")
        + _modules("optimizer/performance/training", "goodput memory"),
        _tests(
            "performance", "goodput memory network queueing queueing_formulas collectives intervals targets"
        )
        + _tests("properties", "goodput_physics"),
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One damage of a module, which ``room``'s tests are to notice."""

    room: str
    module: str
    place: Place

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.place.before, self.place.after))
        return f"{self.module}:{self.place.line} ({self.room}): {before} -> {after}"


def mutants_of(room: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every damage of a room's modules."""
    for pattern in ROOMS[room].modules:
        files = sorted(root.glob(pattern))
        if not files:
            raise SystemExit(
                f"room {room} names {pattern}, which is no module: mend the table of tests.mutants"
            )
        for file in files:
            module = file.relative_to(root).as_posix()
            yield from (Mutant(room, module, place) for place in places_of(file.read_bytes()))


def draw(rooms: Sequence[str], seed: int, count: int, root: Path = ROOT) -> list[Mutant]:
    """``count`` mutants, as many of each room as of any other while it has some; the same for a seed."""
    numbers = random.Random(seed)
    shuffled = []
    for room in rooms:
        mine = list(mutants_of(room, root))
        numbers.shuffle(mine)
        shuffled.append(mine)
    most = max(map(len, shuffled))
    turns = (mine[turn] for turn in range(most) for mine in shuffled if turn < len(mine))
    return [mutant for mutant, _ in zip(turns, range(count), strict=False)]


def stages(mutant: Mutant, tree: Path = ROOT) -> tuple[tuple[str, ...], ...]:
    """The files of tests of a mutant's room: those that have its module's name, then the others, if any.

    Each is one run of pytest. Most mutants end in the first, which imports little.
    """
    name = Path(mutant.module).stem
    places = [tree / test for test in ROOMS[mutant.room].tests]
    found = (sorted(place.rglob("test_*.py")) if place.is_dir() else [place] for place in places)
    files = dict.fromkeys(file for rows in found for file in rows)
    near = [file for file in files if file.stem.startswith(f"test_{name}")]
    far = [file for file in files if file not in near]
    return tuple(tuple(file.relative_to(tree).as_posix() for file in stage) for stage in (near, far) if stage)


def run_tests(tree: Path, tests: Sequence[str], longest_s: float) -> int | None:
    """pytest's exit code in ``tree``; None where it was ended, with what it had started, after its time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "repeatable"}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(longest_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _write(file: Path, content: bytes) -> None:
    """What was compiled of the module goes, as it may look as old and as long."""
    file.write_bytes(content)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def judge(mutant: Mutant, tree: Path, longest_s: float) -> str:
    """What the room's tests make of a mutant; the tree is as it was afterwards."""
    file = tree / mutant.module
    sound = file.read_bytes()
    _write(file, mutant.place.planted(sound))
    try:
        code: int | None = 0
        for files in stages(mutant, tree):
            if code == 0:
                code = run_tests(tree, files, longest_s)
    finally:
        _write(file, sound)
    if code not in OUTCOMES:
        raise SystemExit(
            f"pytest ended with {code} for {mutant}: the tests of room {mutant.room} cannot be run"
        )
    return OUTCOMES[code]


def copy_tree(target: Path) -> None:
    """The parts of the tree that tests need, without what was compiled."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--room", action="append", choices=sorted(ROOMS))
    parser.add_argument("--least", type=float, default=0.0, help="percent that must be noticed")
    asked = parser.parse_args()
    rooms = asked.room or list(ROOMS)
    mutants = draw(rooms, asked.seed, asked.count)
    outcomes = []
    with TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        longest_s = {}
        for room in dict.fromkeys(mutant.room for mutant in mutants):
            begun_s = time.monotonic()
            if run_tests(tree, ROOMS[room].tests, LONGEST_SOUND_S) != 0:
                raise SystemExit(
                    f"the tests of room {room} fail, or take over {LONGEST_SOUND_S:g} s, without any damage: "
                    f"run pytest -x {' '.join(ROOMS[room].tests)}"
                )
            longest_s[room] = max(LONGEST_S, 3.0 * (time.monotonic() - begun_s))
        for mutant in mutants:
            outcomes.append(judge(mutant, tree, longest_s[mutant.room]))
            if outcomes[-1] != "noticed":
                print(f"{outcomes[-1]}: {mutant}", flush=True)
            print(f"{len(outcomes)} of {len(mutants)}: {outcomes[-1]}", file=sys.stderr)
    noticed, endless = len(outcomes) - outcomes.count("survived"), outcomes.count("endless")
    share = 100.0 * noticed / max(1, len(outcomes))
    print(f"{noticed} of {len(outcomes)} noticed ({share:.1f} %), {endless} by the time; seed {asked.seed}")
    return 0 if share >= asked.least else 1


if __name__ == "__main__":
    raise SystemExit(main())
