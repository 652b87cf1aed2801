#include "isr_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "isr_file.h"
#include "isr_record.h"

#define BLOCK (2 * 1024 * 1024)
#define FEW 512
#define LENGTH_AT 8
#define LENGTH_END 12
#define TRANSACTIONAL (1 << 4)
#define CONTROL (1 << 5)
#define MOST_OF_MARKER 128     /* bytes of a marker's record that are looked at; Kafka's has some 20 */
#define MARKER_KEY 4           /* version and type, two bytes each */
#define MARKER_VALUE 6         /* version, and the coordinator's epoch */

/* Producers: a dense array, and open addressing from ids to places in it. */

struct isr_producers {
    isr_producer *items;
    int32_t *slots;           /* place + 1; 0 = free */
    int64_t count;
    int64_t room;             /* of items; there are twice as many slots */
    isr_transaction_step *steps;
    int64_t step_count;
    int64_t step_room;
};

isr_producers *isr_producers_new(void)
{
    return calloc(1, sizeof(isr_producers));
}

void isr_producers_free(isr_producers *table)
{
    if (table == NULL)
        return;
    free(table->items);
    free(table->slots);
    free(table->steps);
    free(table);
}

int64_t isr_producers_count(const isr_producers *table)
{
    return table->count;
}

const isr_producer *isr_producers_at(const isr_producers *table, int64_t index)
{
    return index >= 0 && index < table->count ? &table->items[index] : NULL;
}

int64_t isr_producers_step_count(const isr_producers *table)
{
    return table->step_count;
}

const isr_transaction_step *isr_producers_steps(const isr_producers *table)
{
    return table->steps;
}

