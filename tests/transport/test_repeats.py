"""What repeats is counted, not logged again."""

import logging

import pytest

from insync.transport.repeats import BURST, Repeats


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def log(clock, request):
    log = logging.getLogger(f"tests.{request.node.name}")
    log.addFilter(Repeats(lambda: clock[0]))
    return log


def told(caplog):
    return [record.getMessage() for record in caplog.records]


def fail(log, number, **extra):
    log.warning("no %d", number, extra=extra or None)


def test_a_fault_that_repeats_costs_a_few_lines_and_is_counted(log, clock, caplog):
    for number in range(1000):
        fail(log, number)
    assert told(caplog) == [f"no {number}" for number in range(BURST)]
    clock[0] += 1.0
    fail(log, 1000)
    assert told(caplog)[-1] == f"no 1000 (and {1000 - BURST} more like this, not shown)"


def test_a_fault_that_goes_on_costs_a_line_a_second(log, clock, caplog):
    for number in range(10_000):
        fail(log, number)
        clock[0] += 0.01
    assert BURST + 98 <= len(told(caplog)) <= BURST + 100


def test_faults_are_told_apart_by_their_line_or_by_name(log, caplog):
    for number in range(100):
        fail(log, number)
        log.warning("another one")
        fail(log, number, fault=("named", 1))
        fail(log, number, fault=("named", 2))
    assert len(told(caplog)) == 4 * BURST


def test_what_is_no_warning_passes(log, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(50):
        log.info("all is well")
    assert len(told(caplog)) == 50


def test_faults_without_end_take_no_memory_without_end(clock):
    repeats = Repeats(lambda: clock[0])
    for number in range(5000):
        record = logging.LogRecord("x", logging.WARNING, "here", number, "a", (), None)
        assert repeats.filter(record)
    assert len(repeats._faults) <= 1000
