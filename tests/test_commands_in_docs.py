"""The commands that the pages show are those that there are: every line is parsed as the command line would be."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import App, CycloptsError, MissingArgumentError

from insync.replication.cli.app import build_app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
_LINE = re.compile(r"^(?: {4}|\$ )?(?:\w+=\S+ )*(?:\S*/)?insync( .*)?$")
_INLINE = re.compile(r"`insync( [^`]+)`")
_MEANT_FOR_READERS = re.compile(r"\.\.\.|…|\||\[|<|>")
"""What no shell would be given as it stands: something left out, a choice, an option that may be there."""


def lines(text: str) -> list[str]:
    """The commands on lines of their own, without what is said of them."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        match = _LINE.match(line)
        if match and (line.startswith(("    ", "$ ")) or not line.endswith((".", ",", ":"))):
            found.append(re.split(r"\s+#\s|\s{3,}|\s[<>|&]+\s", (match[1] or "").strip())[0])
    return found


def tokens(command: str) -> list[str]:
    return [each for each in shlex.split(command) if each not in ("...", "…")]


@pytest.fixture(scope="module")
def app() -> App:
    return build_app()


def parse(app: App, command: str) -> None:
    """Raises `CycloptsError` unless the command line is one; nothing is run."""
    app.parse_args(tokens(command), exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_given(app: App, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = []
    for command in lines(text):
        try:
            parse(app, command)
        except MissingArgumentError as error:
            if "..." not in command and "…" not in command:
                wrong.append(f"insync {command}: {error}")
        except (CycloptsError, ValueError) as error:
            wrong.append(f"insync {command}: {error}")
    for command in _INLINE.findall(" ".join(text.split())):
        if _MEANT_FOR_READERS.search(command):
            continue
        try:
            parse(app, command)
        except MissingArgumentError:
            pass  # "insync topic create" as the name of what is talked of
        except (CycloptsError, ValueError) as error:
            wrong.append(f"insync {command}: {error}")
    assert wrong == []


def test_the_lines_are_found() -> None:
    found = [command for page in PAGES for command in lines(page.read_text(encoding="utf-8"))]
    assert len(found) > 60
    assert "reassign orders --cancel" in found


@pytest.mark.parametrize(
    "command", ["tpoic list", "top --no-such-option", "topic grow orders --partitions x"]
)
def test_what_is_wrong_is_noticed(app: App, command: str) -> None:
    with pytest.raises(CycloptsError):
        parse(app, command)


def _linked(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


def test_two_links_lead_from_the_readme_to_every_page() -> None:
    near = _linked(ROOT / "README.md")
    assert not set((ROOT / "docs").glob("*.md")) - near - set[Path]().union(*map(_linked, near))
