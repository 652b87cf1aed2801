/* Records of foreign batches into the columns that Spark is given; with WILD the places that they lie at are any. */
#include "batches.h"
#include "isr_arrow.h"

#define MOST 64
#define WILD 4
#define TIGHT 8               /* a byte too little room */
#define ROOM_MOST (1 << 20)

static isr_arrow_room make_room(size_t count, size_t capacity)
{
    isr_arrow_room room = {malloc((count + 1) * sizeof(int32_t)), malloc(capacity), capacity,
                           calloc((count + 7) / 8, 1), 0};
    return room;
}

static void free_room(isr_arrow_room *room)
{
    free(room->offsets);
    free(room->bytes);
    free(room->validity);
}

static void check_item(const isr_arrow_room *room, size_t i, const uint8_t *start, int32_t length)
{
    CHECK((room->validity[i >> 3] >> (i & 7) & 1) == (length >= 0));
    CHECK(room->offsets[i + 1] - room->offsets[i] == (length > 0 ? length : 0));
    if (length > 0)
        CHECK(memcmp(room->bytes + room->offsets[i], start, (size_t)length) == 0);
}

static void gather(const fuzz_input *in, const int64_t *starts, const int32_t *lengths, size_t count)
{
    int64_t total = isr_arrow_measure(lengths, count);
    if (total < 0)
        return;
    int tight = (in->flags & TIGHT) && total > 0;
    size_t capacity = total < ROOM_MOST ? (size_t)(total - tight) : ROOM_MOST;
    isr_arrow_room room = make_room(count, capacity);
    int failed = isr_arrow_gather(in->bytes, in->len, starts, lengths, count, &room);
    CHECK(failed || !tight);
    CHECK(!failed || tight || (in->flags & WILD));
    for (size_t i = 0; i < count && !failed; i++)
        check_item(&room, i, in->bytes + (lengths[i] > 0 ? starts[i] : 0), lengths[i]);
    free_room(&room);
}

static void gather_headers(const fuzz_input *in, const int64_t *starts, const int32_t *counts, size_t count)
{
    int64_t total, key_bytes, value_bytes;
    if (isr_arrow_measure_headers(in->bytes, in->len, starts, counts, count, &total, &key_bytes, &value_bytes)) {
        CHECK(in->flags & WILD);
        return;
    }
    int32_t *lists = malloc((count + 1) * sizeof(int32_t));
    isr_arrow_room keys = make_room((size_t)total, (size_t)key_bytes);
    isr_arrow_room values = make_room((size_t)total, (size_t)value_bytes);
    CHECK(isr_arrow_gather_headers(in->bytes, in->len, starts, counts, count, lists, &keys, &values) == 0);
    CHECK(lists[count] == total && keys.offsets[total] == key_bytes && values.offsets[total] == value_bytes);
    CHECK(keys.nulls == 0);
    for (size_t i = 0; i < count; i++)
        CHECK(lists[i + 1] - lists[i] == (counts[i] > 0 ? counts[i] : 0));
    free(lists);
    free_room(&keys);
    free_room(&values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_batches(&in, data, size))
        return 0;
    int64_t wide[5][MOST];
    int32_t narrow[3][MOST];
    isr_columns found = {wide[0], wide[1], wide[2], narrow[0], wide[3], narrow[1], wide[4], narrow[2]};
    isr_cursor cursor = {0, 0, 0};
    int reason;
    size_t count = isr_batch_decode(in.bytes, in.len, in.first, &cursor, &found, MOST, &reason);
    if ((in.flags & WILD) && count > 0) {
        size_t at = in.small % count;
        found.key_starts[at] = (int64_t)((uint64_t)in.second << (in.medium & 32));
        found.value_lengths[at] = in.third;
        found.header_starts[at] = in.second;
        found.header_counts[at] = in.third;
    }
    gather(&in, found.key_starts, found.key_lengths, count);
    gather(&in, found.value_starts, found.value_lengths, count);
    gather_headers(&in, found.header_starts, found.header_counts, count);
    free_input(&in);
    return 0;
}
