/* Batches in a file: headers, slices, timestamps, producers, and the scan that recovery makes. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "batches.h"
#include "isr_file.h"
#include "isr_log.h"

#define MANY 64

static int fd = -1;

static void write_file(const fuzz_input *in)
{
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(pwrite(fd, in->bytes, in->len, 0) == (ssize_t)in->len);
}

/* Headers read from the file are those of the bytes; stops and timestamps are where these say. */
static void headers(const fuzz_input *in)
{
    isr_batch_info there[MANY], here[MANY];
    int64_t consumed, position, offset = -7, size = 0;
    size_t in_memory;
    int reason, why;
    size_t capacity = in->small % MANY + 1;
    size_t count = isr_batch_scan_file(fd, 0, (int64_t)in->len, there, capacity, &consumed, &reason);
    CHECK(isr_batch_scan(in->bytes, in->len, 0, 0, here, capacity, &in_memory, &why) == count);
    CHECK(memcmp(there, here, count * sizeof *here) == 0);
    CHECK(reason == why && (size_t)consumed == in_memory);

    size_t stop = 0, late = 0;
    while (stop < count && here[stop].base_offset + here[stop].last_offset_delta < in->first)
        stop++;
    while (late < count && !(here[late].record_count > 0 && here[late].max_timestamp >= in->second &&
                             here[late].base_offset + here[late].last_offset_delta >= in->first))
        late++;
    why = isr_batch_walk_file(fd, 0, (int64_t)in->len, in->first, &position, &offset);
    if (stop < count)
        CHECK(why == ISR_OK && position == here[stop].position && offset == here[stop].base_offset);
    else if (count < capacity)
        CHECK(why == reason && position == consumed);
    position = 0;
    why = isr_log_find_timestamp(fd, &position, (int64_t)in->len, (int64_t)in->len, in->second, in->first, &size);
    if (late < count)
        CHECK(why == ISR_OK && position == here[late].position && size == here[late].size_bytes);
    else if (count < capacity)
        CHECK(why == reason && position == consumed && size == 0);
}

typedef struct {
    isr_log_state state;
    int reason;
    size_t entries, times, epochs;
    uint8_t index[8 * MANY], time_index[12 * MANY];
    isr_log_epoch begun[MANY];
} scanned;

static void scan_log(const fuzz_input *in, int32_t capacity, isr_producers *producers, scanned *out)
{
    uint8_t *index = malloc(8 * (size_t)capacity), *times = malloc(12 * (size_t)capacity);
    isr_log_epoch *epochs = malloc(sizeof *epochs * (size_t)capacity);
    isr_log_found found = {index, times, epochs, capacity, 0, 0, 0};
    isr_log_state start = {0, 0, in->third, -1, -1, -1, 0, 0, -1, 0, 0, (in->flags & GAPS) != 0};
    memset(out, 0, sizeof *out);
    out->state = start;
    do {
        found.index_count = found.time_index_count = found.epoch_count = 0;
        out->reason = isr_log_scan(fd, (int64_t)in->len, in->medium, &out->state, &found, producers);
        CHECK(found.index_count <= capacity && found.epoch_count <= capacity);
        CHECK(out->entries + (size_t)found.index_count <= MANY);
        memcpy(out->index + 8 * out->entries, index, 8 * (size_t)found.index_count);
        memcpy(out->time_index + 12 * out->times, times, 12 * (size_t)found.time_index_count);
        memcpy(out->begun + out->epochs, epochs, sizeof *epochs * (size_t)found.epoch_count);
        out->entries += (size_t)found.index_count;
        out->times += (size_t)found.time_index_count;
        out->epochs += (size_t)found.epoch_count;
    } while (out->reason == ISR_OK && out->state.position < (int64_t)in->len);
    free(index);
    free(times);
    free(epochs);
}

