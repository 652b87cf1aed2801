"""Building a harness with the sanitizers, letting libFuzzer drive it, and comparing what it found with Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from pathlib import Path

import attrs

HERE = Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
HARNESSES = HERE / "harness"
MISSING = "clang with libFuzzer is missing: apt-get install clang libclang-rt-dev"
_FLAGS = (
    *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
)
_UNITS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_COVERAGE = re.compile(r"\bcov: (\d+)")


class FuzzError(Exception):
    """The harness cannot be built or run; says why."""


@attrs.frozen
class Target:
    """One harness: a file of `harness/` together with sources of `csrc/`."""

    name: str
    sources: Sequence[str]
    seeds: Callable[[], Iterable[bytes]] = tuple
    """Inputs to begin with."""
    compare: Callable[[bytes], None] | None = None
    """Raises AssertionError if C and a slow reference in Python differ over an input."""
    max_len: int = 4096


@attrs.frozen
class Outcome:
    """What a run found. `failure` is empty if nothing; otherwise `input_file` holds what brought it about."""

    name: str
    units: int
    """Inputs tried."""
    coverage: int
    """Edges of the program that were reached."""
    corpus: int
    """Inputs kept because each reached something new."""
    compared: int
    """Of them, those that Python was asked about, too."""
    failure: str = ""
    input_file: Path | None = None


def is_there() -> bool:
    """Whether harnesses can be built here."""
    if shutil.which("clang") is None:
        return False
    probe = "#include <stdint.h>\n#include <stddef.h>\nint LLVMFuzzerTestOneInput(const uint8_t *d, size_t n)"
    done = subprocess.run(
        ["clang", *_FLAGS, "-x", "c", "-", "-o", "/dev/null"],
        input=probe + "{return d == 0 && n != 0;}\n",
        capture_output=True,
        text=True,
    )
    return done.returncode == 0


def build(target: Target, folder: Path) -> Path:
    """The program of a target, in `folder`."""
    program = folder / target.name
    sources = [str(HARNESSES / f"{target.name}.c"), *(str(CSRC / name) for name in target.sources)]
    done = subprocess.run(
        ["clang", *_FLAGS, f"-I{CSRC}", f"-I{HARNESSES}", *sources, "-o", str(program)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise FuzzError(f"{target.name} does not build: {done.stderr}")
    return program


def fuzz(target: Target, folder: Path, seconds: float, seed: int) -> Outcome:
    """Build the target and try inputs for that long; what was found is kept in `folder`."""
    program = build(target, folder)
    corpus = folder / f"{target.name}.corpus"
    corpus.mkdir(exist_ok=True)
    for data in target.seeds():
        (corpus / sha1(data).hexdigest()).write_bytes(data)
    bad = folder / f"{target.name}.failed-"
    try:
        done = subprocess.run(
            [
                str(program),
                *(f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", f"-max_len={target.max_len}"),
                *("-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={bad}"),
                str(corpus),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + 120,
        )
    except subprocess.TimeoutExpired as error:
        raise FuzzError(f"{target.name} did not end in time") from error
    told = done.stderr
    failed = sorted(folder.glob(f"{bad.name}*"))
    outcome = Outcome(
        name=target.name,
        units=int(_last(_UNITS, told)),
        coverage=int(_last(_COVERAGE, told)),
        corpus=len(list(corpus.iterdir())),
        compared=0,
        failure=told[-6000:] if done.returncode else "",
        input_file=failed[0] if failed else None,
    )
    return outcome if outcome.failure else _compared(target, corpus, outcome)


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return found[-1] if found else "0"


def _compared(target: Target, corpus: Path, outcome: Outcome) -> Outcome:
    """Ask Python about every input that was kept."""
    if target.compare is None:
        return outcome
    for count, path in enumerate(sorted(corpus.iterdir())):
        try:
            target.compare(path.read_bytes())
        except AssertionError as error:
            place = traceback.extract_tb(error.__traceback__)[-1].line
            failure = f"C and the reference in Python differ over {path}: {place} {error}"
            return attrs.evolve(outcome, compared=count, failure=failure, input_file=path)
    return attrs.evolve(outcome, compared=outcome.corpus)
