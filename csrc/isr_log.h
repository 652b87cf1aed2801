/* A segment file as a whole: checked and indexed batch by batch, and what it says of idempotent producers. */
#ifndef ISR_LOG_H
#define ISR_LOG_H

#include <stddef.h>
#include <stdint.h>

#define ISR_PRODUCER_WINDOW 5

enum isr_misplaced {
    ISR_WRONG_OFFSET = 32,    /* a valid batch that does not run on from the one before */
    ISR_WRONG_EPOCH = 33,     /* a valid batch of an earlier leader epoch than the one before */
};

typedef struct {
    int64_t base_offset;
    int64_t last_offset;
    int32_t base_sequence;
    int32_t last_sequence;
} isr_produced;

typedef struct {
    int64_t producer_id;
    int64_t timestamp;
    int32_t epoch;
    int32_t count;
    isr_produced batches[5];  /* the latest, in order */
    int32_t coordinator_epoch; /* of the last marker; -1 without one */
    int32_t is_open;          /* a transactional batch was seen, and no marker since */
} isr_producer;

enum isr_marker_type {
    ISR_MARKER_NONE = -1,     /* no end of a transaction */
    ISR_MARKER_ABORT = 0,
    ISR_MARKER_COMMIT = 1,
    ISR_TRANSACTION_BEGUN = 2, /* as a step only: the first batch of a transaction, as far as was gone over */
};

/* A step of a producer's transaction, in the order of the log. `offset`: of the first batch, or of the marker. */
typedef struct {
    int64_t producer_id;
    int64_t offset;
    int32_t coordinator_epoch;
    int32_t type;
} isr_transaction_step;

/* What the records of a control batch say, from behind its header on: a type of `isr_marker_type`. */
int isr_batch_marker(const uint8_t *records, size_t len, int32_t *coordinator_epoch);

/* A table of producers, in the order of their first batch. */
typedef struct isr_producers isr_producers;

isr_producers *isr_producers_new(void);
void isr_producers_free(isr_producers *table);
int64_t isr_producers_count(const isr_producers *table);
const isr_producer *isr_producers_at(const isr_producers *table, int64_t index);
int64_t isr_producers_step_count(const isr_producers *table);
const isr_transaction_step *isr_producers_steps(const isr_producers *table);

/* Adds the batches that begin in a file's bytes [*position, end), going by their headers (and what markers say), and
 * moves *position.
 * Returns a reason: ISR_OK, or what is wrong with the batch at *position. */
int isr_producers_replay(isr_producers *table, int fd, int64_t *position, int64_t end);

/* Where a scan is. To start: base offset of the segment, position and offset of the first batch (an offset of -1
 * takes any), epoch and timestamps -1, the rest 0. */
typedef struct {
    int64_t segment_base;
    int64_t position;
    int64_t offset;
    int64_t max_timestamp;         /* greatest of all batches so far */
    int64_t max_timestamp_offset;  /* last offset of the first batch that has it */
    int64_t entered_timestamp;     /* of the last time index entry */
    int64_t since_entry;           /* bytes since the last index entry */
    int64_t batches;
    int32_t epoch;                 /* of the last batch */
    int32_t found_epoch;           /* of a batch that is misplaced, and its offset */
    int64_t found_offset;
    int32_t gaps;                  /* offsets may be missing between batches, as compaction leaves them */
} isr_log_state;

typedef struct {
    int64_t epoch;
    int64_t start_offset;
} isr_log_epoch;

typedef struct {
    uint8_t *index;                /* entries as the files have them, 8 and 12 bytes each */
    uint8_t *time_index;
    isr_log_epoch *epochs;
    int32_t capacity;              /* of each */
    int32_t index_count;
    int32_t time_index_count;
    int32_t epoch_count;
} isr_log_found;

/* Checks the batches of a file from the state on up to `end`: whole, CRC, offsets without a gap, epochs never
 * falling. Emits index entries for a batch once more than `interval` bytes lie since the last (a time index entry
 * only if the greatest timestamp has risen), and the epochs that begin; adds to `producers` unless that is NULL. Stops at a bad batch (returns its reason), at the end, or when
 * `found` is full (ISR_OK; call again while position < end). */
int isr_log_scan(int fd, int64_t end, int64_t interval, isr_log_state *state, isr_log_found *found,
                 isr_producers *producers);

/* The first batch with records of a file's bytes [*position, end) whose greatest timestamp is at least `timestamp`
 * and that ends above `min_offset`: *position is where it starts, *size its size. Without one *position is where
 * to go on: `end`, or the first batch at or above `limit` that was not looked at. Returns a reason. */
int isr_log_find_timestamp(int fd, int64_t *position, int64_t limit, int64_t end, int64_t timestamp,
                           int64_t min_offset, int64_t *size);

#endif
