"""A run in a file: everything that befalls it, so that it can be played again, on any machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from .errors import ReplayError
from .faults.schedule import Fault
from .run import Script
from .settings import Settings, Topic

VERSION = 1


@attrs.frozen(kw_only=True)
class Replay:
    """A seed with the settings and the script to run it by."""

    seed: int
    settings: Settings
    script: Script

    def dumps(self) -> str:
        """As JSON."""
        content = {
            "version": VERSION,
            "seed": self.seed,
            "settings": attrs.asdict(self.settings),
            "schedule": [attrs.asdict(fault) for fault in self.script.schedule],
            "mishaps": dict(self.script.mishaps),
        }
        return json.dumps(content, indent=1)

    @classmethod
    def loads(cls, text: str) -> Replay:
        """From JSON.

        Raises:
          ReplayError: It is not what `dumps` writes.
        """
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise ReplayError(
                    f"a replay of version {content['version']}: this insync reads version {VERSION}"
                )
            settings = content["settings"]
            settings["topics"] = tuple(Topic(**topic) for topic in settings["topics"])
            settings["faults"] = tuple(settings["faults"])
            script = Script(
                schedule=tuple(_fault(entry) for entry in content["schedule"]),
                mishaps={key: (str(what), float(much)) for key, (what, much) in content["mishaps"].items()},
            )
            return cls(seed=content["seed"], settings=Settings(**settings), script=script)
        except (KeyError, TypeError, ValueError) as failure:
            raise ReplayError(
                f"not a replay ({failure!r}): use a file that insync simulate wrote"
            ) from failure


def _fault(entry: dict[str, Any]) -> Fault:
    return Fault(**{**entry, "nodes": tuple(entry["nodes"])})


def read(path: Path) -> Replay:
    """The replay in a file.

    Raises:
      ReplayError: The file cannot be read, or is no replay.
    """
    try:
        return Replay.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise ReplayError(f"{path} cannot be read: {failure.strerror}") from failure
