"""`python3 .ci/wheels.py FOLDER`: the source archive and the wheels, tried where nothing else is.

Wheels are made for every interpreter of PYTHONS that is there, for two machines and two C libraries, by the
compiler of the package ziglang, which compiles for all of them. auditwheel judges those for glibc; those for musl
it could judge only on a machine that has it. Wheels that this machine can run are installed where no compiler is
on the PATH, and run the main job.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
LIBRARIES = {
    "gnu": ("gnu.2.17", "manylinux_2_17_{0}.manylinux2014_{0}"),
    "musl": ("musl", "musllinux_1_2_{0}"),
}
"""The C libraries: what ziglang calls them, and the tags of wheels."""
ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, **env: str) -> str:
    """The output of the command. A failure ends this one, with all of the output."""
    done = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def venv(python: str, folder: Path, *packages: str) -> Path:
    """A new environment; its interpreter."""
    run(python, "-m", "venv", folder)
    if packages:
        run(folder / "bin" / "pip", "install", "--quiet", *packages)
    return folder / "bin" / "python"


def found(given: list[str]) -> dict[str, str]:
    """The interpreters to make wheels for, by version."""
    pythons = {}
    for each in given or [sys.executable, *(f"python{version}" for version in PYTHONS)]:
        path = shutil.which(each)
        probe = "import sys; print('%d.%d' % sys.version_info[:2])"
        told = path and subprocess.run([path, "-c", probe], capture_output=True, text=True)
        if path and told and told.returncode == 0 and told.stdout.strip() in PYTHONS:
            pythons.setdefault(told.stdout.strip(), path)
        elif given:
            sys.exit(f"{each} is no Python of {', '.join(PYTHONS)}")
    return pythons


def build(tools: Path, python: Path, source: Path, out: Path, machine: str, library: str) -> Path:
    """The wheel for one interpreter, machine and C library."""
    called, tags = LIBRARIES[library]
    compiler = out / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {tools} -m ziglang cc -target {machine}-linux-{called} "$@"\n')
    compiler.chmod(0o755)
    version = run(python, "-c", "import sys; print('%d%d' % sys.version_info[:2], end='')")
    run(
        *(
            python,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            out,
            source,
        ),
        CC=str(compiler),
        LDSHARED=f"{compiler} -shared -s",
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version}-{machine}-linux-{library}.so",
    )
    compiler.unlink()
    (made,) = out.glob("*-linux_*.whl")
    run(tools, "-m", "wheel", "tags", "--remove", "--platform-tag", tags.format(machine), made)
    (made,) = out.glob("*.whl")
    if library == "gnu":
        needs = run(tools, "-m", "auditwheel", "show", made).replace("\n", " ")
        if (allowed := f'"{tags.format(machine).partition(".")[0]}"') not in needs:
            sys.exit(f"{made.name} needs more than {allowed}: {needs}")
    return made


def try_out(python: str, wheel: Path, folder: Path) -> None:
    """Install it where nothing else is, a compiler least of all, and run the main job."""
    own = venv(python, folder)
    alone = {"PATH": str(folder / "bin"), "CC": "no-compiler-here"}
    run(own, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel, **alone)
    told = run(own, "-m", "insync", "demo", "--records", "20000", "--no-spark", "--json", **alone)
    print(told.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="gets the archive and the wheels")
    parser.add_argument("--python", action="append", default=[], help="repeatable; else those found")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tools = venv(sys.executable, work / "tools", "auditwheel", "build", "wheel", "ziglang")
        run(tools, "-m", "build", "--sdist", "--outdir", given.folder, ROOT)
        # Wheels are made from the archive: a file that it lacks is missed here.
        (source,) = given.folder.glob("insync-*.tar.gz")
        for version, path in found(given.python).items():
            python = venv(path, work / version, "cffi", "setuptools>=68", "wheel")
            for machine in MACHINES:
                for library in LIBRARIES:
                    out = work / f"{version}-{machine}-{library}"
                    out.mkdir()
                    wheel = build(tools, python, source, out, machine, library)
                    if (machine, library) == (platform.machine(), "gnu"):
                        try_out(path, wheel, work / f"{version}-alone")
                    print(shutil.move(wheel, given.folder / wheel.name))


if __name__ == "__main__":
    main()
