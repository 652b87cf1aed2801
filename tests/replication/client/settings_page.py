"""Makes `docs/client-settings.md` from the classes: `python -m tests.replication.client.settings_page`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from insync.replication.client import ClientSettings, ConsumerSettings, ProducerSettings

PAGE = Path(__file__).parents[3] / "docs" / "client-settings.md"
WIDTH = 115
HEAD = """\
# Settings of producers, consumers and admin clients

Made from the classes of `insync.replication.client`, whose docstrings say the same. Every setting is a keyword of
its client on trio, threads and asyncio alike, or a field of `settings=`. Names and defaults are Kafka's in
snake_case, but for those that only insync has. Durations are in milliseconds, sizes in bytes. An impossible value
is refused with `InvalidSettingError`.
"""
_ENTRY = re.compile(r"([a-z_]+(?:, [a-z_]+)*(?: of their own)?): (.*)", re.DOTALL)


def entries(cls: type) -> Iterator[tuple[list[str], str]]:
    """Names and text of each paragraph of a docstring that tells of settings."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    blocks: list[list[str]] = []
    for line in lines:
        if re.match(r"[a-z_]+(, [a-z_]+)*: ", line):
            blocks.append([line])
        elif blocks and line.startswith("  "):
            blocks[-1].append(line.strip())
    for block in blocks:
        names, text = _ENTRY.fullmatch(" ".join(block)).groups()  # type: ignore[union-attr]
        yield names.split(", "), text


def own_fields(cls: type) -> list[attrs.Attribute[Any]]:
    inherited = {field.name for base in cls.__mro__[1:-1] for field in attrs.fields(base)}
    return [field for field in attrs.fields(cls) if field.name not in inherited]


def default_of(field: attrs.Attribute[Any]) -> str:
    if field.default is None or field.default == "":
        return "none"
    if isinstance(field.default, int) and not isinstance(field.default, bool):
        return f"{field.default:,}"
    return str(field.default)


def section(title: str, cls: type) -> Iterator[str]:
    yield f"\n## {title}\n"
    told = {name: (names, text) for names, text in entries(cls) for name in names}
    done: set[str] = set()
    for field in own_fields(cls):
        names, text = told[field.name]
        if field.name in done:
            continue
        done.update(names)
        together = [each for each in own_fields(cls) if each.name in names]
        heads = [f"**`{each.name}`** (default: {default_of(each)})" for each in together]
        lines = textwrap.wrap(
            f"- {', '.join(heads)}: {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
        yield "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    parts += section("All clients", ClientSettings)
    parts += section("Producers", ProducerSettings)
    parts += section("Consumers", ConsumerSettings)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
