"""Making a node's data folder, and saying what is wrong with one that cannot be made or used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .._opening import what_is
from ..errors import MisplacedError

_NO_RIGHTS = {errno.EACCES, errno.EPERM}
_MODE = 0o700
_ELSEWHERE = "name another data folder"


def make_data_folder(path: Path) -> None:
    """For its owner alone, with the folders above it; nothing if it is there.

    Raises MisplacedError if it can neither be made nor used, with the remedy; OSError as the device does.
    """
    try:
        path.mkdir(mode=_MODE, parents=True, exist_ok=True)
        # Whoever may not enter it learns so here, and not from a file inside.
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            reason = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(reason, os.strerror(reason), str(path))
    except ValueError:
        raise MisplacedError(f"cannot use {str(path)!r}: no path contains a NUL; {_ELSEWHERE}") from None
    except OSError as error:
        if why := _why(path, error):
            raise MisplacedError(f"cannot use {_shown(path)} as a data folder: {why}") from error
        raise


def _why(path: Path, error: OSError) -> str:
    """The cause, and the remedy; empty for what only the device can be to blame for."""
    if error.errno == errno.ENAMETOOLONG:
        return f"its path of {len(os.fsencode(path))} bytes, or a name in it, is too long; {_ELSEWHERE}"
    if error.errno == errno.EROFS:
        return f"its file system is read-only; mount it for writing, or {_ELSEWHERE}"
    place = _last_there(path)
    if error.errno in _NO_RIGHTS:
        return (
            f"user {os.geteuid()} may not write to {place}; run the node as its owner, change the owner (chown), "
            f"or {_ELSEWHERE}"
        )
    what = what_is(place)
    if what == "a folder":
        return ""
    return f"{place} is {what}, not a folder; move it away, or {_ELSEWHERE}" if what else ""


def _last_there(path: Path) -> Path:
    """The path itself, or the part of it that is there; a link that leads nowhere is."""
    for each in (path, *path.parents):
        if what_is(each):
            return each
    return path


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-50:]}"
