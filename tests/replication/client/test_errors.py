from __future__ import annotations

import copy
import pickle

import pytest

from insync.replication import ReplicationError
from insync.replication.client import (
    ERROR_CLASSES,
    ClientError,
    InvalidSettingError,
    NodeHealth,
    NoDiskRoomError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    TopicNotReadyError,
    UnknownServerError,
    error_for,
)
from insync.replication.client._settings import bootstrap_urls
from insync.replication.client.errors import _SELF_EXPLAINING
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import HealthCheck
from insync.replication.state import CommandError, CommandTooLargeError

CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_class_of_its_own_that_names_thing_and_remedy(code):
    error = error_for(code, "orders-3", "said the node")
    assert type(error) is ERROR_CLASSES[code]
    assert error.code is code and isinstance(error, ReplicationError)
    before, _, remedy = str(error).partition("; ")
    assert before == f"orders-3: {code.name}: said the node"
    assert (len(remedy) > 10) is (code not in _SELF_EXPLAINING)
    before, _, remedy = str(error_for(code, "orders-3")).partition("; ")
    assert before == f"orders-3: {code.name}"
    assert len(remedy) > 10
    assert error.retriable is code.retriable


def test_the_classes_agree_with_the_codes_on_what_is_unknown():
    for code in CODES:
        assert (error_for(code, "x").outcome == "absent") is code.definite, code


def test_a_code_from_the_future_is_told_by_its_number():
    error = error_for(999, "orders-3")
    assert type(error) is UnknownServerError and "999" in str(error)


def test_errors_survive_pickling_with_what_they_know():
    error = OffsetOutOfRangeError("gone", outcome="unknown")
    error.offset = 7
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.offset, twin.outcome) == (OffsetOutOfRangeError, "gone", 7, "unknown")
    assert isinstance(twin, ClientError)


@pytest.mark.parametrize(
    "error",
    [
        NoDiskRoomError(2, 10, 5),
        TopicNotReadyError("t", "id", 1, 3, 500),
        CommandError("Sold", "12A"),
        CommandTooLargeError("11 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_are_not_made_of_a_text_survive_pickling_and_copying(error):
    """A pool of processes hands errors on so; one that cannot be read again breaks the pool."""
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), pickle.loads(pickle.dumps(error, 0))):
        assert type(twin) is type(error) and str(twin) == str(error) and vars(twin) == vars(error)


def test_a_member_that_its_group_has_left_behind_has_one_error_in_both_protocols():
    for code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
        error = error_for(code, "group 'g': commit")
        assert isinstance(error, StaleMemberEpochError) and error.code == code


def test_bootstrap_servers_may_be_one_string_or_many():
    assert bootstrap_urls("a:1, tcp://b:2") == ("tcp://a:1", "tcp://b:2")
    assert bootstrap_urls(["mem://x/y"]) == ("mem://x/y",)
    with pytest.raises(InvalidSettingError, match="bootstrap_servers"):
        bootstrap_urls("")


def test_a_node_is_ready_if_it_answers_and_every_check_holds() -> None:
    good, bad = HealthCheck(name="session", ok=True), HealthCheck(name="logs", ok=False)
    assert NodeHealth(node_id=1, checks=[good, good]).ready and NodeHealth(node_id=1).ready
    assert not NodeHealth(node_id=1, checks=[good, bad]).ready
    assert not NodeHealth(node_id=1, checks=[good], error="it does not answer").ready


def test_an_answer_that_names_a_command_gets_no_other_remedy() -> None:
    error = error_for(ErrorCode.NOT_CONTROLLER, "topic 't'", "the store is away; see `insync status`")
    assert str(error) == "topic 't': NOT_CONTROLLER: the store is away; see `insync status`"
