"""Sentences that begin with a free relative: in docstrings, error texts and pages.

A text is cut into blocks (paragraphs, list items, table cells, headings). A block is cut into sentences behind `.`,
`!` or `?` and before anything but a small letter. A sentence has three words or more. Fenced code is no text.

The first word decides: what, whatever, who, whoever, whom, whomever, whose, which, whichever. Two words decide for
"so many" and "so much", and for "that" before a word that begins a clause or a noun phrase (`CLAUSES`): "That the
log is open" counts; "That is why" and "That file" do not. A question, which ends in `?`, never counts.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator

from .scope import PRODUCT, Row, Tree, share

CLAUSES = r"""(?:a|all|an|any|both|each|every|he|i|it|its|most|no|nobody|none|not|nothing|one|some|the|their|there|
    these|they|this|those|we|what|which|who|you)"""
_FREE_RELATIVE = re.compile(
    rf"(?:what(?:ever)?|who(?:ever|m|mever|se)?|which(?:ever)?|so\ (?:many|much)|that\ {CLAUSES})\b", re.X
)
_FENCED = re.compile(r"^ *```.*?^ *```", re.S | re.M)
_BLOCKS = re.compile(r"\n\s*\n|\||^\s*(?:[-*+>]|\d+\.|#+)\s", re.M)
_ENDS = re.compile(r"(?<=[.!?])[)\"'`*_]*\s+(?![a-z])")
_MARKS = re.compile(r"[^\w\s'{}]+")
_CLOSING = "*_`\"')"


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring, an error text or a page."""
    for block in _BLOCKS.split(_FENCED.sub("\n\n", text)):
        for sentence in _ENDS.split(block):
            words = sentence.split()
            if len(words) >= 3:
                yield " ".join(words)


def begins_with_free_relative(sentence: str) -> bool:
    """Decides by the rule of this module."""
    is_question = sentence.rstrip(_CLOSING).endswith("?")
    words = " ".join(_MARKS.sub(" ", sentence.lower()).split())
    return not is_question and _FREE_RELATIVE.match(words) is not None


def docstrings(module: ast.AST) -> Iterator[str]:
    """Strings that are statements: docstrings, and comments in the form of strings."""
    for node in ast.walk(module):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield inspect.cleandoc(text)


def error_texts(module: ast.AST) -> Iterator[str]:
    """Strings among the arguments of a raised call. `{}` stands for a value in them."""
    for node in ast.walk(module):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                match argument:
                    case ast.Constant(value=str(text)):
                        yield text
                    case ast.JoinedStr():
                        yield "".join(
                            str(part.value) if isinstance(part, ast.Constant) else "{}"
                            for part in argument.values
                        )


def _row(name: str, texts: Iterable[tuple[str, str]]) -> Row:
    """The share in some texts, each given with its file."""
    said = [(file, sentence) for file, text in texts for sentence in sentences(text)]
    found = tuple(f"{file}: {sentence}" for file, sentence in said if begins_with_free_relative(sentence))
    return Row(name, share(len(found), len(said)), f"% of {len(said):,} sentences", found)


def rows(tree: Tree) -> list[Row]:
    """The share in all texts, and in each kind."""
    modules = [(name, ast.parse(tree.text(name))) for name in tree.under(*PRODUCT)]
    pages = [*tree.under("docs", endings=(".md",)), *(name for name in tree.files if name == "README.md")]
    kinds = {
        "docstrings": [(name, text) for name, module in modules for text in docstrings(module)],
        "error texts": [(name, text) for name, module in modules for text in error_texts(module)],
        "pages": [(name, tree.text(name)) for name in pages],
    }
    return [
        _row("free relatives", [each for texts in kinds.values() for each in texts]),
        *(_row(f"free relatives in {kind}", texts) for kind, texts in kinds.items()),
    ]
