"""Kit, group I: under the trio clock and a seed the same happens again."""

from __future__ import annotations

import trio
import trio.testing

from ..chaos import PREFIX, ChaosTransport
from ..errors import EndOfLink, LinkBroken
from ..urls import URL
from ._frame import Env, Needs, case, message

Trace = list[tuple[float, bytes]]


@case("I", Needs.DETERMINISM)
async def the_same_seed_gives_the_same_trace(env: Env) -> None:
    """Late and lost as a seed says, frames arrive at the same times again; by another seed at others."""
    traces = [await _trace(env, f"seed={seed}&delay_ms=50&loss=0.02") for seed in (1, 1, 2)]
    assert traces[0] == traces[1], "the same seed, another trace"
    assert traces[0] != traces[2], "the seed does not matter"
    assert len(traces[0]) > 3


@case("I", Needs.DETERMINISM)
async def what_is_cut_off_stays_cut_off_and_a_new_link_is_whole(env: Env) -> None:
    """A one-way cut lets pass exactly what came before it, every time."""
    for _ in range(2):
        trace = await _trace(env, "seed=3&cut=out&cut_after=4")
        assert [body for _, body in trace] == [b"%d" % number for number in range(5)], trace


async def _trace(env: Env, faults: str) -> Trace:
    """The frames that arrive of 100, and when, in a run of its own under a clock of its own."""

    def run() -> Trace:
        clock = trio.testing.MockClock(autojump_threshold=0.001)
        return trio.run(_send_and_record, env, faults, clock=clock)

    return await trio.to_thread.run_sync(run)


async def _send_and_record(env: Env, faults: str) -> Trace:
    chaos, trace = ChaosTransport(env.transport), Trace()
    listener = await env.transport.listen(env.transport.parse(URL.parse(env.listen_url())))
    here = str(listener.endpoints[0])
    link = await chaos.connect(chaos.parse(URL.parse(f"{PREFIX}{here}?{faults}")))
    other, start = await listener.accept(), trio.current_time()

    async def send() -> None:
        try:
            for number in range(100):
                await link.send(message(b"%d" % number), ())
            await link.aclose()
        except LinkBroken:
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            while True:
                for frame in await other.recv_many():
                    trace.append((round(trio.current_time() - start, 6), frame.body))
        except (EndOfLink, LinkBroken):
            trace.append((round(trio.current_time() - start, 6), b"end"))
    link.abort()
    other.abort()
    await listener.aclose()
    return trace if "cut" not in faults else trace[:-1]
