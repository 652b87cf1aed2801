"""What README.md shows is what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def section(title: str) -> str:
    return re.split(r"^## ", README.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_each_command_is_one_line() -> None:
    for title in ("Quick start", "Tests"):
        block = re.search(r"```sh\n(.*?)```", section(title), flags=re.DOTALL)
        assert block is not None, title
        assert len(block[1].strip().splitlines()) == 1, title


def test_the_embedded_node_runs(tmp_path: Path) -> None:
    (program,) = blocks("python")
    assert len(program.splitlines()) < 30
    (tmp_path / "service.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "service.py", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"written to orders-(\d) at offset 0\nread b'customer-7': b'two teapots'\n", done.stdout
    ), done.stdout


def test_the_pages_that_are_named_exist() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(((?:docs/|CHANGELOG)[^)#]*)\)", README):
        assert (root / target).exists(), target
