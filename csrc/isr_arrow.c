#include "isr_arrow.h"

#include <string.h>

#include "isr_record.h"
#include "isr_write.h"

int64_t isr_arrow_measure(const int32_t *lengths, size_t count)
{
    int64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (lengths[i] > 0)
            total += lengths[i];
        if (total > INT32_MAX)
            return -1;
    }
    return total;
}

/* Item i of the room; those before it have been put. */
static int put_item(isr_arrow_room *room, size_t i, const uint8_t *start, int32_t length)
{
    int32_t at = room->offsets[i];
    if (length < 0) {
        room->nulls++;
        room->offsets[i + 1] = at;
        return 0;
    }
    if ((size_t)length > room->capacity - (size_t)at)
        return -1;
    memcpy(room->bytes + at, start, (size_t)length);
    room->validity[i >> 3] |= (uint8_t)(1 << (i & 7));
    room->offsets[i + 1] = at + length;
    return 0;
}

static void open_room(isr_arrow_room *room)
{
    room->offsets[0] = 0;
    room->nulls = 0;
    if (room->capacity > INT32_MAX)
        room->capacity = INT32_MAX;
}

int isr_arrow_gather(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *lengths,
                     size_t count, isr_arrow_room *room)
{
    open_room(room);
    for (size_t i = 0; i < count; i++) {
        if (lengths[i] > 0 && (starts[i] < 0 || (uint64_t)starts[i] > len || (size_t)lengths[i] > len - (size_t)starts[i]))
            return -1;
        if (put_item(room, i, data + (lengths[i] > 0 ? starts[i] : 0), lengths[i]))
            return -1;
    }
    return 0;
}

int isr_arrow_measure_headers(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *counts,
                              size_t count, int64_t *total, int64_t *key_bytes, int64_t *value_bytes)
{
    const uint8_t *start;
    int32_t length;
    *total = *key_bytes = *value_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (counts[i] <= 0)
            continue;
        if (starts[i] < 0 || (uint64_t)starts[i] > len)
            return -1;
        const uint8_t *p = data + starts[i];
        for (int32_t n = 0; n < counts[i]; n++) {
            if (!get_item(&p, data + len, &start, &length))
                return -1;
            *key_bytes += length > 0 ? length : 0;
            if (!get_item(&p, data + len, &start, &length))
                return -1;
            *value_bytes += length > 0 ? length : 0;
        }
        *total += counts[i];
        if (*total > INT32_MAX - 1 || *key_bytes > INT32_MAX || *value_bytes > INT32_MAX)
            return -1;
    }
    return 0;
}

int isr_arrow_gather_headers(const uint8_t *data, size_t len, const int64_t *starts, const int32_t *counts,
                             size_t count, int32_t *list_offsets, isr_arrow_room *keys,
                             isr_arrow_room *values)
{
    const uint8_t *start;
    int32_t length;
    size_t at = 0;
    open_room(keys);
    open_room(values);
    list_offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *p = data + (counts[i] > 0 ? starts[i] : 0);
        for (int32_t n = 0; n < counts[i]; n++, at++) {
            /* A header has a key, if only an empty one. */
            if (!get_item(&p, data + len, &start, &length) || put_item(keys, at, start, length > 0 ? length : 0))
                return -1;
            if (!get_item(&p, data + len, &start, &length) || put_item(values, at, start, length))
                return -1;
        }
        list_offsets[i + 1] = (int32_t)at;
    }
    return 0;
}

static int is_null(const uint8_t *validity, size_t item)
{
    return validity != NULL && !(validity[item >> 3] >> (item & 7) & 1);
}

/* Where item i of a column lies, length -1 for null; 0 if the column does not hold it. */
static int find_item(const isr_arrow_column *column, size_t i, const uint8_t **start, int64_t *length)
{
    *start = column->bytes;
    *length = -1;
    if (i >= column->count)
        return 0;
    size_t item = column->first + i;
    if (column->offsets == NULL || is_null(column->validity, item))
        return 1;
    int32_t from = column->offsets[item], to = column->offsets[item + 1];
    if (from < 0 || to < from || (size_t)to > column->len)
        return 0;
    *start = column->bytes + from;
    *length = to - from;
    return 1;
}

