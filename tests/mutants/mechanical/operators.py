"""What may be changed in a room of the framework: every place, and what stands there instead."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

DECLARATIONS = ("__init__.py", "messages.py", "events.py", "effects.py", "errors.py", "view.py")
"""Files that only declare; what they declare is compared with golden bytes elsewhere."""
SHOWN = 100

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@attrs.frozen
class Site:
    """One possible change, on the lines `line` to `last`.

    `file`: a path below `replication/`. `id` outlives edits of other functions. `number` counts a file's sites.
    """

    id: str
    file: str
    line: int
    last: int
    number: int


@attrs.frozen
class _Change:
    operator: str
    before: ast.AST
    after: ast.AST


def sites(root: Path, room: str) -> list[Site]:
    """All possible changes of the modules in `root/room` and below, in order."""
    found: list[Site] = []
    for path in sorted((root / room).rglob("*.py")):
        if path.name in DECLARATIONS:
            continue
        seen: Counter[str] = Counter()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(root).as_posix()
        for number, (name, change, _) in enumerate(_changes(tree)):
            text = f"{file}::{name}: {change.operator}: {_show(change.before)} -> {_show(change.after)}"
            seen[text] += 1
            identity = text if seen[text] == 1 else f"{text} #{seen[text]}"
            first, last = _lines(change.before)
            found.append(Site(identity, file, first, last, number))
    return found


def changed(source: str, number: int) -> ast.Module:
    """The module with its change of that number made."""
    tree = ast.parse(source)
    for index, (_, change, put) in enumerate(_changes(tree)):
        if index == number:
            put(change.after)
            return ast.fix_missing_locations(tree)
    raise IndexError(f"no change {number}: there are {index + 1}")


def _lines(node: ast.AST) -> tuple[int, int]:
    """Where a node stands; of a condition only the question, not what hangs on it."""
    place: Any = node
    return place.lineno, (place.test if isinstance(node, ast.If) else place).end_lineno


Put = Callable[[ast.AST], None]


def _changes(tree: ast.Module) -> Iterator[tuple[str, _Change, Put]]:
    """Every change in every function: where it is, what it is, and how to make it."""
    for name, function in _functions(tree, ""):
        for index, statement in enumerate(function.body):
            if _is_text(statement):
                continue
            for node, put in _walk(statement, _item_setter(function.body, index)):
                for change in _alternatives(node):
                    yield name, change, put


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child


def _walk(node: ast.AST, put: Put) -> Iterator[tuple[ast.AST, Put]]:
    """A node and all in it that is evaluated: no annotations, no text that people read."""
    yield node, put
    if isinstance(node, ast.JoinedStr | ast.Assert):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "ctx"):
            continue
        if isinstance(value, ast.AST):
            yield from _walk(value, _setter(node, field))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(item, _item_setter(value, index))


def _setter(node: ast.AST, field: str) -> Put:
    return lambda value: setattr(node, field, value)


def _item_setter(values: list[Any], index: int) -> Put:
    return lambda value: values.__setitem__(index, value)


def _alternatives(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = copy.copy(node)
        other.ops = [_COMPARE[type(node.ops[0])]()]
        yield _Change("comparison", node, other)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield _Change("off by one", node, ast.Constant(node.value + 1))
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield _Change("truth", node, ast.Constant(not node.value))
    elif isinstance(node, ast.BoolOp):
        other_bool = copy.copy(node)
        other_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _Change("and/or", node, other_bool)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _Change("negation", node, node.operand)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other_sum = copy.copy(node)
        other_sum.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield _Change("sign", node, other_sum)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.IfExp):
        yield _Change("branches", node, ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _calls(node: ast.Call) -> Iterator[_Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
        other = copy.copy(node)
        other.func = ast.Name(_EXTREMES[node.func.id], ast.Load())
        yield _Change("extreme", node, other)
    elif len(node.args) >= 2:
        first, second, *rest = node.args
        if ast.dump(first) == ast.dump(second):
            return
        swapped = copy.copy(node)
        swapped.args = [second, first, *rest]
        yield _Change("arguments", node, swapped)


def _statements(node: ast.stmt) -> Iterator[_Change]:
    if isinstance(node, ast.If):
        other = copy.copy(node)
        other.test = ast.UnaryOp(ast.Not(), node.test)
        yield _Change("condition", node, other)
    elif isinstance(node, ast.Return):
        if isinstance(node.value, ast.Compare | ast.BoolOp):
            yield _Change("answer", node, ast.Return(ast.UnaryOp(ast.Not(), node.value)))
        elif node.value is None:
            yield _Change("removed", node, ast.Pass())
    elif _has_effect(node):
        yield _Change("removed", node, ast.Pass())


def _has_effect(node: ast.stmt) -> bool:
    """Whether a statement can be left out without a name going missing."""
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Continue | ast.Break | ast.Raise)


def _show(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        node = node.test
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
