/* What every harness needs: options at the front of an input, the rest as bytes of their exact size, and a check that
 * ends the run. */
#ifndef ISR_FUZZ_INPUT_H
#define ISR_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_BYTES 16

#define REPAIR_CRC 1
#define AT_LEAST_ONE 2
#define GAPS 32

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                    \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

typedef struct {
    uint8_t flags;
    uint8_t small;            /* a count */
    uint16_t medium;
    int32_t first, second, third;
    uint8_t *bytes;           /* of their own allocation, so that a byte too many is seen */
    size_t len;
} fuzz_input;

static inline uint32_t fuzz_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* 0 if there is too little of it. Free with free_input(). */
static inline int take_input(fuzz_input *in, const uint8_t *data, size_t size)
{
    if (size < OPTION_BYTES)
        return 0;
    in->flags = data[0];
    in->small = data[1];
    in->medium = (uint16_t)(data[2] << 8 | data[3]);
    in->first = (int32_t)fuzz_u32(data + 4);
    in->second = (int32_t)fuzz_u32(data + 8);
    in->third = (int32_t)fuzz_u32(data + 12);
    in->len = size - OPTION_BYTES;
    in->bytes = malloc(in->len);
    if (in->len)
        memcpy(in->bytes, data + OPTION_BYTES, in->len);
    return 1;
}

static inline void free_input(fuzz_input *in)
{
    free(in->bytes);
}

#endif
