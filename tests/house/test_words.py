"""Sentences, and those of them that begin with a free relative."""

from __future__ import annotations

import ast

import pytest

from .conftest import Plant
from .scope import Tree
from .words import begins_with_free_relative, docstrings, error_texts, rows, sentences


@pytest.mark.parametrize(
    "sentence",
    [
        "What a node tells of itself.",
        "**Whoever** reads it waits.",
        "So many bytes are read.",
        "That the log is open counts.",
        "that which was kept",
        "`Whose` log it is.",
    ],
)
def test_a_sentence_that_begins_with_a_free_relative_counts(sentence: str) -> None:
    assert begins_with_free_relative(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "What is it for?",
        "That is why.",
        "That file is kept.",
        "So it waits.",
        "Whole batches, what else.",
        "The leader knows what it has.",
    ],
)
def test_other_sentences_do_not_count(sentence: str) -> None:
    assert not begins_with_free_relative(sentence)


def test_a_text_is_cut_into_sentences() -> None:
    text = """# What it is

One log has one writer. It waits (for
its turn!) The version is 1.2 e.g. here.

- what an item says
| what a cell | says of it |

```sh
what no text is
```
"""
    assert list(sentences(text)) == [
        "What it is",
        "One log has one writer.",
        "It waits (for its turn!",
        "The version is 1.2 e.g. here.",
        "what an item says",
        "what a cell",
        "says of it",
    ]


def test_docstrings_and_error_texts_are_found() -> None:
    module = ast.parse(
        '''"""Of the module."""
class Log:
    size: int
    """Of the attribute."""
    def close(self):
        """Of the method."""
        raise ValueError(f"log {self} " "is closed", 1)
        raise
text = "of nothing"
'''
    )
    assert sorted(docstrings(module)) == ["Of the attribute.", "Of the method.", "Of the module."]
    assert list(error_texts(module)) == ["log {} is closed"]


def test_the_share_is_of_all_texts_and_of_each_kind(plant: Plant) -> None:
    tree = plant(
        {
            "storage/log.py": '"""What it is for. One log of records."""\nraise ValueError("it is closed")\n',
            "tests/test_log.py": '"""What is not counted."""\n',
            "docs/logs.md": "Who reads it waits. The writer never waits.\n",
            "README.md": "A log of records.\n",
            "CHANGELOG.md": "What is not counted.\n",
        }
    )
    found = {row.name: row for row in rows(tree)}
    assert found["free relatives"].value == 33.33
    assert found["free relatives in docstrings"].value == 50
    assert found["free relatives in error texts"].value == 0
    assert found["free relatives in pages"].behind == ("docs/logs.md: Who reads it waits.",)


@pytest.mark.slow
def test_no_sentence_of_the_project_begins_with_a_free_relative() -> None:
    """Its subject is a thing: "The batches of a request", not "What a request brings"."""
    found = next(row for row in rows(Tree.tracked()) if row.name == "free relatives")
    assert found.behind == ()
