/* One record of a batch, as the C files read it; not for Python. */
#ifndef ISR_RECORD_H
#define ISR_RECORD_H

#include <stdint.h>

/* Reads a varint and moves *p behind it; 0 if it does not end before `end`. */
static inline int get_varint(const uint8_t **p, const uint8_t *end, int64_t *value)
{
    uint64_t raw = 0;
    const uint8_t *at = *p;
    if (at < end && *at < 0x80) {
        *value = (int64_t)(*at >> 1) ^ -(int64_t)(*at & 1);
        *p = at + 1;
        return 1;
    }
    for (int shift = 0; at < end && shift < 64; shift += 7) {
        uint8_t byte = *at++;
        raw |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value = (int64_t)(raw >> 1 ^ (0 - (raw & 1)));
            *p = at;
            return 1;
        }
    }
    return 0;
}

/* Reads a length and skips that many bytes; start and length say where they lie. */
static inline int get_item(const uint8_t **p, const uint8_t *end, const uint8_t **start, int32_t *length)
{
    int64_t wide;
    if (!get_varint(p, end, &wide) || wide < -1 || wide > end - *p)
        return 0;
    *start = *p;
    *length = (int32_t)wide;
    if (wide > 0)
        *p += wide;
    return 1;
}

typedef struct {
    int64_t timestamp_delta;
    int64_t offset_delta;
    const uint8_t *key, *value, *headers;
    int32_t key_length, value_length, header_count;
} record_view;

static inline int skip_headers(const uint8_t **p, const uint8_t *end, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *start;
        int32_t length;
        if (!get_item(p, end, &start, &length) || length < 0 || !get_item(p, end, &start, &length))
            return 0;
    }
    return 1;
}

static inline int get_record(const uint8_t **p, const uint8_t *end, record_view *record)
{
    int64_t length, headers;
    if (!get_varint(p, end, &length) || length < 1 || length > end - *p)
        return 0;
    const uint8_t *stop = *p + length;
    *p += 1;
    if (!get_varint(p, stop, &record->timestamp_delta) || !get_varint(p, stop, &record->offset_delta) ||
        !get_item(p, stop, &record->key, &record->key_length) ||
        !get_item(p, stop, &record->value, &record->value_length) || !get_varint(p, stop, &headers) ||
        headers < 0 || headers > stop - *p)
        return 0;
    record->headers = *p;
    record->header_count = (int32_t)headers;
    return skip_headers(p, stop, record->header_count) && *p == stop;
}

#endif
