/* Writing records and the header of a batch, for the C files; not for Python. */
#ifndef ISR_WRITE_H
#define ISR_WRITE_H

#include "isr_crc32c.h"
#include "isr_header.h"

static inline uint64_t zigzag(int64_t v)
{
    return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}

static inline size_t varint_size(int64_t v)
{
    uint64_t z = zigzag(v);
    size_t size = 1;
    while (z >= 0x80) {
        z >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t v)
{
    uint64_t z = zigzag(v);
    while (z >= 0x80) {
        *p++ = (uint8_t)(z | 0x80);
        z >>= 7;
    }
    *p++ = (uint8_t)z;
    return p;
}

/* The size of an item with its length before it; -1 is null. */
static inline size_t item_size(int64_t length)
{
    return varint_size(length) + (length > 0 ? (size_t)length : 0);
}

/* The header of a batch of `size` bytes at base offset 0, epoch -1; its records stand behind it already. */
static inline void put_batch_header(uint8_t *out, int64_t size, int32_t count, int64_t base_timestamp,
                                    int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
                                    int32_t base_sequence, int16_t attributes)
{
    put64(out, 0);
    put32(out + 8, (uint32_t)(size - LENGTH_END));
    put32(out + 12, UINT32_MAX);
    out[16] = 2;
    put16(out + 21, (uint16_t)attributes);
    put32(out + 23, (uint32_t)(count - 1));
    put64(out + 27, (uint64_t)base_timestamp);
    put64(out + 35, (uint64_t)max_timestamp);
    put64(out + 43, (uint64_t)producer_id);
    put16(out + 51, (uint16_t)producer_epoch);
    put32(out + 53, (uint32_t)base_sequence);
    put32(out + 57, (uint32_t)count);
    put32(out + 17, isr_crc32c(0, out + CRC_FROM, (size_t)size - CRC_FROM));
}

#endif