static uint32_t little32(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* Austin Appleby's murmur2 with the seed of Kafka's clients. */
static uint32_t murmur2(const uint8_t *p, size_t len)
{
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28c ^ (uint32_t)len;
    for (; len >= 4; p += 4, len -= 4) {
        uint32_t k = little32(p) * m;
        k ^= k >> 24;
        h = (h * m) ^ (k * m);
    }
    if (len > 0) {
        for (size_t i = 0; i < len; i++)
            h ^= (uint32_t)p[i] << (8 * i);
        h *= m;
    }
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}

int isr_arrow_partition(const isr_arrow_column *keys, int32_t partitions, int32_t *out)
{
    const uint8_t *start;
    int64_t length;
    if (partitions < 1)
        return -1;
    for (size_t i = 0; i < keys->count; i++) {
        if (!find_item(keys, i, &start, &length))
            return -1;
        out[i] = length < 0 ? -1 : (int32_t)((murmur2(start, (size_t)length) & INT32_MAX) % (uint32_t)partitions);
    }
    return 0;
}

/* One record's headers: which items of the columns they are; 0 if the columns do not hold them. */
static int find_headers(const isr_arrow_headers *headers, size_t i, size_t *from, size_t *to)
{
    *from = *to = 0;
    if (headers->offsets == NULL)
        return 1;
    if (i >= headers->count)
        return 0;
    size_t item = headers->first + i;
    if (is_null(headers->validity, item))
        return 1;
    int32_t first = headers->offsets[item], end = headers->offsets[item + 1];
    if (first < 0 || end < first || (size_t)end > headers->keys.count || (size_t)end > headers->values.count)
        return 0;
    *from = (size_t)first;
    *to = (size_t)end;
    return 1;
}

typedef struct {
    new_record record; /* without its headers, which lie in columns */
    size_t first_header, end_header;
} source;

/* The size of a record without the length that stands before it, or -1. */
static int64_t measure(const isr_arrow_column *keys, const isr_arrow_column *values,
                       const isr_arrow_headers *headers, int32_t row, int32_t index, source *from)
{
    new_record *record = &from->record;
    record->delta = 0; /* all records have the batch's timestamp */
    record->index = index;
    if (row < 0 || !find_item(keys, (size_t)row, &record->key, &record->key_length) ||
        !find_item(values, (size_t)row, &record->value, &record->value_length) ||
        !find_headers(headers, (size_t)row, &from->first_header, &from->end_header))
        return -1;
    const uint8_t *start;
    int64_t length;
    int64_t size = (int64_t)(head_size(record) + varint_size((int64_t)(from->end_header - from->first_header)));
    for (size_t n = from->first_header; n < from->end_header; n++) {
        if (!find_item(&headers->keys, n, &start, &length) || length < 0)
            return -1;
        size += (int64_t)item_size(length);
        if (!find_item(&headers->values, n, &start, &length))
            return -1;
        size += (int64_t)item_size(length);
    }
    return size;
}

static uint8_t *put_record(uint8_t *p, int64_t body, const source *from, const isr_arrow_headers *headers)
{
    const uint8_t *start;
    int64_t length;
    p = write_head(p, (size_t)body, &from->record);
    p = put_varint(p, (int64_t)(from->end_header - from->first_header));
    for (size_t n = from->first_header; n < from->end_header; n++) {
        find_item(&headers->keys, n, &start, &length);
        p = write_item(p, start, length);
        find_item(&headers->values, n, &start, &length);
        p = write_item(p, start, length);
    }
    return p;
}

int64_t isr_arrow_build(uint8_t *out, size_t capacity, const int32_t *rows, int32_t count,
                        const isr_arrow_column *keys, const isr_arrow_column *values,
                        const isr_arrow_headers *headers, int64_t timestamp, int64_t producer_id,
                        int16_t producer_epoch, int32_t base_sequence, int16_t attributes, int32_t *taken)
{
    *taken = 0;
    if (capacity > INT32_MAX - LENGTH_END)
        capacity = INT32_MAX - LENGTH_END;
    if (capacity < ISR_BATCH_HEADER)
        return 0;
    uint8_t *p = out + ISR_BATCH_HEADER, *end = out + capacity;
    source from;
    int32_t done = 0;
    for (; done < count; done++) {
        int64_t body = measure(keys, values, headers, rows[done], done, &from);
        if (body < 0)
            return -1;
        if ((int64_t)varint_size(body) + body > end - p)
            break;
        p = put_record(p, body, &from, headers);
    }
    *taken = done;
    if (done == 0)
        return 0;
    put_batch_header(out, p - out, done, timestamp, timestamp, producer_id, producer_epoch, base_sequence, attributes);
    return p - out;
}
