"""Known errors that nothing here could make: the reason for each."""

from __future__ import annotations

IMPOSSIBLE = {
    "Z8": "a follower's offset is what its next fetch asks for, so no failed read can move it",
    "Z21": "leaders write ISR changes themselves; no controller can be behind them",
    "Z24": "a proposal is made in the step that decides it, and carries the version that it was made from",
    "Z44": "an answer names its question: one of another epoch is nobody's",
    "K93": "a process begins with a broker of its own, so it asks nothing in the name of its predecessor, and a "
    "session is of the connection that began it",
    "K17": "comparing with what the leader has deleted is harmless as long as a follower drops what ends where its "
    "leader begins, and may not join before that (K23): K17b takes away what both do",
    "Z46": "the core is handed one reading of one clock, and the host reads the monotonic one",
    "Z49": "a leader notes its epoch anew whenever it enters it, whatever its log has lost: what is left is Z13",
}
