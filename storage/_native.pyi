"""What `csrc/build_storage.py` compiles, as far as Python code uses it."""

from typing import Any

ffi: Any
"""A `cffi.FFI`; stubs of cffi, where they are installed, know nothing of our structs."""

class _Lib:
    ISR_OK: int
    ISR_TRUNCATED: int
    ISR_BAD_MAGIC: int
    ISR_BAD_LENGTH: int
    ISR_BAD_CRC: int
    ISR_BAD_HEADER: int
    ISR_BAD_RECORD: int
    ISR_COMPRESSED: int
    ISR_IO_ERROR: int
    ISR_VERIFY_CRC: int
    ISR_VERIFY_RECORDS: int
    ISR_WRONG_OFFSET: int
    ISR_WRONG_EPOCH: int
    ISR_MARKER_NONE: int
    ISR_MARKER_ABORT: int
    ISR_MARKER_COMMIT: int
    ISR_TRANSACTION_BEGUN: int
    ISR_MAP_FULL: int
    ISR_SPECIAL: int
    ISR_NO_ROOM: int
    ISR_CLEAN_VERIFY: int
    ISR_CLEAN_ANY: int
    ISR_CLEAN_DROP: int
    ISR_CLEAN_MARK: int
    def isr_keymap_new(self, slots: int, seed: Any) -> Any: ...
    def isr_keymap_free(self, map: Any) -> None: ...
    def isr_keymap_count(self, map: Any) -> int: ...
    def isr_keymap_add(
        self, map: Any, data: Any, length: int, start_offset: int, flags: int, progress: Any
    ) -> int: ...
    def isr_clean(
        self, map: Any, data: Any, length: int, rules: Any, out: Any, room: int, progress: Any
    ) -> int: ...
    def isr_siphash(self, seed: Any, data: Any, length: int, out: Any) -> None: ...
    def isr_crc32c(self, crc: int, data: Any, length: int) -> int: ...
    def isr_crc32c_by(self, way: int, crc: int, data: Any, length: int) -> int: ...
    def isr_crc32c_best_way(self) -> int: ...
    def isr_batch_scan(
        self,
        data: Any,
        length: int,
        start: int,
        verify: int,
        out: Any,
        capacity: int,
        consumed: Any,
        reason: Any,
    ) -> int: ...
    def isr_batch_check_records(self, records: Any, length: int, count: int) -> int: ...
    def isr_batch_scan_file(
        self, fd: int, start: int, end: int, out: Any, capacity: int, consumed: Any, reason: Any
    ) -> int: ...
    def isr_batch_scan_one(self, data: Any, length: int, verify: int, out: Any) -> int: ...
    def isr_batch_search(
        self, data: Any, length: int, start: int, min_base: int, max_base: int, min_epoch: int
    ) -> int: ...
    def isr_batch_walk_file(
        self, fd: int, start: int, end: int, stop_offset: int, position: Any, offset: Any
    ) -> int: ...
    def isr_batch_slice_file(
        self,
        fd: int,
        segment: Any,
        offset: int,
        limit_offset: int,
        max_bytes: int,
        at_least_one: int,
        out: Any,
    ) -> int: ...
    def isr_batch_stamp(self, data: Any, length: int, base_offset: int, leader_epoch: int) -> int: ...
    def isr_batch_build(
        self,
        out: Any,
        capacity: int,
        count: int,
        keys: Any,
        values: Any,
        headers: Any,
        timestamps: Any,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        attributes: int,
    ) -> int: ...
    def isr_arrow_measure(self, lengths: Any, count: int) -> int: ...
    def isr_arrow_gather(
        self, data: Any, length: int, starts: Any, lengths: Any, count: int, room: Any
    ) -> int: ...
    def isr_arrow_measure_headers(
        self,
        data: Any,
        length: int,
        starts: Any,
        counts: Any,
        count: int,
        total: Any,
        key_bytes: Any,
        value_bytes: Any,
    ) -> int: ...
    def isr_arrow_gather_headers(
        self,
        data: Any,
        length: int,
        starts: Any,
        counts: Any,
        count: int,
        list_offsets: Any,
        keys: Any,
        values: Any,
    ) -> int: ...
    def isr_arrow_partition(self, keys: Any, partitions: int, out: Any) -> int: ...
    def isr_arrow_build(
        self,
        out: Any,
        capacity: int,
        rows: Any,
        count: int,
        keys: Any,
        values: Any,
        headers: Any,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        attributes: int,
        taken: Any,
    ) -> int: ...
    def isr_batch_restamp_producer(
        self, data: Any, length: int, producer_id: int, producer_epoch: int, base_sequence: int
    ) -> int: ...
    def isr_batch_decode(
        self,
        data: Any,
        length: int,
        start_offset: int,
        cursor: Any,
        out: Any,
        capacity: int,
        reason: Any,
    ) -> int: ...
    def isr_producers_new(self) -> Any: ...
    def isr_producers_free(self, table: Any) -> None: ...
    def isr_producers_count(self, table: Any) -> int: ...
    def isr_producers_at(self, table: Any, index: int) -> Any: ...
    def isr_producers_step_count(self, table: Any) -> int: ...
    def isr_producers_steps(self, table: Any) -> Any: ...
    def isr_batch_marker(self, records: Any, length: int, coordinator_epoch: Any) -> int: ...
    def isr_producers_replay(self, table: Any, fd: int, position: Any, end: int) -> int: ...
    def isr_log_scan(
        self, fd: int, end: int, interval: int, state: Any, found: Any, producers: Any
    ) -> int: ...
    def isr_log_find_timestamp(
        self, fd: int, position: Any, limit: int, end: int, timestamp: int, min_offset: int, size: Any
    ) -> int: ...
    def isr_map(self, fd: int, size: int) -> Any: ...
    def isr_unmap(self, mapping: Any) -> None: ...
    def isr_sync_filesystem(self, fd: int) -> int: ...
    def isr_handover_ask(self, handover: Any) -> None: ...
    def isr_handover_ask_and_wait(self, handover: Any, timeout_ns: int) -> int: ...
    def isr_handover_rest(self, handover: Any, done: int) -> int: ...
    def isr_handover_leave(self, handover: Any) -> None: ...
    def isr_handover_end(self, handover: Any) -> None: ...

lib: _Lib
