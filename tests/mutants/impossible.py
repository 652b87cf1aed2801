"""Known errors that nothing here could make: the reason for each."""

from __future__ import annotations

IMPOSSIBLE = {
    "Z8": "a follower's offset is the one that its next fetch asks for, so a failed read cannot move it",
    "Z21": "leaders write ISR changes themselves, so no controller can lag behind them",
    "Z24": "the step that decides a proposal also makes it, and the proposal carries the version from which it was "
    "made",
    "Z44": "an answer names its question, so an answer of another epoch matches none",
    "K93": "a process begins with its own broker, so it asks nothing in its predecessor's name, and a session "
    "belongs to the connection that began it",
    "K17": "comparing with what the leader has deleted is harmless while a follower discards a log that ends where "
    "its leader's begins, and may not join before that (K23); K17b removes both",
    "Z46": "the core receives one reading of one clock, and the host reads the monotonic clock",
    "Z49": "a leader records its epoch each time it enters it, whatever its log has lost; Z13 covers the rest",
    "GZ5": "every leadership has a shard of its own; K234 gives one the state of an earlier leadership",
    "GZ6": "a shard's host drops what an earlier leadership has read; K232 hands it on",
    "GZ15": "the hash of a group's name: test_routing.py has the vectors",
    "GZ18b": "the number of a heartbeat refuses the late copy first (decision 46); test_consumer_group.py",
    "GZ37": "a member that claims others' partitions is given none of them by that alone; test_assignors.py",
    "GZ45": "fetching is no part of a membership: a consumer fetches beside it; test_groups_rules.py",
    "GZ57": "a classic member takes a topic that was made again for its namesake; test_classic_membership.py",
}
