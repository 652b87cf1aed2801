/* Record batches, format v2 (KIP-98): all numbers big endian, a header of 61 bytes, then the records.
 * Whoever calls these checks nothing first: every length is tested against the buffer before it is believed. */
#ifndef ISR_BATCH_H
#define ISR_BATCH_H

#include <stddef.h>
#include <stdint.h>

#define ISR_BATCH_HEADER 61

enum isr_reason {
    ISR_OK = 0,
    ISR_TRUNCATED = 1,        /* the data ends before the batch does */
    ISR_BAD_MAGIC = 2,        /* not format 2 */
    ISR_BAD_LENGTH = 3,       /* shorter than a header */
    ISR_BAD_CRC = 4,
    ISR_BAD_HEADER = 5,       /* offsets, counts or attributes that no writer makes */
    ISR_BAD_RECORD = 6,       /* a record runs out of its batch, or their number is wrong */
    ISR_COMPRESSED = 7,       /* the records need a codec */
    ISR_IO_ERROR = 8,         /* errno says which */
};

typedef struct {
    int64_t base_offset;
    int64_t position;         /* of the batch's first byte in what was scanned */
    int64_t producer_id;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t size_bytes;       /* header and records */
    int32_t last_offset_delta;
    int32_t leader_epoch;
    int32_t record_count;
    int32_t base_sequence;
    int16_t producer_epoch;
    int16_t attributes;
} isr_batch_info;

enum isr_verify {
    ISR_VERIFY_CRC = 1,
    ISR_VERIFY_RECORDS = 2,   /* of uncompressed batches, by isr_batch_check_records */
};

/* Whether these bytes are `count` whole records and nothing else, with offset deltas from 0 on, and can be read by
 * Java, too: no length takes more than five bytes. ISR_OK or ISR_BAD_RECORD. */
int isr_batch_check_records(const uint8_t *records, size_t len, int32_t count);

/* Reads headers of whole batches from data[from..len) into `out`, at most `capacity`; checks of each what `verify`
 * asks for. Returns their number. *consumed is where it stopped, *reason why: ISR_OK at the end of the data or
 * when `out` is full. */
size_t isr_batch_scan(const uint8_t *data, size_t len, size_t from, int verify, isr_batch_info *out,
                      size_t capacity, size_t *consumed, int *reason);

/* Whether the data is exactly one whole batch that passes the checks; *out is its header then. */
int isr_batch_scan_one(const uint8_t *data, size_t len, int verify, isr_batch_info *out);

/* Where a whole and valid batch starts at or after data[from], with min_base <= base offset < max_base and at
 * least that leader epoch; -1 if nowhere. For judging what follows a damaged batch. */
int64_t isr_batch_search(const uint8_t *data, size_t len, size_t from, int64_t min_base, int64_t max_base,
                         int32_t min_epoch);

/* Gives whole batches consecutive offsets from base_offset on, and the leader epoch; neither is under the CRC.
 * Returns the next offset, or -1 if the data is not whole batches. */
int64_t isr_batch_stamp(uint8_t *data, size_t len, int64_t base_offset, int32_t leader_epoch);

typedef struct {
    const uint8_t *bytes;     /* all the items, one after the other */
    size_t len;
    const int32_t *lengths;   /* -1 = null; NULL = every item is null (or, for headers, empty) */
} isr_column;

/* Builds one batch of `count` records at base offset 0, epoch -1. `timestamps` has `count` items.
 * The items of `headers` are encoded already, count first. Returns the size, or -1 if the columns do not fit
 * their bytes or `capacity` is too small. */
int64_t isr_batch_build(uint8_t *out, size_t capacity, int32_t count, const isr_column *keys,
                        const isr_column *values, const isr_column *headers, const int64_t *timestamps,
                        int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                        int16_t attributes);

/* Gives one whole batch another producer id, epoch and sequence, and its CRC anew. 0, or -1 if it is not one. */
int isr_batch_restamp_producer(uint8_t *data, size_t len, int64_t producer_id, int16_t producer_epoch,
                               int32_t base_sequence);

/* Where the fields of records lie in the data; lengths of -1 mean null. */
typedef struct {
    int64_t *offsets;
    int64_t *timestamps;
    int64_t *key_starts;
    int32_t *key_lengths;
    int64_t *value_starts;
    int32_t *value_lengths;
    int64_t *header_starts;   /* of the first header's key length */
    int32_t *header_counts;
} isr_columns;

typedef struct {
    size_t position;          /* of the batch in hand */
    size_t record;            /* position of its next record; 0 = at its header */
    int32_t remaining;        /* records of it still to come */
} isr_cursor;

/* Decodes records of offset >= start_offset from whole batches, at most `capacity`; control batches are
 * passed over. The cursor (zeroed to start) goes on where the last call stopped. Returns their number; *reason
 * as for the scan, with the cursor at the batch it is about. */
size_t isr_batch_decode(const uint8_t *data, size_t len, int64_t start_offset, isr_cursor *cursor,
                        isr_columns *out, size_t capacity, int *reason);

#endif
