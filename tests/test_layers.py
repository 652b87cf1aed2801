"""The laws of the house are checked by import-linter; here it is shown that the check can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {"replication": "replication", "storage": "storage", "transport": "transport", "plugins": "plugins"}
PLANTS = [
    ("replication/core/partition/isr.py", "import time", "the core does no I/O"),
    ("replication/core/partition/replica.py", "import trio", "the core does no I/O"),
    ("replication/core/epochs.py", "from ..wire import encode", "the core does no I/O"),
    ("replication/core/control/view.py", "from ..partition import isr", "from the broker down to the types"),
    ("storage/segment_planted.py", "from ..transport import connect", "know neither each other"),
    ("transport/abc.py", "from ..replication.core import types", "nothing below imports"),
    (
        "replication/node/settings.py",
        "from insync.plugins.tcp import TcpTransport",
        "nothing imports a plugin",
    ),
    (
        "replication/node/requests/_fetches.py",
        "from ...core.broker.fetching.serving import Serving",
        "a node decides nothing",
    ),
    ("replication/node/_node.py", "from ..core.partition.isr import may_join", "a node decides nothing"),
    (
        "replication/node/store/_cluster_state.py",
        "from ...core.control.controller import Controller",
        "a node decides nothing",
    ),
    (
        "replication/node/_policies.py",
        "from ..core.control.elections import decide",
        "a node decides nothing",
    ),
    (
        "replication/node/store/_registration.py",
        "from ...core.broker.membership import registration",
        "a node decides nothing",
    ),
    (
        "replication/node/store/_view_reader.py",
        "from ...core.broker.membership.viewing import Viewing",
        "a node decides nothing",
    ),
    (
        "replication/node/recovery/_repair.py",
        "from ...core.recovery.repair import plan",
        "a node decides nothing",
    ),
    (
        "replication/node/driver.py",
        "from ..core.broker.membership.clocks import WallClocks",
        "a node decides nothing",
    ),
    (
        "replication/node/store/_isr_writer.py",
        "from ...core.broker.membership.proposing import Proposing",
        "a node decides nothing",
    ),
    ("replication/node/driver.py", "from ..core.broker.timers import Timers", "a node decides nothing"),
    (
        "replication/node/operations/metrics.py",
        "from ...core.groups.expiry import OffsetExpiry",
        "a node decides nothing",
    ),
    (
        "replication/client/producer/producer.py",
        "from ....storage import LogDirectory",
        "nothing else of storage",
    ),
    ("replication/core/control/records.py", "from ...node import Node", "imports go one way"),
]


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "160"}
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    return subprocess.run(
        [sys.executable, "-c", code, "--config", str(ROOT / "setup.cfg"), "--no-cache"],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "replication" / "package", tmp_path / "insync")
    for package, folder in ROOMS.items():
        shutil.copytree(
            ROOT / folder, tmp_path / "insync" / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return tmp_path


def test_the_tree_keeps_the_laws(tree: Path) -> None:
    result = check(tree)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("file", "line", "law"), PLANTS)
def test_a_forbidden_import_is_found(tree: Path, file: str, line: str, law: str) -> None:
    planted = tree / "insync" / file
    text = planted.read_text() if planted.exists() else ""
    head, sep, rest = text.partition("from __future__ import annotations\n")
    planted.write_text(f"{head}{sep}{line}\n{rest}" if sep else f"{line}\n{text}")
    result = check(tree)
    assert result.returncode == 1, result.stdout
    broken = [row for row in result.stdout.splitlines() if "BROKEN" in row]
    assert any(law in row for row in broken), result.stdout
