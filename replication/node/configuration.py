"""Settings from a TOML file, the environment and arguments: one schema, the fields of `NodeSettings`.

Later sources win over earlier ones. Every name that no setting has is refused, with the nearest one that exists.
"""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs
import msgspec

from .errors import InvalidSettingError
from .settings import NodeSettings

PREFIX = "INSYNC_NODE_"
"""The prefix of a setting's name, in capitals, in the environment."""

_LISTS = ("listeners", "log_dirs", "allow", "group_consumer_assignors")
_SECRETS = ("secret", "node_secret")
"""Settings that every user of a machine could read if they stood among a process's arguments."""


def load_settings(
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
    assignments: Iterable[str] = (),
    given: Mapping[str, object] | None = None,
) -> NodeSettings:
    """Put a node's settings together: the file, then INSYNC_NODE_... variables, then `name=value`, then `given`.

    file: TOML with one key for each setting, at the top. Texts of the environment and of assignments are read as
    the setting's type asks; lists have commas between their items. In `given` None means "not given".

    Raises:
      InvalidSettingError: The file cannot be read, a name is no setting's, a value has the wrong type or cannot
        work, or a setting without a default is missing; the text says where and what to do.
    """
    values: dict[str, Any] = {}
    for source, layer in (
        (str(file), _read_file(Path(file)) if file is not None else {}),
        ("the environment", _of_environment(environment)),
        ("an argument", _of_assignments(assignments)),
        ("an argument", {name: value for name, value in (given or {}).items() if value is not None}),
    ):
        for name, value in layer.items():
            values[name] = _converted(source, name, value)
            # Two names of one thing: the later source decides how it is given.
            other = {"data_dir": "log_dirs", "log_dirs": "data_dir"}.get(name)
            if other is not None and other not in layer:
                values.pop(other, None)
    absent = [
        name for name, field in _FIELDS.items() if field.default is attrs.NOTHING and name not in values
    ]
    if absent:
        raise InvalidSettingError(
            f"{', '.join(absent)}: not set, and it has no default; set it as an argument, in the file, or as "
            f"{PREFIX}{absent[0].upper()} in the environment"
        )
    return NodeSettings(**values)


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSettingError(
            f"the settings file {path} cannot be read: {error.strerror or error}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettingError(f"the settings file {path} is not valid TOML: {error}") from error


def _of_environment(environment: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }


def _of_assignments(assignments: Iterable[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidSettingError(f"{text!r} is not an assignment: write name=value")
        if name.strip() in _SECRETS:
            raise InvalidSettingError(
                f"{name.strip()} must not be on the command line, which every user of this machine can read: "
                f"put it into a file and set {name.strip()}_file"
            )
        values[name.strip()] = value.strip()
    return values


def _converted(source: str, name: str, value: object) -> object:
    """The value as its setting's type asks."""
    if name not in _FIELDS:
        near = get_close_matches(name, _FIELDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(_FIELDS))}"
        raise InvalidSettingError(f"{source}: unknown setting {name!r}{hint}")
    wanted = _TYPES[name]
    if isinstance(value, str) and name in _LISTS:
        value = [item.strip() for item in value.split(",") if item.strip()]
    elif isinstance(value, str) and wanted is bool:
        value = _truth(source, name, value)
    try:
        return msgspec.convert(value, wanted, strict=not isinstance(value, str))
    except UnicodeEncodeError as error:
        raise InvalidSettingError(f"{source}: {name}={value!r}: not UTF-8 text") from error
    except msgspec.ValidationError as error:
        if typing.get_origin(wanted) is typing.Literal:
            known = " or ".join(map(str, typing.get_args(wanted)))
            raise InvalidSettingError(f"{source}: {name}={value!r}: use {known}") from error
        if int in (wanted, *typing.get_args(wanted)):
            raise InvalidSettingError(f"{source}: {name}={value!r}: use a whole number") from error
        raise InvalidSettingError(
            f"{source}: {name}={value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
        ) from error


def _truth(source: str, name: str, text: str) -> bool:
    known = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if text.lower() not in known:
        raise InvalidSettingError(f"{source}: {name}={text!r}: write true or false")
    return known[text.lower()]


def _types() -> dict[str, Any]:
    """The declared types, with paths as the texts that they are outside of Python."""
    hints = typing.get_type_hints(NodeSettings)
    plain = {str | Path: str, str | Path | None: str | None, tuple[str | Path, ...]: tuple[str, ...]}
    return {name: plain.get(hints[name], hints[name]) for name in _FIELDS}


_FIELDS = {field.name: field for field in attrs.fields(NodeSettings)}
_TYPES = _types()
