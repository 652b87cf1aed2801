"""docs/clients.md names every method of an admin client in its table of commands, and no other."""

from __future__ import annotations

import re
from inspect import isfunction
from pathlib import Path

from insync.replication import Admin

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text("utf-8")
_ROWS = re.findall(r"^\| (`insync .*?|\(none\)) \| (.*) \|$", PAGE, re.M)
_PARAMETERS = {"check_room"}


def test_the_table_has_every_method() -> None:
    told = {name for _, cell in _ROWS for name in re.findall(r"`(\w+)[`=]", cell)} - _PARAMETERS
    methods = {name for each in Admin.__mro__ for name, made in vars(each).items() if isfunction(made)}
    assert told == {name for name in methods if not name.startswith("_")} - {"aclose"}
