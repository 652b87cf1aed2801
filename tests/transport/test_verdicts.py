"""Verdicts of the kits: bounded texts, what was not tested, and errors of the bench, which are not the plugin's."""

import warnings

import pytest
import trio

from insync.transport._memory import MemoryTransport
from insync.transport.kit._frame import Case, Env
from insync.transport.testing import BenchError, NotTestedWarning, cases_for, run_case, skipped_for
from insync.transport.verdicts import NotTestedError, judged, shortened

from .test_kit_finds_queues import PacketTransport, TcpEnv


class Wired(PacketTransport):
    """At the top of a module, as a plugin's."""


class SilentEnv(Env):
    transport = Wired()

    def listen_url(self):
        raise KeyError("no such port")

    def dead_url(self):
        return "packet:///nowhere"

    def malformed_urls(self):
        return []


class MemEnv(SilentEnv):
    transport = MemoryTransport()


def case_named(name, env):
    (found,) = [case for case in (*cases_for(env), *skipped_for(env)) if case.name == name]
    return found


def test_cases_that_the_environment_cannot_run_are_named_with_the_remedy():
    with pytest.warns(NotTestedWarning) as told:
        cases_for(SilentEnv())
    (text,) = {str(each.message) for each in told}
    assert "F_strangers_at_the_door_keep_nobody_out" in text
    assert "override SilentEnv.open_raw, or set stands_on_sockets = False" in text


@pytest.mark.parametrize(
    "env",
    [MemEnv(), type("Pipe", (SilentEnv,), {"stands_on_sockets": False})(), TcpEnv(type(SilentEnv.transport))],
    ids=["one process", "no sockets", "open_raw"],
)
def test_what_does_not_apply_is_no_warning(env):
    with warnings.catch_warnings(action="error"):
        assert cases_for(env)


def test_a_class_that_nobody_can_import_is_told():
    class Local(Wired):
        pass

    with pytest.warns(
        NotTestedWarning, match=r"E_a_killed_peer_is_noticed.*another process cannot import .*Local"
    ):
        cases_for(type("LocalEnv", (TcpEnv,), {})(Local))


async def test_an_error_of_the_environment_is_not_the_transports():
    with warnings.catch_warnings(action="ignore"):
        case = case_named("B_order_is_kept", SilentEnv())
    with pytest.raises(
        BenchError, match=r"B_order_is_kept: SilentEnv.listen_url failed(?s:.*)KeyError: 'no such port'"
    ):
        await run_case(case, SilentEnv())


async def test_a_case_outside_the_main_thread_is_not_tested(tmp_path):
    env = MemEnv()
    case = case_named("E_signals_interrupt_nothing", env)
    with pytest.warns(
        NotTestedWarning, match="E_signals_interrupt_nothing was not tested in full: run the kit in the main"
    ):
        await trio.to_thread.run_sync(lambda: trio.run(run_case, case, env))


async def test_an_assertion_without_words_shows_what_is_compared_in_bounded_length():
    async def run(env):
        found = b"x" * 9_000_000
        assert found == b"", found.decode()

    async def wordless(env):
        number = 7
        assert number == 8

    with pytest.raises(AssertionError) as caught:
        await run_case(Case("X_long", "It is short.", (), run), MemEnv())
    assert len(str(caught.value)) < 5_000 and "characters ..." in str(caught.value)
    with pytest.raises(AssertionError, match=r"X_wordless: broken is the promise: It holds\. Seen: "):
        await run_case(Case("X_wordless", "It holds.", (), wordless), MemEnv())


class Bench:
    def fail(self):
        raise ValueError("of the bench")

    def ask(self):
        raise ValueError("of what is asked")


def error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error
    raise AssertionError("no error")


def test_a_missing_attribute_is_the_benchs():
    bench = Bench()
    with pytest.raises(BenchError, match=r"case: Bench\.handle failed"):
        judged("case", bench, error_of(lambda: bench.handle()))  # type: ignore[attr-defined]


def test_what_a_method_that_asks_raises_is_the_plugins():
    bench = Bench()
    assert judged("case", bench, error_of(bench.ask), tries=("ask",))
    with pytest.raises(BenchError):
        judged("case", bench, error_of(bench.fail), tries=("ask",))


def test_a_group_with_an_error_of_the_plugin_is_judged():
    bench = Bench()
    assert judged("case", bench, ExceptionGroup("", [error_of(bench.fail), ValueError("of the plugin")]))
    with pytest.raises(BenchError):
        judged("case", bench, ExceptionGroup("", [error_of(bench.fail)]))


def test_what_cannot_go_on_is_no_failure():
    with pytest.warns(NotTestedWarning, match="case was not tested in full: add this"):
        assert not judged("case", Bench(), ExceptionGroup("", [NotTestedError("add this")]))
    assert judged("case", Bench(), ExceptionGroup("", [NotTestedError("add this"), ValueError()]))


def test_a_long_text_keeps_its_ends():
    text = "a" * 3_000 + "b" * 5_000 + "c" * 3_000
    short = shortened(text)
    assert (
        short.startswith("a" * 2_000)
        and short.endswith("c" * 2_000)
        and "[... 7,000 characters ...]" in short
    )
    assert shortened(text, 11_000) == text
