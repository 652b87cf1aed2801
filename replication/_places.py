"""Where an error of somebody else's code came from, in a few words."""

from __future__ import annotations

import traceback
from pathlib import PurePath


def place_of(error: BaseException) -> str:
    """` (file.py:LINE in function)` of the innermost frame; empty for an error that was never raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return "".join(f" ({PurePath(each.filename).name}:{each.lineno} in {each.name})" for each in frames)
