/* Records from and to columns in the memory layout of Apache Arrow (https://arrow.apache.org/docs/format/Columnar.html):
 * the offsets of the items in their bytes, and a validity bit for each, lowest bit first. Arrow itself is not needed. */
#ifndef ISR_ARROW_H
#define ISR_ARROW_H

#include <stddef.h>
#include <stdint.h>

/* Room for `count` items: offsets has count + 1 places, validity a bit for each item and is zeroed before. */
typedef struct {
    int32_t *offsets;
    uint8_t *bytes;
    size_t capacity;          /* of bytes */
    uint8_t *validity;
    int64_t nulls;            /* set: how many of the items are null */
} isr_arrow_room;

/* The bytes that so many items take together; lengths of -1 (null) take none. -1 if over 2^31-1. */
int64_t isr_arrow_measure(const int32_t *lengths, size_t count);

/* Copies the items data[starts[i]..+lengths[i]) into the room. 0, or -1 if one lies outside of the data or they do
 * not fit. */
int isr_arrow_gather(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *lengths,
                     size_t count, isr_arrow_room *room);

/* What the headers of records take: headers in all, and bytes of their keys and values. starts[i] is where the first
 * header of record i begins, counts[i] their number. 0, or -1 if they run out of the data or over 2^31-1. */
int isr_arrow_measure_headers(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *counts,
                              size_t count, int64_t *total, int64_t *key_bytes, int64_t *value_bytes);

/* Copies them: the headers of record i are the items list_offsets[i] to list_offsets[i + 1] of both rooms. */
int isr_arrow_gather_headers(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *counts,
                             size_t count, int32_t *list_offsets, isr_arrow_room *keys,
                             isr_arrow_room *values);

/* A column as Arrow hands it out. */
typedef struct {
    const int32_t *offsets;   /* from item 0 of the buffer on; NULL: every item is null */
    const uint8_t *bytes;
    size_t len;               /* of bytes */
    const uint8_t *validity;  /* NULL: no item is null */
    size_t first;             /* which item of the buffers is the column's first */
    size_t count;
} isr_arrow_column;

/* The headers of records: a list of keys and values for each; a null list has none. offsets NULL: no record has any. */
typedef struct {
    const int32_t *offsets;
    const uint8_t *validity;
    size_t first;
    size_t count;
    isr_arrow_column keys;
    isr_arrow_column values;
} isr_arrow_headers;

/* The partition of each record by Kafka's rule for keys (murmur2); -1 for one without a key. 0, or -1 if the
 * offsets make no sense. */
int isr_arrow_partition(const isr_arrow_column *keys, int32_t partitions, int32_t *out);

/* Builds one batch of the records rows[0..count) of the columns, as far as they fit `capacity`; *taken of them do, at
 * least one. Returns the size, 0 if not even the first fits, -1 if the columns make no sense. */
int64_t isr_arrow_build(uint8_t *out, size_t capacity, const int32_t *rows, int32_t count,
                        const isr_arrow_column *keys, const isr_arrow_column *values,
                        const isr_arrow_headers *headers, int64_t timestamp, int64_t producer_id,
                        int16_t producer_epoch, int32_t base_sequence, int16_t attributes, int32_t *taken);

#endif
