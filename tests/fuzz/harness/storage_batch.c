/* Batches in memory: scan, search, stamp, restamp, decode. */
#include "batches.h"

static isr_batch_info *all_of(const fuzz_input *in, int verify, size_t *count, size_t *consumed, int *reason)
{
    size_t room = in->len / ISR_BATCH_HEADER + 1;
    isr_batch_info *infos = malloc(room * sizeof *infos);
    *count = isr_batch_scan(in->bytes, in->len, 0, verify, infos, room, consumed, reason);
    return infos;
}

/* A scan in small portions finds the same as one in one go. */
static void scan(const fuzz_input *in, int verify)
{
    size_t count, consumed, total = 0, from = 0;
    int reason;
    isr_batch_info *infos = all_of(in, verify, &count, &consumed, &reason);
    size_t capacity = in->small % 7 + 1;
    isr_batch_info *some = malloc(capacity * sizeof *some);
    CHECK(consumed <= in->len && (reason != ISR_OK || consumed == in->len));
    for (;;) {
        int why;
        size_t found = isr_batch_scan(in->bytes, in->len, from, verify, some, capacity, &from, &why);
        CHECK(total + found <= count);
        CHECK(memcmp(infos + total, some, found * sizeof *some) == 0);
        total += found;
        if (found < capacity) {
            CHECK(why == reason && from == consumed && total == count);
            break;
        }
    }
    for (size_t i = 0; i + 1 < count; i++)
        CHECK(infos[i].position + infos[i].size_bytes == infos[i + 1].position);
    isr_batch_info alone;
    int is_alone = isr_batch_scan_one(in->bytes, in->len, verify, &alone);
    CHECK(is_alone == (count == 1 && reason == ISR_OK));
    CHECK(!is_alone || memcmp(infos, &alone, sizeof alone) == 0);
    free(some);
    free(infos);
}

static void search(const fuzz_input *in)
{
    int64_t low = in->first, high = (int64_t)in->second + in->medium;
    int64_t at = isr_batch_search(in->bytes, in->len, in->small, low, high, in->third);
    isr_batch_info info;
    size_t consumed;
    int reason;
    if (at < 0) {
        CHECK(at == -1);
        return;
    }
    CHECK(at >= in->small && (size_t)at < in->len);
    CHECK(isr_batch_scan(in->bytes, in->len, (size_t)at, 1, &info, 1, &consumed, &reason) == 1);
    CHECK(info.base_offset >= low && info.base_offset < high && info.leader_epoch >= in->third);
}

static void stamp(const fuzz_input *in)
{
    fuzz_input copy = *in;
    size_t count, consumed;
    int reason;
    int64_t base = in->first < 0 ? INT64_MAX + (int64_t)in->first : in->first;
    copy.bytes = malloc(in->len);
    if (in->len)
        memcpy(copy.bytes, in->bytes, in->len);
    int64_t next = isr_batch_stamp(copy.bytes, copy.len, base, 5);
    isr_batch_info *infos = all_of(in, 1, &count, &consumed, &reason);
    if (reason == ISR_OK && in->first >= 0) {
        free(infos);
        infos = all_of(&copy, 1, &count, &consumed, &reason);
        CHECK(reason == ISR_OK && next >= base);
        for (size_t i = 0; i < count; i++) {
            CHECK(infos[i].base_offset == base && infos[i].leader_epoch == 5);
            base += (int64_t)infos[i].last_offset_delta + 1;
        }
        CHECK(next == base);
    }
    free(infos);
    if (isr_batch_restamp_producer(copy.bytes, copy.len, 7, 3, in->second) == 0) {
        infos = all_of(&copy, 1, &count, &consumed, &reason);
        CHECK(count == 1 && reason == ISR_OK && infos[0].producer_id == 7);
        CHECK(infos[0].producer_epoch == 3 && infos[0].base_sequence == in->second);
        free(infos);
    }
    free(copy.bytes);
}

static void *column(size_t capacity, size_t size)
{
    return malloc(capacity * size);
}

static void check_item(const fuzz_input *in, int64_t start, int64_t length)
{
    CHECK(start >= ISR_BATCH_HEADER && length >= -1);
    CHECK(start + (length > 0 ? length : 0) <= (int64_t)in->len);
}

static void decode(const fuzz_input *in)
{
    size_t capacity = in->small % 31 + 1;
    isr_columns columns = {
        column(capacity, 8), column(capacity, 8), column(capacity, 8), column(capacity, 4),
        column(capacity, 8), column(capacity, 4), column(capacity, 8), column(capacity, 4),
    };
    isr_cursor cursor = {0, 0, 0};
    int64_t start = in->first;
    size_t count;
    int reason;
    do {
        count = isr_batch_decode(in->bytes, in->len, start, &cursor, &columns, capacity, &reason);
        CHECK(count <= capacity && cursor.position <= in->len && cursor.record <= in->len);
        for (size_t i = 0; i < count; i++) {
            CHECK(columns.offsets[i] >= start);
            check_item(in, columns.key_starts[i], columns.key_lengths[i]);
            check_item(in, columns.value_starts[i], columns.value_lengths[i]);
            check_item(in, columns.header_starts[i], columns.header_counts[i]);
        }
    } while (count == capacity && reason == ISR_OK);
    free(columns.offsets);
    free(columns.timestamps);
    free(columns.key_starts);
    free(columns.key_lengths);
    free(columns.value_starts);
    free(columns.value_lengths);
    free(columns.header_starts);
    free(columns.header_counts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_batches(&in, data, size))
        return 0;
    scan(&in, 0);
    scan(&in, ISR_VERIFY_CRC);
    scan(&in, ISR_VERIFY_CRC | ISR_VERIFY_RECORDS);
    search(&in);
    stamp(&in);
    decode(&in);
    free_input(&in);
    return 0;
}
