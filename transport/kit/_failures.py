"""Kit: a failure says which promise is broken, where, and what was seen, under any test runner."""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any

from ..verdicts import shortened

_LONGEST = 200


def explain(name: str, promise: str, error: BaseException) -> str:
    """The words for a case that failed by this error."""
    leaf = _leaf(error)
    frame, line = _place(leaf)
    said = shortened(str(leaf) or _assertion(frame, line))
    what = said if isinstance(leaf, AssertionError) else f"{type(leaf).__name__}: {said}"
    where = f" ({frame.f_code.co_name}, line {line})" if frame is not None else ""
    return f"{broken(name, promise)} Seen: {what}{where}"


def broken(name: str, promise: str) -> str:
    """The case, and what a transport promises by it."""
    return f"{name}: broken is the promise: {' '.join(promise.split())}"


def _leaf(error: BaseException) -> BaseException:
    """Of a group the error that tells: a failed assertion before anything that followed from it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_leaf(each) for each in error.exceptions]
    return next((each for each in leaves if isinstance(each, AssertionError)), leaves[0])


def _place(error: BaseException) -> tuple[FrameType | None, int]:
    """The innermost frame of the kit's, and its line."""
    found: tuple[FrameType | None, int] = (None, 0)
    trace = error.__traceback__
    while trace is not None:
        if found[0] is None or ".transport.kit." in trace.tb_frame.f_globals.get("__name__", ""):
            found = trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
    return found


def _assertion(frame: FrameType | None, line: int) -> str:
    """The expression of an `assert` that says nothing itself, and the values of what stands in it."""
    statement = _statement(frame, line)
    if frame is None or statement is None:
        return "an assertion without words"
    values: dict[str, str] = {}
    for node in ast.walk(statement.test):
        text = ast.unparse(node)
        if isinstance(node, ast.Name | ast.Attribute) and text not in values:
            values[text] = _value(node, frame)
    seen = ", ".join(f"{text} = {value}" for text, value in values.items() if value)
    return f"not {ast.unparse(statement.test)}" + (f", where {seen}" if seen else "")


def _statement(frame: FrameType | None, line: int) -> ast.Assert | None:
    if frame is None:
        return None
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return node
    return None


def _value(node: ast.Name | ast.Attribute, frame: FrameType) -> str:
    """The value of a name, or of an attribute of one; nothing for functions, classes and modules."""
    path: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        path.insert(0, at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return ""
    names: dict[str, Any] = {**frame.f_globals, **frame.f_locals}
    if at.id not in names:
        return ""
    value = names[at.id]
    try:
        for name in path:
            value = getattr(value, name)
    except Exception:  # noqa: BLE001 - of a plugin's object
        return ""
    if callable(value) or type(value).__name__ == "module":
        return ""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({type(value).__name__})"
