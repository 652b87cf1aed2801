/* A batch built from columns: refused, or read back equal. */
#include "batches.h"

#define MOST 64

typedef struct {
    isr_column column;
    int32_t lengths[MOST];
    const uint8_t *starts[MOST];
} items;

/* Lengths from one byte each (255 = null), or of any value at all, and their bytes; returns where it stopped. */
static size_t take_items(items *of, const fuzz_input *in, size_t at, int32_t count, int wild)
{
    size_t total = 0;
    for (int32_t i = 0; i < count; i++, at++) {
        uint8_t byte = at < in->len ? in->bytes[at] : 0;
        of->lengths[i] = byte == 255 ? -1 : wild ? (int32_t)((uint32_t)in->second + byte) : byte % 50;
        if (of->lengths[i] > 0 && !wild)
            total += (size_t)of->lengths[i];
    }
    at = at < in->len ? at : in->len;
    size_t left = in->len - at;
    of->column.bytes = in->bytes + at;
    of->column.len = wild ? left / 2 : total < left ? total : left;
    of->column.lengths = of->lengths;
    const uint8_t *p = of->column.bytes;
    for (int32_t i = 0; i < count; i++) {
        of->starts[i] = p;
        if (of->lengths[i] > 0 && !wild)
            p += of->lengths[i];
    }
    return at + of->column.len;
}

static void same(const items *of, int32_t i, const uint8_t *batch, int64_t start, int32_t length)
{
    CHECK(length == of->lengths[i]);
    if (length > 0)
        CHECK(memcmp(batch + start, of->starts[i], (size_t)length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_input(&in, data, size))
        return 0;
    int32_t count = in.small % (MOST + 1);
    int wild = in.flags & 4;
    items keys, values;
    size_t at = take_items(&keys, &in, 0, count, wild);
    at = take_items(&values, &in, at, count, wild);
    isr_column headers = {in.bytes + at, 0, NULL};
    int32_t header_lengths[MOST];
    if ((in.flags & 8) && count > 0) {
        /* Encoded elsewhere: here the first record gets what is left, the others none. */
        for (int32_t i = 0; i < count; i++)
            header_lengths[i] = 0;
        header_lengths[0] = (int32_t)(in.len - at);
        headers.len = in.len - at;
        headers.lengths = header_lengths;
    }
    int64_t timestamps[MOST];
    for (int32_t i = 0; i < count; i++)
        timestamps[i] = (int64_t)((uint64_t)in.first * (uint64_t)(i + 1) * (in.flags & 16 ? 0x100000001u : 1));
    size_t capacity = in.medium;
    uint8_t *out = malloc(capacity);
    int64_t built = isr_batch_build(out, capacity, count, &keys.column, &values.column, &headers, timestamps,
                                    in.third, 3, in.second, 0);
    CHECK(built == -1 || (built >= ISR_BATCH_HEADER && built <= (int64_t)capacity));
    if (built >= 0 && !wild && headers.lengths == NULL) {
        isr_batch_info info;
        int64_t wide[5][MOST];
        int32_t narrow[3][MOST];
        isr_columns found = {wide[0], wide[1], wide[2], narrow[0], wide[3], narrow[1], wide[4], narrow[2]};
        isr_cursor cursor = {0, 0, 0};
        size_t consumed;
        int reason;
        CHECK(isr_batch_scan(out, (size_t)built, 0, 1, &info, 1, &consumed, &reason) == 1 && reason == ISR_OK);
        CHECK((int64_t)consumed == built && info.record_count == count && info.producer_id == in.third);
        CHECK(isr_batch_decode(out, (size_t)built, 0, &cursor, &found, MOST, &reason) == (size_t)count);
        CHECK(reason == ISR_OK);
        for (int32_t i = 0; i < count; i++) {
            CHECK(found.offsets[i] == i && found.timestamps[i] == timestamps[i] && found.header_counts[i] == 0);
            same(&keys, i, out, found.key_starts[i], found.key_lengths[i]);
            same(&values, i, out, found.value_starts[i], found.value_lengths[i]);
        }
    }
    free(out);
    free_input(&in);
    return 0;
}
