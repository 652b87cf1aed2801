#include "isr_batch.h"

#include <string.h>

#include "isr_crc32c.h"
#include "isr_header.h"
#include "isr_record.h"
#include "isr_write.h"

static int crc_matches(const uint8_t *p, size_t size)
{
    return isr_crc32c(0, p + CRC_FROM, size - CRC_FROM) == get32(p + 17);
}

/* A varint that stands for an i32, in at most five bytes as Java reads it: mostly it is one. */
static inline int get_varint32(const uint8_t **p, const uint8_t *end, int32_t *value)
{
    const uint8_t *at = *p;
    uint64_t raw = 0;
    if (at < end && *at < 0x80) {
        *value = (int32_t)(*at >> 1) ^ -(int32_t)(*at & 1);
        *p = at + 1;
        return 1;
    }
    for (int shift = 0; at < end && shift < 35; shift += 7) {
        uint8_t byte = *at++;
        raw |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            if (raw > UINT32_MAX)
                return 0;
            *value = (int32_t)((uint32_t)raw >> 1 ^ (0 - ((uint32_t)raw & 1)));
            *p = at;
            return 1;
        }
    }
    return 0;
}

/* Skips a length and that many bytes. */
static inline int skip_item(const uint8_t **p, const uint8_t *end, int32_t least)
{
    int32_t length;
    if (!get_varint32(p, end, &length) || length < least || length > end - *p)
        return 0;
    *p += length > 0 ? length : 0;
    return 1;
}

int isr_batch_check_records(const uint8_t *records, size_t len, int32_t count)
{
    const uint8_t *p = records, *end = records + len;
    for (int32_t i = 0; i < count; i++) {
        int32_t length, delta, headers;
        int64_t timestamp;
        if (!get_varint32(&p, end, &length) || length < 1 || length > end - p)
            return ISR_BAD_RECORD;
        const uint8_t *stop = p + length;
        p++;
        if (!get_varint(&p, stop, &timestamp) || !get_varint32(&p, stop, &delta) || delta != i ||
            !skip_item(&p, stop, -1) || !skip_item(&p, stop, -1) || !get_varint32(&p, stop, &headers) ||
            headers < 0 || headers > stop - p)
            return ISR_BAD_RECORD;
        while (headers-- > 0)
            if (!skip_item(&p, stop, 0) || !skip_item(&p, stop, -1))
                return ISR_BAD_RECORD;
        if (p != stop)
            return ISR_BAD_RECORD;
    }
    return p == end ? ISR_OK : ISR_BAD_RECORD;
}

size_t isr_batch_scan(const uint8_t *data, size_t len, size_t from, int verify, isr_batch_info *out,
                      size_t capacity, size_t *consumed, int *reason)
{
    size_t found = 0;
    *reason = ISR_OK;
    while (from < len && found < capacity) {
        if (len - from < ISR_BATCH_HEADER) {
            *reason = ISR_TRUNCATED;
            break;
        }
        *reason = check_header(data + from, (int64_t)(len - from));
        if (*reason != ISR_OK)
            break;
        read_header(data + from, (int64_t)from, &out[found]);
        size_t size = (size_t)out[found].size_bytes;
        if ((verify & ISR_VERIFY_CRC) && !crc_matches(data + from, size))
            *reason = ISR_BAD_CRC;
        else if ((verify & ISR_VERIFY_RECORDS) && !(out[found].attributes & CODEC_MASK))
            *reason = isr_batch_check_records(data + from + ISR_BATCH_HEADER, size - ISR_BATCH_HEADER,
                                              out[found].record_count);
        if (*reason != ISR_OK)
            break;
        from += size;
        found++;
    }
    *consumed = from;
    return found;
}

int isr_batch_scan_one(const uint8_t *data, size_t len, int verify, isr_batch_info *out)
{
    size_t consumed;
    int reason;
    /* Of several the first would be checked twice. */
    if (len < ISR_BATCH_HEADER || (uint64_t)get32(data + 8) + LENGTH_END != len)
        return 0;
    return isr_batch_scan(data, len, 0, verify, out, 1, &consumed, &reason) == 1;
}

