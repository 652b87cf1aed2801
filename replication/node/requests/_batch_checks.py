"""The checks of a producer's batch before it may reach a log; and records that are decompressed for them.

Records that no reader can read would stop every consumer of the partition, and its compaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import attrs
import trio

from ....storage import CorruptBatchError, InflatedTooLargeError, InvalidRecordsError, StorageError
from ....storage.batch import MAX_INFLATED_BYTES, BatchInfo, check_produced, scan_produced
from ...core.broker.producing.payloads import RefusedBatchError
from ...core.errors import ErrorCode

_CODECS = 4
"""gzip, snappy, lz4 and zstd."""
_CODEC_MASK, _HAS_DELETE_HORIZON = 0x07, 0x40
_ATTRIBUTES_LOW_BYTE = 22
_LEAST_RECORD_BYTES = 7
_READ_BY_NOBODY = "no consumer could read it"


def check_batches(data: memoryview) -> Sequence[BatchInfo]:
    """The batches in `data`, whole: header, CRC, and records unless they are compressed.

    Raises RefusedBatchError.
    """
    try:
        infos = scan_produced(data)
    except InvalidRecordsError as error:
        raise _invalid(f"{error}: {_READ_BY_NOBODY}") from error
    except CorruptBatchError as error:
        raise RefusedBatchError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    for info in infos:
        codec = info.attributes & _CODEC_MASK
        if info.attributes & _HAS_DELETE_HORIZON:
            raise _invalid("a producer's batch must not have a delete horizon")
        if codec > _CODECS:
            raise _invalid(f"codec {codec} is not one of gzip, snappy, lz4 and zstd: {_READ_BY_NOBODY}")
        if codec and info.record_count * _LEAST_RECORD_BYTES > MAX_INFLATED_BYTES:
            raise _invalid(f"{info.record_count} records are more than {MAX_INFLATED_BYTES} bytes can hold")
    return infos


def _invalid(message: str) -> RefusedBatchError:
    return RefusedBatchError(ErrorCode.INVALID_RECORD, message)


def is_compressed(payload: memoryview, position: int, size: int) -> bool:
    """Whether the batch at a position says so of itself, if it has a header."""
    return size > _ATTRIBUTES_LOW_BYTE and bool(payload[position + _ATTRIBUTES_LOW_BYTE] & _CODEC_MASK)


def check_compressed(data: memoryview) -> Finding:
    """As `check_batches`, with the records; in a thread, because it may take long."""
    try:
        infos = check_batches(data)
        if len(infos) == 1:  # else the broker refuses them
            check_produced(data, infos[0])
    except RefusedBatchError as error:
        return error
    except InflatedTooLargeError as error:
        return RefusedBatchError(ErrorCode.RECORD_TOO_LARGE, str(error))
    except StorageError as error:
        return _invalid(f"{error}: {_READ_BY_NOBODY}")
    return infos


Finding = Sequence[BatchInfo] | RefusedBatchError
Findings = Mapping[int, Finding]
"""Of batches, by where they begin in the payload."""


@attrs.frozen(eq=False, slots=True)
class _Held:
    to_check: Mapping[int, memoryview]
    proceed: Callable[[Findings], None]


class CompressedChecks:
    """Requests whose records are decompressed before anything else is done with them.

    One at a time, in a thread: a batch of a megabyte may inflate to 128. Requests by the same connection wait
    behind it, since a producer's batches must stay in order; other connections go on.
    """

    def __init__(self, nursery: trio.Nursery, settle: Callable[[], None]) -> None:
        """`settle` is called after each request that had to wait."""
        self._nursery = nursery
        self._settle = settle
        self._held: dict[Hashable, deque[_Held]] = {}
        self._one = trio.CapacityLimiter(1)

    def proceed(
        self, connection: Hashable, to_check: Mapping[int, memoryview], proceed: Callable[[Findings], None]
    ) -> None:
        """Call `proceed` with what is wrong with these batches: at once if there is nothing to wait for."""
        waiting = self._held.get(connection)
        if waiting is None and not to_check:
            proceed({})
            return
        if waiting is None:
            waiting = self._held[connection] = deque()
            self._nursery.start_soon(self._work_off, connection, waiting)
        waiting.append(_Held(to_check, proceed))

    async def _work_off(self, connection: Hashable, waiting: deque[_Held]) -> None:
        while waiting:
            held = waiting[0]
            findings: Findings = {}
            if held.to_check:
                findings = await trio.to_thread.run_sync(
                    partial(_check_all, held.to_check), limiter=self._one, abandon_on_cancel=True
                )
            waiting.popleft()
            if not waiting:
                del self._held[connection]
            held.proceed(findings)
            self._settle()


def _check_all(batches: Mapping[int, memoryview]) -> Findings:
    return {position: check_compressed(data) for position, data in batches.items()}
