"""A node's settings from a file, the environment and arguments; and what is refused, with its reason."""

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication import ReplicationError
from insync.replication.node import InvalidSettingError, NodeSettings, load_settings

BASE = {"node_id": 1, "data_dir": "d", "store": "memory://m"}


def toml(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def test_each_source_wins_over_those_before(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        'node_id = 1\nstore = "memory://file"\nlisteners = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]\n'
        'data_dir = "file"\nrack = "file"\nallow_insecure = true\nflush_interval_ms = 7\n',
    )
    environment = {
        "INSYNC_NODE_STORE": "memory://environment",
        "INSYNC_NODE_RACK": "environment",
        "OTHER": "x",
    }
    settings = load_settings(
        file=file, environment=environment, assignments=["rack=assigned"], given={"node_id": 5, "rack": None}
    )
    assert settings == NodeSettings(
        node_id=5,
        data_dir="file",
        store="memory://environment",
        listeners=("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        rack="assigned",
        allow_insecure=True,
        flush_interval_ms=7,
    )


def test_texts_are_read_as_the_types_ask() -> None:
    settings = load_settings(
        environment={
            "INSYNC_NODE_LISTENERS": "tcp://127.0.0.1:1, tcp://127.0.0.1:2",
            "INSYNC_NODE_LOG_DIRS": "a,b",
        },
        assignments=[
            "allow_insecure=yes",
            "session_timeout_ms=250",
            "log_cleaner_io_max_bytes_per_second=1.5e6",
        ],
        given={"node_id": 1, "store": "memory://m"},
    )
    assert settings.listeners == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert settings.folders == (Path("a"), Path("b"))
    assert settings.allow_insecure is True
    assert settings.session_timeout_ms == 250
    assert settings.log_cleaner_io_max_bytes_per_second == 1.5e6


def test_a_later_source_may_give_one_folder_in_place_of_several() -> None:
    environment = {"INSYNC_NODE_LOG_DIRS": "a,b"}
    settings = load_settings(environment=environment, given={**BASE, "data_dir": "one"})
    assert settings.folders == (Path("one"),)
    with pytest.raises(InvalidSettingError, match="either data_dir"):
        load_settings(
            environment={**environment, "INSYNC_NODE_DATA_DIR": "c"}, given={"node_id": 1, "store": "s"}
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replica_lag_time_max = 5", "did you mean replica_lag_time_max_ms?"),
        ("zzzz = 5", "unknown setting 'zzzz'; there are allow, allow_insecure"),
        ('session_timeout_ms = "5s"', "session_timeout_ms='5s': use a whole number"),
        ("session_timeout_ms = 1.5", "session_timeout_ms=1.5: use a whole number"),
        ("session_timeout_ms = 0", "session_timeout_ms=0: use a number above 0"),
        (
            "session_timeout_ms = 1",
            "session_timeout_ms=1: a node could not renew its session in time; use 100",
        ),
        ("session_timeout_ms = 99", "session_timeout_ms=99"),
        ("busy_poll_us = -1", "busy_poll_us=-1: use 0 or more"),
        ("busy_poll_us = 1.5", "busy_poll_us=1.5: use a whole number"),
        ("busy_poll_us = 1000001", "busy_poll_us=1000001: use 1000000 (a second) or less"),
        (
            "group_consumer_session_timeout_ms = 6000\ngroup_consumer_heartbeat_interval_ms = 6000",
            "group_consumer_heartbeat_interval_ms=6000 must be below group_consumer_session_timeout_ms=6000",
        ),
        ("group_min_session_timeout_ms = 7\ngroup_max_session_timeout_ms = 6", "7 must not be above"),
        ("allow_insecure = 3", "allow_insecure=3"),
        ("listeners = [1]", "listeners=[1]"),
        ("listeners = []", "listeners is empty"),
        ("[node]\nrack = 'a'", "unknown setting 'node'"),
        ("node_id = ", "is not valid TOML"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=re.escape(message)):
        load_settings(file=toml(tmp_path, text), environment={}, given=BASE)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="node_id, store: not set"):
        load_settings(environment={}, given={"data_dir": "d"})
    with pytest.raises(InvalidSettingError, match="cannot be read: No such file"):
        load_settings(file=tmp_path / "absent.toml", environment={})
    with pytest.raises(InvalidSettingError, match="write name=value"):
        load_settings(environment={}, assignments=["rack"], given=BASE)
    with pytest.raises(InvalidSettingError, match="write true or false"):
        load_settings(environment={}, assignments=["allow_insecure=perhaps"], given=BASE)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_a_file_holds_it_is_settings_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(raw)
    try:
        settings = load_settings(file=path, environment={}, given=BASE)
    except ReplicationError as error:
        assert str(error)
    else:
        assert settings.node_id == 1


NAMES = st.sampled_from([field.name for field in attrs.fields(NodeSettings)])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.lists(st.text())
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_values_are_given_it_is_settings_or_a_clear_error(values: dict[str, object]) -> None:
    try:
        load_settings(environment={}, given={**BASE, **values})
    except InvalidSettingError as error:
        assert str(error)
