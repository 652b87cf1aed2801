/* Batches in a file, found by their headers: little is read beside those. */
#ifndef ISR_FILE_H
#define ISR_FILE_H

#include "isr_batch.h"

/* As isr_batch_scan() over a file's bytes [from, end), without reading the records, hence without the CRC. */
size_t isr_batch_scan_file(int fd, int64_t from, int64_t end, isr_batch_info *out, size_t capacity,
                           int64_t *consumed, int *reason);

/* Skips batches in a file's bytes [from, end) while they end at or below stop_offset. Fills the position where it
 * stopped and the offset there (untouched if no header was read). Returns a reason: ISR_OK, or what is wrong with the
 * header at *position. */
int isr_batch_walk_file(int fd, int64_t from, int64_t end, int64_t stop_offset, int64_t *position,
                        int64_t *offset);

/* A segment file: its offset index (entries of 8 bytes, as the file has them: offset relative to the base, and
 * position, both i32), and the place behind its last batch. */
typedef struct {
    const uint8_t *index;
    int64_t entries;
    int64_t base_offset;
    int64_t end_position;
    int64_t end_offset;
} isr_segment;

typedef struct {
    int64_t start_position;
    int64_t start_offset;     /* base of the batch there */
    int64_t stop_position;
    int64_t stop_offset;      /* where to read on: base of what follows, at most the limit */
} isr_slice;

/* The whole batches from the one that holds `offset` to the last that ends at or below limit_offset, at most
 * max_bytes of them, but the first in any case if at_least_one. Wants base <= offset < end. The index may be short or
 * wrong: then it takes longer, or a reason tells of a header that is none, at stop_position. */
int isr_batch_slice_file(int fd, const isr_segment *segment, int64_t offset, int64_t limit_offset,
                         int64_t max_bytes, int at_least_one, isr_slice *out);

#endif
