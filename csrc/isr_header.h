/* The header of a record batch, as the C files read it; not for Python. */
#ifndef ISR_HEADER_H
#define ISR_HEADER_H

#include "isr_batch.h"

#define CRC_FROM 21            /* attributes: the first byte under the CRC */
#define LENGTH_END 12          /* batchLength counts the bytes after itself */
#define KNOWN_ATTRIBUTES 0x7f
#define CODEC_MASK 0x07
#define LOG_APPEND_TIME 0x08
#define TRANSACTIONAL 0x10
#define CONTROL 0x20

static inline uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get64(const uint8_t *p)
{
    return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static inline int16_t get16(const uint8_t *p)
{
    return (int16_t)(uint16_t)(p[0] << 8 | p[1]);
}

static inline void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
    put16(p, (uint16_t)(v >> 16));
    put16(p + 2, (uint16_t)v);
}

static inline void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)(v >> 32));
    put32(p + 4, (uint32_t)v);
}

static inline void read_header(const uint8_t *p, int64_t position, isr_batch_info *info)
{
    info->base_offset = (int64_t)get64(p);
    info->position = position;
    info->size_bytes = (int32_t)(get32(p + 8) + LENGTH_END);
    info->leader_epoch = (int32_t)get32(p + 12);
    info->attributes = get16(p + 21);
    info->last_offset_delta = (int32_t)get32(p + 23);
    info->base_timestamp = (int64_t)get64(p + 27);
    info->max_timestamp = (int64_t)get64(p + 35);
    info->producer_id = (int64_t)get64(p + 43);
    info->producer_epoch = get16(p + 51);
    info->base_sequence = (int32_t)get32(p + 53);
    info->record_count = (int32_t)get32(p + 57);
}

/* p has a whole header; `available` bytes follow from p on. */
static inline int check_header(const uint8_t *p, int64_t available)
{
    uint32_t length = get32(p + 8);
    int32_t delta = (int32_t)get32(p + 23);
    int32_t count = (int32_t)get32(p + 57);
    int64_t base = (int64_t)get64(p);
    if (p[16] != 2)
        return ISR_BAD_MAGIC;
    if (length < ISR_BATCH_HEADER - LENGTH_END || length > INT32_MAX - LENGTH_END)
        return ISR_BAD_LENGTH;
    if ((int64_t)length + LENGTH_END > available)
        return ISR_TRUNCATED;
    if (base < 0 || base > INT64_MAX - INT32_MAX - 1 || delta < 0 || count < 0 ||
        (int64_t)count > (int64_t)delta + 1 || (get16(p + 21) & ~KNOWN_ATTRIBUTES) != 0 ||
        (int32_t)get32(p + 12) < -1)
        return ISR_BAD_HEADER;
    return ISR_OK;
}

#endif