static void same_producers(const isr_producers *one, const isr_producers *other)
{
    CHECK(isr_producers_count(one) == isr_producers_count(other));
    for (int64_t i = 0; i < isr_producers_count(one); i++) {
        const isr_producer *a = isr_producers_at(one, i), *b = isr_producers_at(other, i);
        CHECK(a->producer_id == b->producer_id && a->epoch == b->epoch && a->timestamp == b->timestamp);
        CHECK(a->count == b->count && a->count >= 0 && a->count <= ISR_PRODUCER_WINDOW);
        CHECK(memcmp(a->batches, b->batches, sizeof *a->batches * (size_t)a->count) == 0);
        CHECK(a->coordinator_epoch == b->coordinator_epoch && a->is_open == b->is_open);
    }
    CHECK(isr_producers_step_count(one) == isr_producers_step_count(other));
    for (int64_t i = 0; i < isr_producers_step_count(one); i++) {
        const isr_transaction_step *a = &isr_producers_steps(one)[i], *b = &isr_producers_steps(other)[i];
        CHECK(a->producer_id == b->producer_id && a->offset == b->offset && a->type == b->type);
        CHECK(a->coordinator_epoch == b->coordinator_epoch);
    }
    CHECK(isr_producers_at(one, isr_producers_count(one)) == NULL && isr_producers_at(one, -1) == NULL);
}

/* An index changes nothing but how long it takes; a wrong one may give a reason, or other batches of the file. */
static void slices(const fuzz_input *in, const scanned *log)
{
    isr_segment plain = {NULL, 0, 0, log->state.position, log->state.offset};
    isr_segment indexed = plain, wrong = plain;
    isr_slice one, other;
    int at_least_one = (in->flags & AT_LEAST_ONE) != 0;
    int64_t offset = in->first;
    indexed.index = log->index;
    indexed.entries = (int64_t)log->entries;
    wrong.index = in->bytes;
    wrong.entries = (int64_t)in->len / 8;
    CHECK(isr_batch_slice_file(fd, &plain, offset, in->second, in->medium, at_least_one, &one) == ISR_OK);
    CHECK(isr_batch_slice_file(fd, &indexed, offset, in->second, in->medium, at_least_one, &other) == ISR_OK);
    if (offset >= in->third && offset < plain.end_offset) {
        CHECK(one.start_position == other.start_position && one.start_offset == other.start_offset);
        CHECK(one.start_offset <= offset || (in->flags & GAPS));
        if (in->second > offset)
            CHECK(one.stop_position == other.stop_position && one.stop_offset == other.stop_offset);
    }
    CHECK(one.start_position >= 0 && one.start_position <= plain.end_position);
    CHECK(one.stop_position >= one.start_position && one.stop_position <= plain.end_position);
    isr_batch_slice_file(fd, &wrong, offset, in->second, in->medium, at_least_one, &other);
    CHECK(other.start_position >= 0 && other.stop_position >= 0);
    CHECK(other.start_position <= plain.end_position && other.stop_position <= plain.end_position);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (size > OPTION_BYTES + MANY * ISR_BATCH_HEADER || !take_batches(&in, data, size))
        return 0;
    write_file(&in);
    headers(&in);
    scanned log, again;
    isr_producers *scanned_producers = isr_producers_new(), *replayed = isr_producers_new();
    scan_log(&in, MANY, scanned_producers, &log);
    scan_log(&in, in.small % 3 + 1, NULL, &again);
    CHECK(log.state.position <= (int64_t)in.len);
    CHECK(memcmp(&log, &again, sizeof log) == 0);
    int64_t position = 0;
    CHECK(isr_producers_replay(replayed, fd, &position, log.state.position) == ISR_OK);
    CHECK(position == log.state.position);
    same_producers(scanned_producers, replayed);
    if (in.third >= 0)
        slices(&in, &log);
    isr_producers_free(scanned_producers);
    isr_producers_free(replayed);
    free_input(&in);
    return 0;
}
