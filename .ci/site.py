"""Pages of the site that are no files of `docs/`: those beside it, and the reference, made from docstrings."""

from __future__ import annotations

import configparser
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""Files above `docs/`, and what they are in the site."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_startup(command: str, dirty: bool) -> None:
    """Lay out the package for mkdocstrings, which finds nothing in a namespace such as `insync.plugins`."""
    tree = ROOT / "build" / "reference"
    shutil.rmtree(tree, ignore_errors=True)
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (tree / "insync" / "plugins").mkdir(parents=True)
    (tree / "insync" / "plugins" / "__init__.py").touch()
    for line in setup["options"]["package_dir"].split("\n"):
        package, _, folder = map(str.strip, line.partition("="))
        if package == "insync":
            (tree / "insync" / "__init__.py").symlink_to(ROOT / folder / "__init__.py")
        elif package.startswith("insync."):
            tree.joinpath(*package.split(".")).symlink_to(ROOT / folder)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is no file of `docs/`."""
    for name, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in _pages(config.nav):
        if page.startswith("reference/"):
            module = Path(page).stem
            files.append(File.generated(config, page, content=f"# {module}\n\n::: {module}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to where their targets are in the site; a target that is not there loses its link."""
    uri = page.file.src_uri
    folder = "." if uri in BESIDE.values() else posixpath.join("docs", posixpath.dirname(uri))

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], posixpath.normpath(posixpath.join(folder, found[2])), found[3] or ""
        place = BESIDE.get(target, target.removeprefix("docs/"))
        if target not in BESIDE and not target.startswith("docs/"):
            return text if (ROOT / target).exists() else found[0]
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"

    return _LINK.sub(link, markdown)


def _pages(nav: Any) -> list[str]:
    """Every page of a nav, in order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for each in inner for page in _pages(each)]
