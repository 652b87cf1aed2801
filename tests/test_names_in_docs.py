"""What the pages name exists: settings, metrics, classes, functions, files, tests, commands of tests, anchors."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY_PAGE = [*PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
OTHER_PAGES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "plugins").glob("*/README.md"))]
_ENDINGS = {
    ".py",
    ".c",
    ".h",
    ".java",
    ".toml",
    ".cfg",
    ".xml",
    ".rs",
    ".js",
    ".css",
    ".go",
    ".yaml",
    ".json",
}
_FOLDERS = (
    "replication",
    "plugins",
    "storage",
    "transport",
    "csrc",
    "tests",
    ".ci",
    "docs/examples",
    "docs/monitoring",
)
ELSEWHERES = {
    "backup.md": {"VACUUM", "pg_dump"},  # of SQLite, of PostgreSQL
    "benchmarks.md": {"optimizations"},  # of Python's build
    "kafka.md": {"SubscriptionPattern", "__share_group_state", "reauth", "verifiable"},  # Kafka's
    "monitoring.md": {"process_open_fds", "rule_files"},  # Prometheus's
    "spark-executor-logs.md": {"crypto", "speculation", "threshold"},  # settings of Spark
    "spark.md": {"DATA_SOURCE_NOT_FOUND", "explode"},  # of Spark
    "storage-format.md": {"m2"},  # Maven's folder
    "writing-a-metadata-store.md": {"PGSSLROOTCERT"},  # PostgreSQL's
}
"""Words of other projects, by page: they need not be in the source."""


@cache
def known() -> set[str]:
    """Every word of the source and every part of its files' names."""
    found = {"insync", "pyproject"}
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in _ENDINGS and path != Path(__file__):
                found |= set(re.findall(r"\w+", path.stem))
                found |= set(re.findall(r"\w+", path.read_text("utf-8", "replace")))
    for name in ("setup.cfg", "setup.py", "pyproject.toml"):
        found |= set(re.findall(r"\w+", (ROOT / name).read_text("utf-8")))
    return found


def exists(word: str) -> bool:
    """A metric of a counter is made with its ending by the client library; settings are read with a prefix."""
    plain = word.removesuffix("_total")
    setting = word.removeprefix("INSYNC_NODE_").lower()
    return bool({word, word.upper(), word.lower(), plain, setting} & known())


def code(text: str) -> list[str]:
    """What stands in backticks, without the blocks, which other tests run."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_a_page_is_in_the_source(page: Path) -> None:
    named = {word for part in code(page.read_text("utf-8")) for word in re.findall(r"[A-Za-z_]\w*", part)}
    others = ELSEWHERES.get(page.name, set())
    assert sorted(word for word in named - others if not exists(word)) == []
    assert not {word for word in others if exists(word)}, "they need not be listed"


def unknown_paths(text: str) -> list[str]:
    """Dotted names of the package's rooms at which there is nothing; each word of one may exist elsewhere."""
    named = re.findall(r"\binsync(?:\.(?:replication|plugins|storage|transport))(?:\.\w+)*", text)
    return sorted(name for name in set(named) if not is_importable(name))


def is_importable(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", [*EVERY_PAGE, *OTHER_PAGES], ids=lambda page: page.name)
def test_every_module_of_a_page_exists_where_it_says(page: Path) -> None:
    assert unknown_paths(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_every_test_and_file_of_the_tests_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for name, function in re.findall(r"(test_\w+\.py)::(\w+)", text):
        source = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob(name))
        assert re.search(rf"^((async )?def |class )?{function}( =|\b)", source, re.M), f"{name}::{function}"
    for name in re.findall(r"`(?:[\w/]*/)?(test_\w+\.py)`", text):
        assert list((ROOT / "tests").rglob(name)), name
    for path in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_every_command_of_the_tests_has_the_options_that_are_shown(page: Path) -> None:
    for module, rest in re.findall(r"python -m (tests(?:\.\w+)*)([^`\n]*)", page.read_text("utf-8")):
        path = ROOT.joinpath(*module.split("."))
        assert (path / "__main__.py").exists() or path.with_suffix(".py").exists(), module
        room = ROOT.joinpath(*module.split(".")[:2])
        source = "".join(each.read_text("utf-8") for each in room.rglob("*.py"))
        for option in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", rest.split("  #")[0]):
            assert re.search(rf"--{option}\b|\b{option.replace('-', '_')}\b", source), f"{module} --{option}"
        for word in re.findall(r"^ ([a-z_]+)", rest):
            is_module = path.is_dir() and (path / f"{word}.py").exists()
            assert is_module or f'"{word}"' in source, f"{module} {word}"


def test_what_is_wrong_is_noticed() -> None:
    assert not exists("insync_no_such_metric_total")
    assert unknown_paths(
        "`insync.replication.core.elections.Situation`, `insync.proof`, `insync.plugins.tcp`"
    ) == ["insync.replication.core.elections.Situation"]
    assert anchors(ROOT / "CONTRIBUTING.md") >= {"the-fast-loop", "a-change"}
