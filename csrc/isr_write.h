/* Writing records and the header of a batch, for the C files; not for Python. */
#ifndef ISR_WRITE_H
#define ISR_WRITE_H

#include <string.h>

#include "isr_crc32c.h"
#include "isr_header.h"

static inline uint64_t zigzag(int64_t v)
{
    return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}

static inline size_t varint_size(int64_t v)
{
    uint64_t z = zigzag(v);
    size_t size = 1;
    while (z >= 0x80) {
        z >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t v)
{
    uint64_t z = zigzag(v);
    while (z >= 0x80) {
        *p++ = (uint8_t)(z | 0x80);
        z >>= 7;
    }
    *p++ = (uint8_t)z;
    return p;
}

/* The size of an item with its length before it; -1 is null. */
static inline size_t item_size(int64_t length)
{
    return varint_size(length) + (length > 0 ? (size_t)length : 0);
}

/* The item with its length before it; -1 is null. */
static inline uint8_t *write_item(uint8_t *p, const uint8_t *bytes, int64_t length)
{
    p = put_varint(p, length);
    if (length > 0) {
        memcpy(p, bytes, (size_t)length);
        p += length;
    }
    return p;
}

/* A record to be written. Lengths of -1 are null; `headers` are as they stand in the record, count first, or of length 0. */
typedef struct {
    const uint8_t *key, *value, *headers;
    int64_t key_length, value_length, headers_length;
    int64_t delta; /* of its timestamp to that of the first */
    int32_t index;
} new_record;

/* The size of all that stands before the headers of a record, but for its length. */
static inline size_t head_size(const new_record *record)
{
    return 1 + varint_size(record->delta) + varint_size(record->index) + item_size(record->key_length) +
           item_size(record->value_length);
}

/* The size of a record without the length that stands before it. */
static inline size_t body_size(const new_record *record)
{
    return head_size(record) + (record->headers_length ? (size_t)record->headers_length : 1);
}

/* All of a record of that size up to its headers. */
static inline uint8_t *write_head(uint8_t *p, size_t body, const new_record *record)
{
    p = put_varint(p, (int64_t)body);
    *p++ = 0;
    p = put_varint(p, record->delta);
    p = put_varint(p, record->index);
    p = write_item(p, record->key, record->key_length);
    return write_item(p, record->value, record->value_length);
}

static inline uint8_t *write_record(uint8_t *p, size_t body, const new_record *record)
{
    p = write_head(p, body, record);
    if (record->headers_length == 0) {
        *p++ = 0;
        return p;
    }
    memcpy(p, record->headers, (size_t)record->headers_length);
    return p + record->headers_length;
}

/* The header of a batch of `size` bytes at base offset 0, epoch -1; its records stand behind it already. */
static inline void put_batch_header(uint8_t *out, int64_t size, int32_t count, int64_t base_timestamp,
                                    int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
                                    int32_t base_sequence, int16_t attributes)
{
    put64(out, 0);
    put32(out + 8, (uint32_t)(size - LENGTH_END));
    put32(out + 12, UINT32_MAX);
    out[16] = 2;
    put16(out + 21, (uint16_t)attributes);
    put32(out + 23, (uint32_t)(count - 1));
    put64(out + 27, (uint64_t)base_timestamp);
    put64(out + 35, (uint64_t)max_timestamp);
    put64(out + 43, (uint64_t)producer_id);
    put16(out + 51, (uint16_t)producer_epoch);
    put32(out + 53, (uint32_t)base_sequence);
    put32(out + 57, (uint32_t)count);
    put32(out + 17, isr_crc32c(0, out + CRC_FROM, (size_t)size - CRC_FROM));
}

#endif
