"""Record batches, Kafka's format v2 (KIP-98): scan, build, restamp and decode.

A batch is a header of 61 bytes and its records, which may be compressed as a whole. The CRC-32C covers everything
from the attributes on, so base offset and leader epoch, which the leader sets, can change without touching it.
Clients and nodes handle whole batches; the work on single records happens in C, a batch or a column at a time.
"""

from .._transactions import Marker, marker_of
from ..errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InflatedTooLargeError,
    InvalidRecordsError,
    StorageError,
    UnsupportedCompressionError,
)
from ._arrow import (
    ArrowColumn,
    ArrowHeaders,
    BatchBuilder,
    ColumnMemory,
    PackedColumn,
    PackedHeaders,
    PackedRecords,
    pack_in_parts,
    pack_records,
    partition_keys,
)
from ._build import (
    build_batch,
    build_marker,
    compressed,
    record_overhead_bytes,
    restamp_producer,
)
from ._codecs import MAX_INFLATED_BYTES, Compression
from ._columns import Buffer, Headers, encode_headers
from ._records import Columns, Record, check_produced, control_type, decode_columns, records
from ._scan import (
    BATCH_OVERHEAD_BYTES,
    ROW_FORMAT,
    SEQUENCE_MODULUS,
    BatchInfo,
    crc32c,
    find_batch,
    scan,
    scan_file,
    scan_prefix,
    scan_produced,
    scan_rows,
)

__all__ = [
    "ArrowColumn",
    "ArrowHeaders",
    "BatchBuilder",
    "PackedColumn",
    "PackedHeaders",
    "PackedRecords",
    "pack_in_parts",
    "pack_records",
    "ColumnMemory",
    "partition_keys",
    "BATCH_OVERHEAD_BYTES",
    "MAX_INFLATED_BYTES",
    "ROW_FORMAT",
    "SEQUENCE_MODULUS",
    "BatchInfo",
    "Buffer",
    "Columns",
    "Compression",
    "Headers",
    "Marker",
    "Record",
    "build_batch",
    "build_marker",
    "check_produced",
    "compressed",
    "control_type",
    "crc32c",
    "decode_columns",
    "encode_headers",
    "find_batch",
    "marker_of",
    "record_overhead_bytes",
    "records",
    "restamp_producer",
    "scan",
    "scan_file",
    "scan_prefix",
    "scan_produced",
    "scan_rows",
    "BatchTooLargeError",
    "CorruptBatchError",
    "InflatedTooLargeError",
    "InvalidRecordsError",
    "StorageError",
    "UnsupportedCompressionError",
]