int isr_batch_marker(const uint8_t *records, size_t len, int32_t *coordinator_epoch)
{
    const uint8_t *p = records;
    record_view record;
    *coordinator_epoch = -1;
    if (!get_record(&p, records + len, &record) || record.key_length < MARKER_KEY)
        return ISR_MARKER_NONE;
    int type = (int16_t)(record.key[2] << 8 | record.key[3]);
    if (type != ISR_MARKER_ABORT && type != ISR_MARKER_COMMIT)
        return ISR_MARKER_NONE;
    if (record.value_length >= MARKER_VALUE) {
        const uint8_t *at = record.value + 2;
        *coordinator_epoch =
            (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
    }
    return type;
}

/* The slot of an id: where it is, or the free one where it belongs. */
static int32_t *slot_of(isr_producers *table, int64_t producer_id)
{
    uint64_t mask = (uint64_t)table->room * 2 - 1;
    uint64_t at = ((uint64_t)producer_id * UINT64_C(0x9e3779b97f4a7c15) >> 20) & mask;
    while (table->slots[at] != 0 && table->items[table->slots[at] - 1].producer_id != producer_id)
        at = (at + 1) & mask;
    return &table->slots[at];
}

static int grow(isr_producers *table)
{
    int64_t room = table->room ? table->room * 2 : 64;
    if (room > INT32_MAX / 2)
        return 0;
    isr_producer *items = realloc(table->items, (size_t)room * sizeof *items);
    if (items == NULL)
        return 0;
    table->items = items;
    int32_t *slots = calloc((size_t)room * 2, sizeof *slots);
    if (slots == NULL)
        return 0;
    free(table->slots);
    table->slots = slots;
    table->room = room;
    for (int64_t i = 0; i < table->count; i++)
        *slot_of(table, items[i].producer_id) = (int32_t)i + 1;
    return 1;
}

static isr_producer *producer_of(isr_producers *table, int64_t producer_id)
{
    if (table->count == table->room && !grow(table))
        return NULL;
    int32_t *slot = slot_of(table, producer_id);
    if (*slot == 0) {
        isr_producer *fresh = &table->items[table->count++];
        memset(fresh, 0, sizeof *fresh);
        fresh->producer_id = producer_id;
        fresh->coordinator_epoch = -1;
        *slot = (int32_t)table->count;
    }
    return &table->items[*slot - 1];
}

/* 0 if there is no memory. */
static int add_step(isr_producers *table, isr_transaction_step step)
{
    if (table->step_count == table->step_room) {
        int64_t room = table->step_room ? table->step_room * 2 : 64;
        isr_transaction_step *steps = realloc(table->steps, (size_t)room * sizeof *steps);
        if (steps == NULL)
            return 0;
        table->steps = steps;
        table->step_room = room;
    }
    table->steps[table->step_count++] = step;
    return 1;
}

/* A transactional batch; `records` are those of a marker, at least their beginning. 0 if there is no memory. */
static int add_transactional(isr_producers *table, isr_producer *producer, const isr_batch_info *info,
                             const uint8_t *records, size_t len)
{
    isr_transaction_step step = {info->producer_id, info->base_offset, -1, ISR_TRANSACTION_BEGUN};
    if (!(info->attributes & CONTROL)) {
        if (producer->is_open)
            return 1;
        producer->is_open = 1;
        return add_step(table, step);
    }
    step.type = isr_batch_marker(records, len, &step.coordinator_epoch);
    if (step.type == ISR_MARKER_NONE)
        return 1;
    producer->is_open = 0;
    producer->coordinator_epoch = step.coordinator_epoch;
    return add_step(table, step);
}

/* 0 if there is no memory. */
static int add_producer(isr_producers *table, const isr_batch_info *info, const uint8_t *records, size_t len)
{
    if (info->producer_id < 0)
        return 1;
    isr_producer *producer = producer_of(table, info->producer_id);
    if (producer == NULL)
        return 0;
    if (producer->epoch != info->producer_epoch) {
        producer->epoch = info->producer_epoch;
        producer->count = 0;
    }
    producer->timestamp = info->max_timestamp;
    if ((info->attributes & TRANSACTIONAL) && !add_transactional(table, producer, info, records, len))
        return 0;
    if (info->base_sequence < 0)
        return 1;
    if (producer->count == ISR_PRODUCER_WINDOW) {
        memmove(producer->batches, producer->batches + 1, (ISR_PRODUCER_WINDOW - 1) * sizeof(isr_produced));
        producer->count--;
    }
    isr_produced *batch = &producer->batches[producer->count++];
    batch->base_offset = info->base_offset;
    batch->last_offset = info->base_offset + info->last_offset_delta;
    batch->base_sequence = info->base_sequence;
    batch->last_sequence =
        (int32_t)(((int64_t)info->base_sequence + info->last_offset_delta) & INT32_MAX);
    return 1;
}

/* The beginning of a control batch's records, from the file; how many bytes, or -1 with errno. */
static ssize_t read_marker(int fd, const isr_batch_info *info, uint8_t *out)
{
    size_t size = (size_t)info->size_bytes - ISR_BATCH_HEADER;
    ssize_t got;
    if (size > MOST_OF_MARKER)
        size = MOST_OF_MARKER;
    do {
        got = pread(fd, out, size, info->position + ISR_BATCH_HEADER);
    } while (got < 0 && errno == EINTR);
    return got;
}

int isr_producers_replay(isr_producers *table, int fd, int64_t *position, int64_t end)
{
    isr_batch_info infos[FEW];
    uint8_t marker[MOST_OF_MARKER];
    int reason = ISR_OK;
    while (*position < end && reason == ISR_OK) {
        size_t count = isr_batch_scan_file(fd, *position, end, infos, FEW, position, &reason);
        for (size_t i = 0; i < count; i++) {
            ssize_t got = infos[i].attributes & CONTROL ? read_marker(fd, &infos[i], marker) : 0;
            if (got < 0)
                return ISR_IO_ERROR;
            if (!add_producer(table, &infos[i], marker, (size_t)got)) {
                errno = ENOMEM;
                return ISR_IO_ERROR;
            }
        }
    }
    return reason;
}

int isr_log_find_timestamp(int fd, int64_t *position, int64_t limit, int64_t end, int64_t timestamp,
                           int64_t min_offset, int64_t *size)
{
    isr_batch_info infos[FEW];
    int reason = ISR_OK;
    int64_t next = *position;
    size_t capacity = 16;
    while (next < limit && next < end && reason == ISR_OK) {
        size_t count = isr_batch_scan_file(fd, next, end, infos, capacity, &next, &reason);
        for (size_t i = 0; i < count; i++) {
            if (infos[i].record_count > 0 && infos[i].max_timestamp >= timestamp &&
                infos[i].base_offset + infos[i].last_offset_delta >= min_offset) {
                *position = infos[i].position;
                *size = infos[i].size_bytes;
                return ISR_OK;
            }
        }
        capacity = FEW;
    }
    *position = next;
    return reason;
}

/* A stretch of a file in memory, read on block by block. */
typedef struct {
    int fd;
    uint8_t *bytes;
    size_t room;
    size_t filled;
    int64_t start;            /* position of bytes[0] */
} stretch;

/* Makes bytes [position, position + need) available, and up to a block more as far as the file goes to `end`.
 * Returns a reason; ISR_TRUNCATED if the file is shorter than it was. */
static int fill(stretch *s, int64_t position, size_t need, int64_t end)
{
    size_t kept = 0;
    if (position >= s->start && position < s->start + (int64_t)s->filled) {
        kept = s->filled - (size_t)(position - s->start);
        memmove(s->bytes, s->bytes + (position - s->start), kept);
    }
    s->start = position;
    s->filled = kept;
    size_t want = need > BLOCK ? need : BLOCK;
    if ((int64_t)want > end - position)
        want = (size_t)(end - position);
    if (want > s->room) {
        uint8_t *bytes = realloc(s->bytes, want);
        if (bytes == NULL) {
            errno = ENOMEM;
            return ISR_IO_ERROR;
        }
        s->bytes = bytes;
        s->room = want;
    }
    while (s->filled < want) {
        ssize_t got = pread(s->fd, s->bytes + s->filled, want - s->filled, position + (int64_t)s->filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ISR_IO_ERROR;
        if (got == 0)
            return ISR_TRUNCATED;
        s->filled += (size_t)got;
    }
    return ISR_OK;
}

/* What the batch at p says of its size; only what a header check has let through is believed. */
static size_t declared_size(const uint8_t *p)
{
    return ((size_t)p[LENGTH_AT] << 24 | (size_t)p[LENGTH_AT + 1] << 16 | (size_t)p[LENGTH_AT + 2] << 8 |
            p[LENGTH_AT + 3]) + LENGTH_END;
}

/* The whole, valid batch at `position`, in `info`. */
static int whole_batch(stretch *s, int64_t position, int64_t end, isr_batch_info *info)
{
    size_t need = ISR_BATCH_HEADER;
    for (;;) {
        size_t at = 0, available = 0, consumed;
        int reason = ISR_TRUNCATED;
        if (position >= s->start && position < s->start + (int64_t)s->filled) {
            at = (size_t)(position - s->start);
            available = s->filled - at;
        }
        if (available >= need) {
            isr_batch_scan(s->bytes + at, available, 0, 1, info, 1, &consumed, &reason);
            if (reason != ISR_TRUNCATED)
                return reason;
            need = declared_size(s->bytes + at);
        }
        if ((int64_t)need > end - position)
            return ISR_TRUNCATED;
        reason = fill(s, position, need, end);
        if (reason != ISR_OK)
            return reason;
    }
}

static uint8_t *put(uint8_t *p, uint64_t value, int size)
{
    while (size-- > 0)
        *p++ = (uint8_t)(value >> 8 * size);
    return p;
}

static void add_entries(isr_log_state *state, int64_t last_offset, isr_log_found *found)
{
    if (last_offset - state->segment_base > INT32_MAX || state->position > INT32_MAX)
        return;
    uint8_t *p = found->index + 8 * (size_t)found->index_count++;
    p = put(p, (uint64_t)(last_offset - state->segment_base), 4);
    put(p, (uint64_t)state->position, 4);
    if (state->max_timestamp <= state->entered_timestamp)
        return;
    p = found->time_index + 12 * (size_t)found->time_index_count++;
    p = put(p, (uint64_t)state->max_timestamp, 8);
    put(p, (uint64_t)(state->max_timestamp_offset - state->segment_base), 4);
    state->entered_timestamp = state->max_timestamp;
}

static int take(isr_log_state *state, const isr_batch_info *info, int64_t interval, isr_log_found *found)
{
    if (state->offset >= 0 && info->base_offset != state->offset &&
        !(state->gaps && info->base_offset > state->offset)) {
        state->found_offset = info->base_offset;
        return ISR_WRONG_OFFSET;
    }
    if (info->leader_epoch < state->epoch) {
        state->found_epoch = info->leader_epoch;
        return ISR_WRONG_EPOCH;
    }
    int64_t last_offset = info->base_offset + info->last_offset_delta;
    /* What is found by time is records; compaction leaves batches without. */
    if (info->record_count > 0 && info->max_timestamp > state->max_timestamp) {
        state->max_timestamp = info->max_timestamp;
        state->max_timestamp_offset = last_offset;
    }
    if (state->since_entry > interval) {
        add_entries(state, last_offset, found);
        state->since_entry = 0;
    }
    if (info->leader_epoch > state->epoch) {
        isr_log_epoch *epoch = &found->epochs[found->epoch_count++];
        epoch->epoch = state->epoch = info->leader_epoch;
        epoch->start_offset = info->base_offset;
    }
    state->since_entry += info->size_bytes;
    state->position += info->size_bytes;
    state->offset = last_offset + 1;
    state->batches++;
    return ISR_OK;
}

/* As many bytes of a batch's records as `read_marker` reads, so that both see the same. */
static size_t shown(const isr_batch_info *info)
{
    size_t size = (size_t)info->size_bytes - ISR_BATCH_HEADER;
    return size > MOST_OF_MARKER ? MOST_OF_MARKER : size;
}

int isr_log_scan(int fd, int64_t end, int64_t interval, isr_log_state *state, isr_log_found *found,
                 isr_producers *producers)
{
    stretch s = {fd, NULL, 0, 0, 0};
    isr_batch_info info;
    int reason = ISR_OK;
    while (reason == ISR_OK && state->position < end && found->index_count < found->capacity &&
           found->epoch_count < found->capacity) {
        reason = whole_batch(&s, state->position, end, &info);
        /* Where the records lie in memory, before `take` moves the position behind them. */
        const uint8_t *records = NULL;
        if (reason == ISR_OK) {
            records = s.bytes + (state->position - s.start) + ISR_BATCH_HEADER;
            reason = take(state, &info, interval, found);
        }
        if (reason == ISR_OK && producers != NULL &&
            !add_producer(producers, &info, records, shown(&info))) {
            errno = ENOMEM;
            reason = ISR_IO_ERROR;
        }
    }
    int error = errno;
    free(s.bytes);
    errno = error;
    return reason;
}
