"""Where a module can be damaged by one small step, and its text after that."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
CALLS = {"all": "any", "any": "all", "min": "max", "max": "min"}
GUARD = "require_"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``start`` to ``end`` of a module, which begin in ``line``, and what stands there afterwards."""

    line: int
    start: int
    end: int
    before: str
    after: str

    def planted(self, source: bytes) -> bytes:
        """The module with the damage."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def places_of(source: bytes) -> tuple[Place, ...]:
    """Every place of a module."""
    tree = ast.parse(source)
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    for node in _with_positions(tree):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        found += [Place(node.lineno, start, end, before, after) for after in _damages(node)]
    return tuple(found)


def _with_positions(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Statements and expressions; not what stands in formatted strings, whose positions are not known."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _with_positions(child)


def _damages(node: ast.expr | ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        yield from _comparisons(node)
    elif isinstance(node, ast.BinOp):
        yield from _sums(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        other = ast.Call(ast.Name(CALLS[node.func.id]), node.args, node.keywords)
        yield ast.unparse(other)
    elif isinstance(node, ast.Expr) and _is_guard(node.value):
        yield "pass"


def _comparisons(node: ast.Compare) -> Iterator[str]:
    for index, operator in enumerate(node.ops):
        if type(operator) in EDGES:
            ops = [*node.ops[:index], EDGES[type(operator)](), *node.ops[index + 1 :]]
            yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
    for index, bound in enumerate(node.comparators):
        for other in _neighbours(bound):
            bounds = [*node.comparators[:index], other, *node.comparators[index + 1 :]]
            yield f"({ast.unparse(ast.Compare(node.left, node.ops, bounds))})"


def _sums(node: ast.BinOp) -> Iterator[str]:
    text = (side.value for side in (node.left, node.right) if isinstance(side, ast.Constant))
    joined = (isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right))
    if any(isinstance(value, str) for value in text) or any(joined):
        return
    swap: Callable[[], ast.operator] | None = {ast.Add: ast.Sub, ast.Sub: ast.Add}.get(type(node.op))
    if swap is not None:
        yield f"({ast.unparse(ast.BinOp(node.left, swap(), node.right))})"
    for other in _neighbours(node.right):
        yield f"({ast.unparse(ast.BinOp(node.left, node.op, other))})"


def _neighbours(node: ast.expr) -> Iterator[ast.Constant]:
    """The number that follows a whole one."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)


def _is_guard(node: ast.expr) -> bool:
    called = node.value if isinstance(node, ast.Await) else node
    if not isinstance(called, ast.Call):
        return False
    name = called.func.attr if isinstance(called.func, ast.Attribute) else getattr(called.func, "id", "")
    return name.startswith(GUARD)
