import itertools

import pytest

from insync.transport._memory import MemoryTransport
from insync.transport.testing import Env, cases_for, run_case, skipped_for


class MemoryEnv(Env):
    transport = MemoryTransport()
    _numbers = itertools.count()

    def listen_url(self):
        return f"mem://kit/listener-{next(self._numbers)}"

    def dead_url(self):
        return "mem://kit/nobody"

    def malformed_urls(self):
        return ["mem://", "mem://net", "mem://net/", "mem:///name"]


def test_what_is_left_out():
    """What needs bytes, or a second process: mem carries messages within one."""
    assert {case.name for case in skipped_for(MemoryEnv())} == {
        "C_a_large_range_needs_little_memory",
        "E_a_killed_peer_is_noticed",
        "E_a_peer_that_leaves_does_not_kill_the_sender",
        "E_a_stopped_peer_is_given_up",
        "E_children_that_keep_descriptors_hide_no_death",
        "F_a_frame_cut_anywhere_breaks_the_link",
        "F_garbage_is_hung_up_on",
        "F_a_frame_above_the_limits_is_not_taken_in",
        "F_a_hello_without_end_is_not_taken_in",
        "F_strangers_at_the_door_keep_nobody_out",
        "G_a_large_frame_gives_signs_of_life",
        "F_half_open_links_do_not_keep_others_out",
    }


@pytest.mark.parametrize("case", cases_for(MemoryEnv()), ids=lambda case: case.name)
async def test_memory(case):
    await run_case(case, MemoryEnv())
