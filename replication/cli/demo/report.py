"""The verdict: all figures of one run, and whether everything held."""

from __future__ import annotations

from typing import Any

import attrs

from .verify import Kind, Verification


@attrs.define(eq=False, kw_only=True)
class Report:
    """One run's figures; durations in ms or s as named, MB are 10^6 bytes of keys and values."""

    nodes: int
    seed: int
    records: int
    transport: str = "tcp"
    records_acked: int = 0
    records_read: int = 0
    killed_node: int = -1
    kill_at_record: int = -1
    in_flight_at_kill: int = 0
    failover_ms: float | None = None
    failover_ms_by_partition: dict[int, float] = attrs.Factory(dict)
    idle_partitions: list[int] = attrs.Factory(list)
    rejoin_ms: float | None = None
    produce_mb_per_s: float = 0.0
    produce_s: float = 0.0
    elapsed_s: float = 0.0
    rss_mb: dict[str, float] = attrs.Factory(dict)
    planted: str | None = None
    spark: dict[str, int] | None = None
    """What the Spark step saw: rows, wrong_keys, batches; None without one."""
    verification: Verification | None = None
    problems: list[str] = attrs.Factory(list)
    """What is wrong beside the defects that the verification names."""

    @property
    def ok(self) -> bool:
        return self.verification is not None and self.verification.ok and not self.problems

    def conclude(self) -> None:
        """Turn figures that cannot be right into problems."""
        if self.records_acked != self.records:
            self.problems.append(
                f"{self.records - self.records_acked} of {self.records} records were not acknowledged"
            )
        if self.records_read != self.records:
            self.problems.append(f"the consumer read {self.records_read} records of {self.records}")
        if self.in_flight_at_kill == 0:
            self.problems.append("nothing was in flight when the leader was killed, so the run proves little")
        if self.failover_ms is None:
            self.problems.append(
                "no record came for the killed leader's partitions afterwards; use more --records"
            )

    def count(self, kind: Kind) -> int:
        return 0 if self.verification is None else self.verification.counts[kind]

    def lines(self) -> list[tuple[str, str]]:
        """What is wrong, if anything, and the verdict: (tone, line)."""
        found = [] if self.verification is None else self.verification.defects
        lines = [("bad", str(defect)) for defect in found]
        if self.verification is not None and len(found) < self.verification.counts.total():
            lines.append(("bad", f"... {self.verification.counts.total()} defects in all"))
        lines += [("bad", problem) for problem in self.problems]
        return [*lines, ("good" if self.ok else "bad", self._verdict())]

    def _verdict(self) -> str:
        if not self.ok:
            return f"FAILED: {self._counts()}"
        return (
            f"PASSED: {self.records_acked:,} records acknowledged, {self.records_read:,} read back; "
            f"{self._counts()}; failover {self.failover_ms or 0:.0f} ms, rejoin {self.rejoin_ms or 0:.0f} ms, "
            f"{self.produce_mb_per_s:.1f} MB/s"
        )

    def _counts(self) -> str:
        same = self.verification is not None and self.verification.replicas_identical
        return (
            f"{self.count(Kind.LOST)} lost, {self.count(Kind.DUPLICATED)} duplicated, "
            f"{self.count(Kind.OUT_OF_ORDER)} out of order, {self.count(Kind.FOREIGN)} foreign, "
            f"replicas {'identical' if same else 'DIFFER'}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; numbers are plain, what is not known is null."""
        checked = self.verification
        return {
            "verdict": "passed" if self.ok else "failed",
            "records": self.records,
            "records_acked": self.records_acked,
            "records_read": self.records_read,
            "lost": self.count(Kind.LOST),
            "duplicated": self.count(Kind.DUPLICATED),
            "out_of_order": self.count(Kind.OUT_OF_ORDER),
            "foreign": self.count(Kind.FOREIGN),
            "misplaced": self.count(Kind.MISPLACED),
            "unreadable": self.count(Kind.UNREADABLE),
            "replicas_identical": checked is not None and checked.replicas_identical,
            "killed_node": self.killed_node,
            "kill_at_record": self.kill_at_record,
            "in_flight_at_kill": self.in_flight_at_kill,
            "failover_ms": _rounded(self.failover_ms),
            "failover_ms_by_partition": {
                str(k): _rounded(v) for k, v in self.failover_ms_by_partition.items()
            },
            "idle_partitions": self.idle_partitions,
            "rejoin_ms": _rounded(self.rejoin_ms),
            "produce_mb_per_s": round(self.produce_mb_per_s, 2),
            "produce_s": round(self.produce_s, 3),
            "elapsed_s": round(self.elapsed_s, 3),
            "nodes": self.nodes,
            "transport": self.transport,
            "seed": self.seed,
            "rss_mb": {name: round(size, 1) for name, size in self.rss_mb.items()},
            "planted": self.planted,
            "spark": self.spark,
            "defects": [] if checked is None else [str(defect) for defect in checked.defects],
            "problems": self.problems,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
