"""Digests of simulated runs: two versions that decide alike have the same one for each seed.

Each process has a hash seed of its own, so a digest that depends on the order of a set differs from run to run.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import attrs

from insync.replication.simulation import run

AT_A_TIME = 4
"""Seeds that a process takes at once."""


@attrs.frozen
class Digest:
    """The digest of one seed's run; `violation` is the invariant that broke, or empty."""

    seed: int
    digest: str
    violation: str

    def __str__(self) -> str:
        return f"{self.seed} {self.digest}"


def digest_of(seed: int) -> Digest:
    """Runs one seed."""
    result = run(seed)
    return Digest(seed, result.digest, str(result.violation or ""))


def digests(seeds: range, jobs: int) -> Iterator[Digest]:
    """Runs all seeds in `jobs` processes; in the order of the seeds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(digest_of, seeds, chunksize=AT_A_TIME)


def hash_of(found: Iterable[Digest]) -> str:
    """One hash over the lines `seed digest`."""
    return hashlib.sha256("".join(f"{each}\n" for each in found).encode()).hexdigest()[:16]
