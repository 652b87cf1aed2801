"""`python -m tests.sanitized [--crc WAY] [-- PYTEST ARGUMENTS]`: tests with the C built for the sanitizers.

Builds the packages aside with gcc's AddressSanitizer and UndefinedBehaviorSanitizer, and runs pytest on them
(tests/storage if nothing else is said). Python takes its memory from malloc() then, so that a read beyond a bytes
object is seen.
Cases of the conformance kit may take four times as long there.

    python -m tests.sanitized -- tests/transport tests/plugins/tcp tests/plugins/shm

runs the kit over every transport, and all else that is tested of them;

    python -m tests.sanitized -- tests/replication/client

what takes records in the producer.
`--crc` builds CRC-32C as a machine without better instructions has it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WAYS = ("tables", "instruction", "folding")
_FLAGS = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
_REPORT = "report"
_PATIENCE = "4"
# What is freed is kept aside for a while, but not as much of it as usual: there are tests that measure memory.
_OPTIONS = "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=8"
_NATIVE = (
    "insync.storage._native",
    "insync.transport._native",
    "insync.transport._framing",
    "insync.replication.client.producer._joining",
)


def build(folder: Path, crc: str) -> None:
    """The packages with sanitized native modules, in `folder`."""
    flags = f"{_FLAGS} -DISR_CRC_MOST=ISR_CRC_{crc.upper()}"
    places = ["--build-base", f"{folder}/base", "--build-lib", f"{folder}/lib"]
    command = [sys.executable, "setup.py", "-q", "build", *places]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "CFLAGS": flags, "LDFLAGS": flags}, check=True)


def environment(folder: Path) -> dict[str, str]:
    """In which Python loads them."""
    preloaded = [_library(name) for name in ("libasan.so", "libubsan.so")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": f"{_OPTIONS}:log_path={folder}/{_REPORT}",
        "INSYNC_KIT_PATIENCE": _PATIENCE,
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/{_REPORT}",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([f"{folder}/lib", os.environ.get("PYTHONPATH", "")]),
    }


def _library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitized", description=__doc__)
    parser.add_argument(
        "--crc", choices=WAYS, default=WAYS[-1], help="the best way of computing it that is built"
    )
    parser.add_argument("pytest", nargs="*", default=["tests/storage"], help="what pytest is given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="insync-sanitized-") as name:
        folder = Path(name)
        build(folder, args.crc)
        there = environment(folder)
        for module in _NATIVE:
            asked = f"import {module} as found; print(found.__file__)"
            said = subprocess.run([sys.executable, "-c", asked], env=there, capture_output=True, text=True)
            if not said.stdout.startswith(str(folder)):
                print(f"{module} is not the sanitized one: {said.stdout}{said.stderr}", file=sys.stderr)
                return 2
        # Hypothesis' own profile "ci" sets no deadlines: all of this is slow.
        options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci", "-m", ""]
        command = [sys.executable, "-m", "pytest", *options, *args.pytest]
        status = subprocess.run(command, cwd=ROOT, env=there).returncode
        reports = sorted(folder.glob(f"{_REPORT}.*"))
        for path in reports:
            print(path.read_text(errors="replace"), file=sys.stderr)
        return 1 if reports else status


if __name__ == "__main__":
    sys.exit(main())
