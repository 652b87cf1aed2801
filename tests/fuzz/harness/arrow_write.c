/* Columns as Arrow hands them out, sound or (with WILD) not, into a batch: refused, or read back equal. */
#include "batches.h"
#include "isr_arrow.h"
#include "isr_record.h"

#define MOST 64
#define WILD 4
#define NO_KEYS 8
#define HEADERS 16

typedef struct {
    isr_arrow_column column;
    int32_t *offsets;
    uint8_t *bytes, *validity;
} items;

static uint8_t next(const fuzz_input *in, size_t *at)
{
    return *at < in->len ? in->bytes[(*at)++] : 0;
}

/* Each buffer has its exact size, so that one item too many is seen; items that are null may have bytes, too. */
static items make_items(const fuzz_input *in, size_t *at, size_t first, size_t count, int longest)
{
    size_t all = first + count, total = 0;
    items made = {{0}, malloc((all + 1) * sizeof(int32_t)), NULL, calloc(all / 8 + 1, 1)};
    made.offsets[0] = 0;
    for (size_t i = 0; i < all; i++) {
        uint8_t byte = next(in, at);
        if (byte < 240)
            made.validity[i >> 3] |= (uint8_t)(1 << (i & 7));
        total += (size_t)(byte % (longest + 1));
        made.offsets[i + 1] = (int32_t)total;
    }
    made.bytes = malloc(total);
    for (size_t i = 0; i < total; i++)
        made.bytes[i] = next(in, at);
    if ((in->flags & WILD) && all > 0)
        made.offsets[in->small % (all + 1)] = in->third;
    isr_arrow_column column = {made.offsets, made.bytes, total, in->flags & 64 ? NULL : made.validity, first, count};
    made.column = column;
    return made;
}

static void free_items(items *of)
{
    free(of->offsets);
    free(of->bytes);
    free(of->validity);
}

/* What an item is by Arrow's rules; its length, -1 for null. Only of items that were taken. */
static int32_t item_of(const isr_arrow_column *column, size_t i, const uint8_t **start)
{
    size_t item = column->first + i;
    if (column->offsets == NULL || (column->validity != NULL && !(column->validity[item / 8] >> item % 8 & 1)))
        return -1;
    *start = column->bytes + column->offsets[item];
    return column->offsets[item + 1] - column->offsets[item];
}

static void same(const isr_arrow_column *column, size_t i, const uint8_t *found, int32_t length)
{
    const uint8_t *start = NULL;
    CHECK(item_of(column, i, &start) == length);
    if (length > 0)
        CHECK(memcmp(start, found, (size_t)length) == 0);
}

static void same_headers(const isr_arrow_headers *headers, int32_t row, const uint8_t *p, const uint8_t *end,
                         int32_t count)
{
    size_t item = headers->first + (size_t)row;
    if (headers->offsets == NULL || (headers->validity != NULL && !(headers->validity[item / 8] >> item % 8 & 1))) {
        CHECK(count == 0);
        return;
    }
    CHECK(count == headers->offsets[item + 1] - headers->offsets[item]);
    const uint8_t *start;
    int32_t length;
    for (int32_t n = headers->offsets[item]; n < headers->offsets[item + 1]; n++) {
        CHECK(get_item(&p, end, &start, &length));
        same(&headers->keys, (size_t)n, start, length);
        CHECK(get_item(&p, end, &start, &length));
        same(&headers->values, (size_t)n, start, length);
    }
}

static void read_back(const uint8_t *out, size_t built, const int32_t *rows, int32_t taken,
                      const isr_arrow_column *keys, const isr_arrow_column *values,
                      const isr_arrow_headers *headers)
{
    isr_batch_info info;
    int64_t wide[5][MOST];
    int32_t narrow[3][MOST];
    isr_columns found = {wide[0], wide[1], wide[2], narrow[0], wide[3], narrow[1], wide[4], narrow[2]};
    isr_cursor cursor = {0, 0, 0};
    size_t consumed;
    int reason;
    CHECK(isr_batch_scan(out, built, 0, 1, &info, 1, &consumed, &reason) == 1 && reason == ISR_OK);
    CHECK(consumed == built && info.record_count == taken && info.producer_epoch == 3);
    CHECK(isr_batch_decode(out, built, 0, &cursor, &found, MOST, &reason) == (size_t)taken && reason == ISR_OK);
    for (int32_t i = 0; i < taken; i++) {
        CHECK(found.offsets[i] == i && found.timestamps[i] == info.max_timestamp);
        same(keys, (size_t)rows[i], out + found.key_starts[i], found.key_lengths[i]);
        same(values, (size_t)rows[i], out + found.value_starts[i], found.value_lengths[i]);
        same_headers(headers, rows[i], out + found.header_starts[i], out + built, found.header_counts[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_input(&in, data, size))
        return 0;
    size_t at = 0, count = in.small % (MOST + 1), first = in.small >> 6;
    items keys = make_items(&in, &at, first, count, 50), values = make_items(&in, &at, first, count, 50);
    if (in.flags & NO_KEYS)
        keys.column.offsets = NULL;
    /* Lists are offsets, too, though of items: those of one column serve for them. */
    items lists = make_items(&in, &at, first, count, 3), names = make_items(&in, &at, 1, 200, 9);
    isr_arrow_headers headers = {0};
    if (in.flags & HEADERS) {
        isr_arrow_headers some = {lists.offsets, lists.column.validity, first, count, names.column, names.column};
        /* A header's key is never null. */
        some.keys.validity = NULL;
        headers = some;
    }
    int32_t *rows = malloc(count * sizeof(int32_t)), *parts = malloc(count * sizeof(int32_t));
    for (size_t i = 0; i < count; i++)
        rows[i] = (int32_t)(next(&in, &at) % count);
    if ((in.flags & WILD) && count > 0)
        rows[in.small % count] = in.flags & 32 ? (int32_t)count : in.second;
    size_t capacity = in.medium;
    uint8_t *out = malloc(capacity);
    int32_t taken;
    int64_t built = isr_arrow_build(out, capacity, rows, (int32_t)count, &keys.column, &values.column, &headers,
                                    in.first, in.third, 3, in.second, 0, &taken);
    CHECK(taken >= 0 && taken <= (int32_t)count);
    CHECK(built == -1 || (built == 0 && taken == 0) || (built > ISR_BATCH_HEADER && built <= (int64_t)capacity));
    CHECK(built >= 0 || (in.flags & (WILD | HEADERS)));
    if (built > 0)
        read_back(out, (size_t)built, rows, taken, &keys.column, &values.column, &headers);
    if (isr_arrow_partition(&keys.column, in.second, parts) == 0)
        for (size_t i = 0; i < count; i++)
            CHECK(parts[i] >= -1 && parts[i] < in.second);
    else
        CHECK(in.second < 1 || (in.flags & WILD));
    free(rows);
    free(parts);
    free(out);
    free_items(&keys);
    free_items(&values);
    free_items(&lists);
    free_items(&names);
    free_input(&in);
    return 0;
}
