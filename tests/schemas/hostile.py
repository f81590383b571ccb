"""Documents that cost much to read and say nothing, with what a refusal of each has to name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hostile:
    """A text; a word of the refusal; its line; how many parse events may be read before it."""

    name: str
    text: str
    found: str
    line: int
    events: int


def _bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 [" + ", ".join("x" * width) + "]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _merging(levels: int) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(1000)) + "}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join(['*a0'] * 100)}]}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _deepening(levels: int) -> str:
    lines = ["- &a0 [x]"] + [f"- &a{i} [*a{i - 1}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def hostile_yaml() -> list[Hostile]:
    """Each is refused by one limit."""
    return [
        Hostile("an alias bomb", _bomb(30, 10), "aliases that stand for more than 100,000", 5, 100),
        Hostile("a wide alias bomb", _bomb(3, 2000), "aliases that stand for more than 100,000", 2, 2_200),
        Hostile("merges that repeat", _merging(2000), "aliases that stand for more than 100,000", 2, 2_100),
        Hostile("aliases that deepen", _deepening(10_000), "more than 64 levels", 64, 300),
        Hostile("an alias of what it stands in", "a: &a\n  - *a\n", "within it", 2, 10),
        Hostile("flow lists in lists", "a: " + "[" * 3_900_000, "more than 600,000", 1, 0),
        Hostile("some flow lists in lists", "a: " + "[" * 500_000, "more than 64 levels", 1, 80),
        Hostile("flow mappings in mappings", "{a: " * 250_000, "more than 64 levels", 1, 150),
        Hostile("dashes on one line", "- " * 1_900_000, "more than 64 levels", 1, 80),
        Hostile("blocks in blocks", "".join(" " * i + "a:\n" for i in range(2000)), "more than 64", 65, 150),
        Hostile("a name twice", "a: 1\nb: 2\na: 3\n", "a second 'a'", 3, 12),
        Hostile("anchors", "".join(f"- &a{i} x\n" for i in range(200_000)), "1,000 anchors", 1001, 1_010),
        Hostile("a long list", "[" + "1," * 5_000_000 + "1]", "10,000,003 characters", 1, 0),
        Hostile("a long list within the size", "[" + "1," * 1_500_000 + "1]", "more than 600,000", 1, 0),
        Hostile("many lines", "- 1\n" * 900_000, "more than 600,000", 600_001, 0),
        Hostile("empty lines", "\n" * 3_900_000, "more than 600,000", 600_001, 0),
        Hostile("8 MB of workloads", "- {name: a, kind: b}\n" * 400_000, "characters", 190_477, 0),
        Hostile("a scalar", "team: a\nb: " + "x" * 3_900_000, "a value of 3,900,000", 2, 8),
        Hostile("a quoted scalar", 'team: a\nb: "' + "x" * 3_900_000 + '"', "a value of 3,900,000", 2, 8),
        Hostile("a name", "?" + " x" * 1_500_000 + "\n: 1", "a value of 2,999,999", 1, 4),
        Hostile("directives", "".join(f"%TAG !a{i}! x\n" for i in range(200_000)), "16 directives", 1, 0),
        Hostile("documents", "--- a\n" * 100_000, "a second document", 2, 8),
        Hostile("tags", "- !!python/name:os.system x\n" * 100_000, "a value tagged", 1, 1_010),
    ]  # fmt: skip


def hostile_json() -> list[tuple[str, str, str, int | None]]:
    """Name, text, a word of the refusal, its line."""
    return [
        ("lists in lists", "[" * 100_000, "more than 64 levels", 1),
        ("closed lists in lists", "[\n" * 500 + "]" * 500, "more than 64 levels", 65),
        ("objects in objects", '{"a":' * 100_000, "more than 64 levels", 1),
        ("a name twice", '{"a": 1,\n "b": {"c": 1,\n "c": 2}}', "a second 'c'", 3),
        ("a name twice, escaped", '{"a": 1,\n "\\u0061": 2}', "a second 'a'", 2),
        ("digits", "1" * 100_000, "cannot be read", None),
        ("a text without an end", '{"a": "' + "x" * 1_000_000, "malformed JSON", 1),
    ]
