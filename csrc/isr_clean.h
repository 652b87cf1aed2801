/* Compaction: the latest offset of each key, and batches without the records that a later one replaces. */
#ifndef ISR_CLEAN_H
#define ISR_CLEAN_H

#include <stddef.h>
#include <stdint.h>

enum isr_clean_stop {
    ISR_MAP_FULL = 64,        /* no room for another key */
    ISR_SPECIAL = 65,         /* a transactional or control batch */
    ISR_NO_ROOM = 66,         /* the output might not hold the next batch */
};

enum isr_clean_flags {
    ISR_CLEAN_VERIFY = 1,     /* check CRCs */
    ISR_CLEAN_ANY = 2,        /* take transactional batches like others, and control batches as they are */
    ISR_CLEAN_DROP = 4,       /* no record stays */
    ISR_CLEAN_MARK = 8,       /* give a delete horizon to each batch that has none */
};

/* Keys by a keyed hash of 128 bits (SipHash-2-4): nobody who does not know the seed can make two keys collide. */
typedef struct isr_keymap isr_keymap;

/* Takes 24 bytes for each of `slots`, of which three in four can be used; `seed` has 16 bytes. NULL: no memory. */
isr_keymap *isr_keymap_new(int64_t slots, const uint8_t *seed);
void isr_keymap_free(isr_keymap *map);
int64_t isr_keymap_count(const isr_keymap *map);

typedef struct {
    size_t consumed;          /* where to start, and where it stopped: at a batch */
    int64_t next_offset;      /* records below are entered */
} isr_keymap_progress;

/* Enters the keys of records with offset >= from, of the whole batches in data[consumed..len). Returns ISR_OK at the
 * end, or why it stopped at the batch at `consumed`: ISR_MAP_FULL, ISR_COMPRESSED, ISR_SPECIAL, or what is wrong. */
int isr_keymap_add(isr_keymap *map, const uint8_t *data, size_t len, int64_t from, int flags,
                   isr_keymap_progress *progress);

typedef struct {
    const int64_t *kept;      /* last offsets, rising, of batches that stay even without records */
    int64_t kept_count;
    int64_t covered;          /* of offsets below, the map knows what replaces them; the others stay */
    int64_t now;              /* ms; tombstones go whose batch has an earlier delete horizon */
    int64_t horizon;          /* ms; for batches that have tombstones and none yet (KIP-534) */
    int32_t flags;
} isr_clean_rules;

typedef struct {
    size_t consumed;          /* as above */
    size_t written;           /* bytes in `out` */
    int64_t removed;          /* records */
    int64_t keyless;          /* of them, without a key */
    int64_t changed;          /* batches that are not copied as they were */
} isr_clean_progress;

/* Copies whole batches to `out`, each with its base and last offset and without the records that are to go. Returns
 * as above, or ISR_NO_ROOM. */
int isr_clean(const isr_keymap *map, const uint8_t *data, size_t len, const isr_clean_rules *rules, uint8_t *out,
              size_t room, isr_clean_progress *progress);

/* SipHash-2-4 of 128 bits, for tests. */
void isr_siphash(const uint8_t *seed, const uint8_t *data, size_t len, uint8_t *out);

#endif