int64_t isr_batch_search(const uint8_t *data, size_t len, size_t from, int64_t min_base, int64_t max_base,
                         int32_t min_epoch)
{
    for (; from < len && len - from >= ISR_BATCH_HEADER; from++) {
        const uint8_t *p = data + from;
        if (p[16] != 2 || check_header(p, (int64_t)(len - from)) != ISR_OK)
            continue;
        int64_t base = (int64_t)get64(p);
        if (base < min_base || base >= max_base || (int32_t)get32(p + 12) < min_epoch)
            continue;
        if (crc_matches(p, (size_t)get32(p + 8) + LENGTH_END))
            return (int64_t)from;
    }
    return -1;
}

int64_t isr_batch_stamp(uint8_t *data, size_t len, int64_t base_offset, int32_t leader_epoch)
{
    size_t at = 0;
    while (at < len) {
        uint8_t *p = data + at;
        if (len - at < ISR_BATCH_HEADER)
            return -1;
        uint32_t length = get32(p + 8);
        int32_t delta = (int32_t)get32(p + 23);
        if (length < ISR_BATCH_HEADER - LENGTH_END || length > len - at - LENGTH_END || delta < 0 ||
            base_offset > INT64_MAX - delta - 1)
            return -1;
        put64(p, (uint64_t)base_offset);
        put32(p + LENGTH_END, (uint32_t)leader_epoch);
        base_offset += (int64_t)delta + 1;
        at += (size_t)length + LENGTH_END;
    }
    return base_offset;
}

typedef struct {
    const uint8_t *next;
    const uint8_t *end;
    const int32_t *lengths;
} item_reader;

static void open_column(item_reader *r, const isr_column *column)
{
    r->next = column->bytes;
    /* Nothing is added to a null pointer. */
    r->end = column->len == 0 ? column->bytes : column->bytes + column->len;
    r->lengths = column->lengths;
}

/* The length of item i (-1 null), or -2 if the column's bytes do not hold it. */
static int64_t item_length(const item_reader *r, int32_t i)
{
    int64_t length = r->lengths == NULL ? -1 : r->lengths[i];
    return length < -1 || length > r->end - r->next ? -2 : length;
}

/* The next item; one that is null takes nothing. */
static const uint8_t *take(item_reader *r, int64_t length)
{
    const uint8_t *item = r->next;
    if (length > 0)
        r->next += length;
    return item;
}

int64_t isr_batch_build(uint8_t *out, size_t capacity, int32_t count, const isr_column *keys,
                        const isr_column *values, const isr_column *headers, const int64_t *timestamps,
                        int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                        int16_t attributes)
{
    item_reader key, value, header;
    if (count < 1 || capacity < ISR_BATCH_HEADER)
        return -1;
    open_column(&key, keys);
    open_column(&value, values);
    open_column(&header, headers);
    uint8_t *p = out + ISR_BATCH_HEADER, *end = out + capacity;
    int64_t max_timestamp = timestamps[0];
    for (int32_t i = 0; i < count; i++) {
        int64_t key_length = item_length(&key, i), value_length = item_length(&value, i);
        int64_t header_length = header.lengths == NULL ? 0 : item_length(&header, i);
        if (key_length < -1 || value_length < -1 || header_length < 0)
            return -1;
        new_record record = {
            take(&key, key_length), take(&value, value_length), take(&header, header_length),
            key_length, value_length, header_length,
            (int64_t)((uint64_t)timestamps[i] - (uint64_t)timestamps[0]), i,
        };
        size_t body = body_size(&record);
        if (body > INT32_MAX || varint_size((int64_t)body) + body > (size_t)(end - p))
            return -1;
        p = write_record(p, body, &record);
        if (timestamps[i] > max_timestamp)
            max_timestamp = timestamps[i];
    }
    if (key.next != key.end || value.next != value.end || header.next != header.end ||
        p - out > INT32_MAX - LENGTH_END)
        return -1;
    put_batch_header(out, p - out, count, timestamps[0], max_timestamp, producer_id, producer_epoch, base_sequence,
                     attributes);
    return p - out;
}

