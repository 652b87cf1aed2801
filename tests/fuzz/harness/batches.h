/* Batches as inputs of a harness. */
#ifndef ISR_FUZZ_BATCHES_H
#define ISR_FUZZ_BATCHES_H

#include "input.h"
#include "isr_batch.h"
#include "isr_crc32c.h"

/* Gives every batch that fits the CRC of its bytes: chance does not find one. */
static inline void repair_crcs(uint8_t *data, size_t len)
{
    size_t at = 0;
    while (len - at >= ISR_BATCH_HEADER) {
        uint64_t size = (uint64_t)fuzz_u32(data + at + 8) + 12;
        if (size < ISR_BATCH_HEADER || size > len - at)
            return;
        uint32_t crc = isr_crc32c(0, data + at + 21, (size_t)size - 21);
        for (int i = 0; i < 4; i++)
            data[at + 17 + i] = (uint8_t)(crc >> (24 - 8 * i));
        at += (size_t)size;
    }
}

static inline int take_batches(fuzz_input *in, const uint8_t *data, size_t size)
{
    if (!take_input(in, data, size))
        return 0;
    if (in->flags & REPAIR_CRC)
        repair_crcs(in->bytes, in->len);
    return 1;
}

#endif
