"""The check for lost wake-ups: that it passes, and that it would find one."""

import pytest
import trio

from insync.transport.sockets import SocketStream

from .. import wakeups


@pytest.mark.parametrize("url", wakeups.URLS)
def test_none_is_lost(url, capsys):
    assert wakeups.check(url, 3_000, seed=1)
    assert "3,000 answers" in capsys.readouterr().out


def test_a_lost_one_is_found(monkeypatch, capsys):
    wait, count = SocketStream.until_readable, 0

    def oversleeps(self, at_least):
        """From the hundredth time on it is not woken by what is less than 4 KiB."""
        nonlocal count
        count += 1
        return wait(self, at_least if count < 100 else max(at_least, 4096))

    monkeypatch.setattr(SocketStream, "until_readable", oversleeps)
    monkeypatch.setattr(wakeups, "PATIENCE", 2)
    assert not wakeups.check("tcp://127.0.0.1:0", 3_000, seed=1)
    assert "a wake-up is lost" in capsys.readouterr().err


async def test_a_wrong_answer_is_found(monkeypatch):
    answer = wakeups.Answerer.answer
    count = 0

    def wrong(request):
        nonlocal count
        count += 1
        if count != 40:
            return answer(request)
        request.payload.release()
        return request.reply(request.body, [b"something else"])

    monkeypatch.setattr(wakeups.Answerer, "answer", staticmethod(wrong))
    said = []
    there = trio.Event()

    def say(url):
        said.append(url)
        there.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wakeups.answer("mem://wakeups/door", say=say))
        await there.wait()
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="got another answer")):
            await wakeups.Asker(200, wakeups.random.Random(1)).run(said[0])
        nursery.cancel_scope.cancel()
