"""Keys and values to bytes and back, by functions of the user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ._arguments import shown
from ._settings import ConsumerSettings, Deserializer, ProducerSettings, Serializer
from .errors import DeserializationError, SerializationError


class Serializers:
    """The serializers of a producer; false if there is none."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._key, self._value = settings.key_serializer, settings.value_serializer

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def key(self, topic: str, key: Any) -> Any:
        """Raises `SerializationError`; so does `value`."""
        return key if self._key is None or key is None else _serialized(self._key, "key", topic, key)

    def value(self, topic: str, value: Any) -> Any:
        return (
            value if self._value is None or value is None else _serialized(self._value, "value", topic, value)
        )


def _serialized(function: Serializer, what: str, topic: str, data: Any) -> bytes | None:
    try:
        made = function(data)
    except Exception as error:
        raise SerializationError(
            f"topic {topic!r}: {what}_serializer refuses {shown(data)}: {error!r}"
        ) from error
    if not isinstance(made, bytes | bytearray | memoryview | None):
        raise SerializationError(
            f"topic {topic!r}: {what}_serializer made {type(made).__name__} of {shown(data)}; it must make bytes"
        )
    return None if made is None else bytes(made)


class Deserializers:
    """The deserializers of a consumer; false if there is none."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._key, self._value = settings.key_deserializer, settings.value_deserializer

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def applied(self, records: Iterable[Any]) -> Iterator[Any]:
        """The records with what was made of their keys and values; raises `DeserializationError` at the first
        of which nothing can be made.
        """
        for record in records:
            yield record._replace(
                key=_deserialized(self._key, "key", record, record.key),
                value=_deserialized(self._value, "value", record, record.value),
            )


def _deserialized(function: Deserializer | None, what: str, record: Any, data: bytes | None) -> Any:
    if function is None or data is None:
        return data
    try:
        return function(data)
    except Exception as error:
        failure = DeserializationError(
            f"{record.topic}-{record.partition} at offset {record.offset}: {what}_deserializer refuses "
            f"{shown(data)}: {error!r}; seek past it to continue"
        )
        failure.topic, failure.partition, failure.offset = record.topic, record.partition, record.offset
        raise failure from error
