"""The changes that a machine makes are real ones, and an obvious one is noticed at once."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

from .mechanical.explained import explained
from .mechanical.operators import changed, sites
from .mechanical.reach import CORE, ROOT


def test_every_change_has_a_name_of_its_own_and_changes_something() -> None:
    found = sites(CORE)
    names = [site.id for site in found]
    assert len(names) > 1000
    assert len(set(names)) == len(names)
    for site in found[:: len(found) // 60]:
        source = (CORE / site.file).read_text(encoding="utf-8")
        assert ast.dump(changed(source, site.number)) != ast.dump(ast.parse(source)), site.id


def test_every_explained_change_is_still_there() -> None:
    reasons = explained()
    missing = reasons.keys() - {site.id for site in sites(CORE)}
    assert not missing, f"explained, and not (or no longer) a change of the core: {sorted(missing)}"
    assert all(len(why) > 20 for why in reasons.values())


def test_an_obvious_change_is_noticed() -> None:
    obvious = "isr.py::high_watermark: comparison: isr_size < min_isr -> isr_size <= min_isr"
    command = [
        sys.executable,
        "-m",
        "tests.mutants.mechanical",
        "--only",
        f"^{re.escape(obvious)}$",
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    figures = json.loads(done.stdout)
    assert (figures["sample"], figures["killed"], done.returncode) == (1, 1, 0), done.stderr