int isr_batch_restamp_producer(uint8_t *data, size_t len, int64_t producer_id, int16_t producer_epoch,
                               int32_t base_sequence)
{
    if (len < ISR_BATCH_HEADER || check_header(data, (int64_t)len) != ISR_OK ||
        (size_t)get32(data + 8) + LENGTH_END != len)
        return -1;
    put64(data + 43, (uint64_t)producer_id);
    put16(data + 51, (uint16_t)producer_epoch);
    put32(data + 53, (uint32_t)base_sequence);
    put32(data + 17, isr_crc32c(0, data + CRC_FROM, len - CRC_FROM));
    return 0;
}

static void put_columns(isr_columns *out, size_t i, const uint8_t *data, const record_view *record,
                        int64_t offset, int64_t timestamp)
{
    out->offsets[i] = offset;
    out->timestamps[i] = timestamp;
    out->key_starts[i] = record->key - data;
    out->key_lengths[i] = record->key_length;
    out->value_starts[i] = record->value - data;
    out->value_lengths[i] = record->value_length;
    out->header_starts[i] = record->headers - data;
    out->header_counts[i] = record->header_count;
}

/* Enters the batch at the cursor. Leaves cursor->record at 0 if the batch is to be passed over. */
static int enter_batch(const uint8_t *p, int64_t available, int64_t start_offset, isr_cursor *cursor,
                       isr_batch_info *info)
{
    if (available < ISR_BATCH_HEADER)
        return ISR_TRUNCATED;
    int reason = check_header(p, available);
    if (reason != ISR_OK)
        return reason;
    read_header(p, (int64_t)cursor->position, info);
    if (cursor->record != 0)
        return ISR_OK;
    if ((info->attributes & CONTROL) || info->base_offset + info->last_offset_delta < start_offset)
        return ISR_OK;
    if (info->attributes & CODEC_MASK)
        return ISR_COMPRESSED;
    cursor->record = cursor->position + ISR_BATCH_HEADER;
    cursor->remaining = info->record_count;
    return ISR_OK;
}

static int decode_batch(const uint8_t *data, int64_t start_offset, isr_cursor *cursor,
                        const isr_batch_info *info, isr_columns *out, size_t capacity, size_t *found)
{
    const uint8_t *p = data + cursor->record;
    const uint8_t *end = data + cursor->position + info->size_bytes;
    record_view record;
    while (cursor->remaining > 0 && *found < capacity) {
        if (!get_record(&p, end, &record) || record.offset_delta < 0 ||
            record.offset_delta > info->last_offset_delta)
            return ISR_BAD_RECORD;
        cursor->remaining--;
        int64_t offset = info->base_offset + record.offset_delta;
        if (offset < start_offset)
            continue;
        int64_t timestamp = info->attributes & LOG_APPEND_TIME
                                ? info->max_timestamp
                                : (int64_t)((uint64_t)info->base_timestamp + (uint64_t)record.timestamp_delta);
        put_columns(out, (*found)++, data, &record, offset, timestamp);
    }
    cursor->record = (size_t)(p - data);
    return cursor->remaining == 0 && p != end ? ISR_BAD_RECORD : ISR_OK;
}

size_t isr_batch_decode(const uint8_t *data, size_t len, int64_t start_offset, isr_cursor *cursor,
                        isr_columns *out, size_t capacity, int *reason)
{
    size_t found = 0;
    isr_batch_info info;
    *reason = ISR_OK;
    while (cursor->position < len && found < capacity) {
        *reason = enter_batch(data + cursor->position, (int64_t)(len - cursor->position), start_offset, cursor,
                              &info);
        if (*reason == ISR_OK && cursor->record != 0)
            *reason = decode_batch(data, start_offset, cursor, &info, out, capacity, &found);
        if (*reason != ISR_OK || (cursor->record != 0 && cursor->remaining > 0))
            break;
        cursor->position += (size_t)info.size_bytes;
        cursor->record = 0;
    }
    return found;
}
