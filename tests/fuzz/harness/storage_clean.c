/* Compaction of whatever bytes: keys entered into a map, batches copied without what is replaced, never too far. */
#include "batches.h"
#include "isr_clean.h"

#define MOST 256

/* Batches and records in data[0..len), all of which can be read and have whole CRCs; -1 if not. */
static int64_t count_records(const uint8_t *data, size_t len, size_t *batches)
{
    isr_batch_info infos[MOST];
    size_t at = 0;
    int64_t records = 0;
    *batches = 0;
    while (at < len) {
        size_t consumed = at;
        int reason;
        size_t found = isr_batch_scan(data, len, at, 1, infos, MOST, &consumed, &reason);
        if (found == 0)
            return -1;
        CHECK(consumed > at && consumed <= len);
        for (size_t i = 0; i < found; i++)
            records += infos[i].record_count;
        *batches += found;
        at = consumed;
    }
    return records;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_batches(&in, data, size))
        return 0;
    static const uint8_t seed[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    isr_keymap *map = isr_keymap_new(in.small, seed);
    if (map == NULL) {
        free_input(&in);
        return 0;
    }
    int flags = ISR_CLEAN_VERIFY | (in.flags & (ISR_CLEAN_ANY | ISR_CLEAN_DROP | ISR_CLEAN_MARK));
    isr_keymap_progress entered = {0, 0};
    isr_keymap_add(map, in.bytes, in.len, in.first, flags, &entered);
    CHECK(entered.consumed <= in.len);
    CHECK(isr_keymap_count(map) <= in.small);
    int64_t kept[2] = {in.first, (int64_t)in.first + (in.small & 15) + 1};
    isr_clean_rules rules = {kept, in.small & 1 ? 2 : 0, in.second, in.third, (int64_t)in.third + in.medium, flags};
    /* Room for what is there, or for less: marks and dropped records never make a batch longer than it was. */
    size_t room = in.flags & 64 ? in.medium : in.len + 1024;
    uint8_t *out = malloc(room);
    isr_clean_progress progress = {0, 0, 0, 0, 0};
    int ended = isr_clean(map, in.bytes, in.len, &rules, out, room, &progress);
    CHECK(progress.consumed <= in.len && progress.written <= room);
    CHECK(progress.removed >= 0 && progress.keyless >= 0 && progress.keyless <= progress.removed);
    size_t before, after;
    int64_t records = count_records(in.bytes, progress.consumed, &before);
    if (ended == ISR_OK && records >= 0) {
        int64_t left = count_records(out, progress.written, &after);
        CHECK(left >= 0 && left + progress.removed == records);
        CHECK(after <= before);
    }
    free(out);
    isr_keymap_free(map);
    free_input(&in);
    return 0;
}
