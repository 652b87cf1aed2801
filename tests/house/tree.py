"""The files of the tree: lines, folders, comments, circles of imports, and tests that reach for private names."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import PurePath

import grimp

from .scope import PRODUCT, TESTS, Row, Tree, most, share

SIMULATION = "replication/simulation"
COMMENTED = ("leader", "serving", "connection", "_sender", "_log_writer")
"""Modules in which the order of statements matters, by the names of their files."""
PACKAGES = ("insync", "insync.plugins")
LARGEST_HARMLESS = 3
"""Modules of a circle that a reader keeps in mind."""
_NAMES = re.compile(r"\w+(?=,|$)")
"""Of an import, on one line."""
_FOR_TOOLS = re.compile(r"#\s*(noqa|type:|pragma)")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines(tree: Tree) -> Iterator[Row]:
    """Lines of Python and C as `wc -l` counts them, blank lines and comments among them."""
    for name, folders in (("lines", PRODUCT), ("simulation lines", (SIMULATION,))):
        counts: Counter[str] = Counter()
        for file in tree.under(*folders, endings=(".py", ".c", ".h")):
            counts[str(PurePath(file).parent)] += tree.text(file).count("\n")
        yield Row(name, counts.total(), "lines", most(counts))


def folders(tree: Tree) -> Iterator[Row]:
    """Python files that lie side by side in the fullest folder; `behind` has the five fullest."""
    for name, rooms in (("fullest folder", PRODUCT), ("fullest test folder", TESTS)):
        counts = Counter(str(PurePath(file).parent) for file in tree.under(*rooms))
        yield Row(name, max(counts.values(), default=0), "files", most(counts)[:5])


def comments_and_code(source: str) -> tuple[int, int]:
    """Lines with a `#` comment for readers, and lines with code. A line may be both; docstrings are neither."""
    comments: set[int] = set()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _FOR_TOOLS.match(token.string):
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(comments), len(code)


def comments(tree: Tree) -> Iterator[Row]:
    """Comment lines to code lines: of the product, and of the files of each name in `COMMENTED`.

    A module counts under its name with and without the leading underscore.
    """
    counted = {file: comments_and_code(tree.text(file)) for file in tree.under(*PRODUCT)}
    yield _commented("comments", counted)
    for name in COMMENTED:
        plain = name.lstrip("_")
        own = {file: each for file, each in counted.items() if PurePath(file).stem.lstrip("_") == plain}
        yield _commented(f"comments in {plain}", own)


def _commented(name: str, counted: Mapping[str, tuple[int, int]]) -> Row:
    comments, code = (sum(each[at] for each in counted.values()) for at in (0, 1))
    behind = tuple(f"{each[0]} to {each[1]} {file}" for file, each in counted.items())
    return Row(name, round(comments / code, 3) if code else 0.0, "comment lines to a code line", behind)


def circles(*packages: str) -> Row:
    """Sets of modules that all import one another, directly or not.

    A package's `__init__` is a module; imports for type checking and within functions count.
    """
    graph = grimp.build_graph(*packages, cache_dir=None)
    # The graph has no compiled modules: an import of one from its package counts there as one of the package.
    for module in graph.modules:
        for package in graph.find_modules_directly_imported_by(module):
            if module.startswith(f"{package}."):
                said = graph.get_import_details(importer=module, imported=package)
                names = [name for each in said for name in _NAMES.findall(each["line_contents"])]
                if all(_is_compiled(f"{package}.{name}") for name in names):
                    graph.remove_import(importer=module, imported=package)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {
        frozenset({module, *(other for other in imported if module in above[other])})
        for module, imported in above.items()
    }
    large = sorted((circle for circle in found if len(circle) > LARGEST_HARMLESS), key=len, reverse=True)
    behind = tuple(f"{len(circle)}: {' '.join(sorted(circle))}" for circle in large)
    return Row("circles", len(large), f"of more than {LARGEST_HARMLESS} modules", behind)


def _is_compiled(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def private_imports(module: ast.AST, stems: Set[str]) -> list[str]:
    """Underscore modules of the product that a test imports; `stems` are the names of the product's modules."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [
                node.module,
                *(f"{node.module}.{each.name}" for each in node.names if each.name in stems),
            ]
        else:
            continue
        found += [
            name for name in names if name.startswith("insync.") and any(map(_is_private, name.split(".")))
        ]
    return found


def private_uses(function: ast.AST) -> list[str]:
    """Attributes with an underscore that a test function takes from anything but `self`."""
    return [
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and _is_private(node.attr)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def privacy(tree: Tree) -> Iterator[Row]:
    """Python files of the tests that import an underscore module; test functions that use underscore attributes."""
    stems = {PurePath(file).stem for file in tree.under(*PRODUCT)}
    importing: list[str] = []
    using: list[str] = []
    files = functions = 0
    for file in tree.under(*TESTS):
        files += 1
        module = ast.parse(tree.text(file))
        names = private_imports(module, stems)
        if names:
            importing.append(f"{file}: {' '.join(sorted(set(names)))}")
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                functions += 1
                uses = private_uses(node)
                if uses:
                    using.append(f"{file}::{node.name}: {' '.join(sorted(set(uses)))}")
    yield Row(
        "underscore imports", share(len(importing), files), f"% of {files:,} test files", tuple(importing)
    )
    yield Row(
        "private names", share(len(using), functions), f"% of {functions:,} test functions", tuple(using)
    )


def rows(tree: Tree) -> list[Row]:
    """All figures of this module; `circles` is of the installed package."""
    return [*lines(tree), *folders(tree), circles(*PACKAGES), *privacy(tree), *comments(tree)]
