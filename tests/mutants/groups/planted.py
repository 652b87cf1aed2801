"""The planted errors, by the names of docs/groups.md. None touches the simulator: what it models is right."""

from __future__ import annotations

from . import _classic, _groups, _members, _offsets, _shards  # noqa: F401 - they plant what they define
from ._registry import REGISTRY as REGISTRY

SEEDS = 1600
ELSEWHERE = {
    "GZ15": "the hash of a group's name: test_routing.py has the vectors",
    "GZ18b": "the number of a heartbeat refuses the late copy first (decision 46); test_consumer_group.py",
    "GZ37": "who claims what others were given since is given nothing by it alone; test_assignors.py",
    "GZ45": "fetching is no part of this machine: a consumer fetches beside it; test_groups_rules.py",
    "GZ57": "a classic member takes a topic that was made again for its namesake; test_classic_membership.py",
}
"""What this simulator cannot show, and what does."""
