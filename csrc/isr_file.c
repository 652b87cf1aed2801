#include "isr_file.h"

#include <errno.h>
#include <unistd.h>

#include "isr_header.h"

#define SMALL_BATCH 4096
#define INDEX_ENTRY 8

/* A small window over a file, for reading one header after the other. */
typedef struct {
    int fd;
    int64_t start;
    int64_t filled;
    size_t want;
    uint8_t bytes[32768];
} window;

static const uint8_t *header_at(window *w, int64_t position, int64_t end)
{
    if (position >= w->start && position + ISR_BATCH_HEADER <= w->start + w->filled)
        return w->bytes + (position - w->start);
    size_t want = w->want;
    if ((int64_t)want > end - position)
        want = (size_t)(end - position);
    w->start = position;
    w->filled = 0;
    while (w->filled < ISR_BATCH_HEADER) {
        ssize_t got = pread(w->fd, w->bytes + w->filled, want - (size_t)w->filled, position + w->filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return NULL;
        if (got == 0) {
            errno = 0;
            return NULL;
        }
        w->filled += got;
    }
    return w->bytes;
}

/* The header at `position` of a file whose batches end by `end`; its reason if it is not one. */
static int next_header(window *w, int64_t position, int64_t end, isr_batch_info *info)
{
    if (end - position < ISR_BATCH_HEADER)
        return ISR_TRUNCATED;
    const uint8_t *p = header_at(w, position, end);
    if (p == NULL)
        return errno == 0 ? ISR_TRUNCATED : ISR_IO_ERROR;
    int reason = check_header(p, end - position);
    if (reason == ISR_OK) {
        read_header(p, position, info);
        w->want = info->size_bytes < SMALL_BATCH ? sizeof w->bytes : ISR_BATCH_HEADER;
    }
    return reason;
}

static void open_window(window *w, int fd)
{
    w->fd = fd;
    w->start = w->filled = 0;
    w->want = SMALL_BATCH;
}

size_t isr_batch_scan_file(int fd, int64_t from, int64_t end, isr_batch_info *out, size_t capacity,
                           int64_t *consumed, int *reason)
{
    window w;
    size_t found = 0;
    open_window(&w, fd);
    *reason = ISR_OK;
    while (from < end && found < capacity) {
        *reason = next_header(&w, from, end, &out[found]);
        if (*reason != ISR_OK)
            break;
        from += out[found].size_bytes;
        found++;
    }
    *consumed = from;
    return found;
}

typedef struct {
    int64_t position;
    int64_t offset;
} spot;

/* Moves *at over batches while they end at or below stop_offset and stop_position, but over the first in any case if
 * at_least_one. Returns a reason: ISR_OK, or what is wrong with the header there. */
static int walk(window *w, spot *at, int64_t end, int64_t stop_offset, int64_t stop_position, int at_least_one)
{
    isr_batch_info info;
    while (at->position < end) {
        int reason = next_header(w, at->position, end, &info);
        if (reason != ISR_OK)
            return reason;
        at->offset = info.base_offset;
        int64_t after = info.base_offset + info.last_offset_delta + 1;
        if (!at_least_one && (after > stop_offset || at->position + info.size_bytes > stop_position))
            break;
        at_least_one = 0;
        at->offset = after;
        at->position += info.size_bytes;
    }
    return ISR_OK;
}

int isr_batch_walk_file(int fd, int64_t from, int64_t end, int64_t stop_offset, int64_t *position,
                        int64_t *offset)
{
    window w;
    spot at = {from, *offset};
    open_window(&w, fd);
    int reason = walk(&w, &at, end, stop_offset, INT64_MAX, 0);
    *position = at.position;
    *offset = at.offset;
    return reason;
}

/* How many entries of an offset index have at most that value in the field at byte 0 (offset) or 4 (position). */
static int64_t count_up_to(const uint8_t *index, int64_t entries, int field, int64_t value)
{
    int64_t low = 0, high = entries;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if ((int32_t)get32(index + middle * INDEX_ENTRY + field) <= value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The position of the last entry that has at most that value, if there is one from `least` to the segment's end; else
 * `least`. */
static int64_t entry_below(const isr_segment *segment, int field, int64_t value, int64_t least)
{
    int64_t count = count_up_to(segment->index, segment->entries, field, value);
    int64_t found = count ? (int32_t)get32(segment->index + (count - 1) * INDEX_ENTRY + 4) : 0;
    return found > least && found < segment->end_position ? found : least;
}

/* Moves *stop, from *start or behind it, to where a slice of at most max_bytes ends. */
static int shorten(window *w, const isr_segment *segment, const spot *start, spot *stop, int64_t max_bytes,
                   int at_least_one)
{
    int64_t last = start->position + max_bytes;
    *stop = *start;
    stop->position = entry_below(segment, 4, last, start->position);
    int reason = walk(w, stop, segment->end_position, INT64_MAX, last, 0);
    if (reason != ISR_OK || stop->position > start->position || !at_least_one)
        return reason;
    *stop = *start;
    return walk(w, stop, segment->end_position, INT64_MAX, start->position, 1);
}

int isr_batch_slice_file(int fd, const isr_segment *segment, int64_t offset, int64_t limit_offset,
                         int64_t max_bytes, int at_least_one, isr_slice *out)
{
    window w;
    int64_t end = segment->end_position, base = segment->base_offset;
    spot start = {entry_below(segment, 0, offset - base, 0), base};
    open_window(&w, fd);
    int reason = walk(&w, &start, end, offset, INT64_MAX, 0);
    spot stop = start;
    if (reason == ISR_OK && limit_offset >= segment->end_offset) {
        stop.position = end;
        stop.offset = segment->end_offset;
    } else if (reason == ISR_OK) {
        stop.position = entry_below(segment, 0, limit_offset - base, start.position);
        reason = walk(&w, &stop, end, limit_offset, INT64_MAX, 0);
    }
    if (reason == ISR_OK && stop.position - start.position > max_bytes)
        reason = shorten(&w, segment, &start, &stop, max_bytes, at_least_one);
    out->start_position = start.position;
    out->start_offset = start.offset;
    out->stop_position = stop.position;
    /* The next batch may begin behind offsets that compaction took away. */
    out->stop_offset = stop.offset > limit_offset && stop.position > start.position ? limit_offset : stop.offset;
    return reason;
}
