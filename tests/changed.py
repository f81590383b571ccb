"""Runs the tests that a change may break: ``python -m tests.changed [BASE] [PYTEST_ARGUMENT …]``.

The change is what differs from where the branch left BASE (``main``), with what is not committed. A test is
run where it changed itself, or where it imports what changed, at most STEPS imports away; the nearest first,
until MOST files are chosen. Whole runs are ``make test``'s.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("api", "broker", "optimizer", "providers", "tests")
STEPS = 2
MOST = 12
SLOW_ROOMS = ("tests/bench/", "tests/e2e/", "tests/faults/", "tests/pages/", "tests/peers/")


def module_of(path: str) -> str:
    """The dotted name of a Python file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(source: str) -> Iterator[str]:
    """Dotted names that a module's text imports, and those that names of ``from`` may be."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def importers_of(sources: Mapping[str, str]) -> Mapping[str, set[str]]:
    """Files by file: who imports it. ``sources``: texts by path."""
    paths = {module_of(path): path for path in sources}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, source in sources.items():
        for name in imports_of(source):
            if name in paths:
                found[paths[name]].add(path)
    return found


def is_test(path: str) -> bool:
    """Whether pytest collects a file."""
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")


def chosen(changed: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Test files to run for changed files, those that stand nearest to the change first."""
    importers = importers_of(sources)
    level = {path for path in changed if path in sources}
    seen, tests = set(level), []
    for _ in range(STEPS + 1):
        found = sorted(path for path in level if is_test(path) and not path.startswith(SLOW_ROOMS))
        tests.extend(found)
        level = {by for path in level for by in importers.get(path, ())} - seen
        seen |= level
    return tests[:MOST]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    """Chooses and runs; pytest's exit code, 0 where nothing is to be run."""
    base = sys.argv[1] if len(sys.argv) > 1 else "main"
    (fork,) = _git("merge-base", base, "HEAD")
    changed = [*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")]
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    tests = chosen(changed, sources)
    print(f"{len(changed)} files differ from {base}; tests: {', '.join(tests) or 'none'}")
    if not tests:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", *sys.argv[2:], *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
