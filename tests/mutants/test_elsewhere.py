"""Each planted error that the simulator does not play fails the test that it names."""

from __future__ import annotations

import pytest
import trio

from . import elsewhere


@pytest.mark.parametrize("name", elsewhere.REGISTRY.mutants)
def test_a_test_notices_what_the_simulator_does_not_play(name: str) -> None:
    shown = elsewhere.SHOWN[name]
    shown()
    with pytest.MonkeyPatch.context() as patch:
        elsewhere.REGISTRY.mutants[name].plant(patch)
        with pytest.raises((AssertionError, trio.TooSlowError, ExceptionGroup)):
            shown()
