#include "isr_crc32c.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define ISR_CRC_X86 1
#include <nmmintrin.h>
#endif

#define POLY 0x82F63B78u

/* Three streams hide the instruction's latency of three cycles; their CRCs are joined by advancing
 * the earlier ones over as many zero bytes as the later ones are long. */
#define LONG_BLOCK 4096u
#define SHORT_BLOCK 256u

static uint32_t slices[8][256];
static int use_hardware;

#ifdef ISR_CRC_X86
static uint32_t over_long[4][256];
static uint32_t over_short[4][256];

static void fill_shift(uint32_t table[4][256], size_t zero_bytes)
{
    uint32_t basis[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t state = 1u << bit;
        for (size_t i = 0; i < zero_bytes; i++)
            state = (state >> 8) ^ slices[0][state & 0xff];
        basis[bit] = state;
    }
    for (int part = 0; part < 4; part++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    sum ^= basis[part * 8 + bit];
            table[part][value] = sum;
        }
}

static inline uint32_t shift(uint32_t table[4][256], uint32_t state)
{
    return table[0][state & 0xff] ^ table[1][state >> 8 & 0xff] ^ table[2][state >> 16 & 0xff] ^
           table[3][state >> 24];
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

__attribute__((target("sse4.2"))) static const uint8_t *
three_streams(uint32_t *state, const uint8_t *p, const uint8_t *end, size_t block, uint32_t table[4][256])
{
    while ((size_t)(end - p) >= 3 * block) {
        uint64_t a = *state, b = 0, c = 0;
        for (size_t i = 0; i < block; i += 8) {
            a = _mm_crc32_u64(a, load64(p + i));
            b = _mm_crc32_u64(b, load64(p + block + i));
            c = _mm_crc32_u64(c, load64(p + 2 * block + i));
        }
        *state = shift(table, shift(table, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
        p += 3 * block;
    }
    return p;
}

__attribute__((target("sse4.2"))) static uint32_t hardware(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data, *end = p + len;
    uint32_t state = ~crc;
    p = three_streams(&state, p, end, LONG_BLOCK, over_long);
    p = three_streams(&state, p, end, SHORT_BLOCK, over_short);
    for (; end - p >= 8; p += 8)
        state = (uint32_t)_mm_crc32_u64(state, load64(p));
    for (; p < end; p++)
        state = _mm_crc32_u8(state, *p);
    return ~state;
}
#endif

__attribute__((constructor)) static void isr_crc32c_setup(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t state = value;
        for (int bit = 0; bit < 8; bit++)
            state = state & 1 ? (state >> 1) ^ POLY : state >> 1;
        slices[0][value] = state;
    }
    for (int slice = 1; slice < 8; slice++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t before = slices[slice - 1][value];
            slices[slice][value] = (before >> 8) ^ slices[0][before & 0xff];
        }
#ifdef ISR_CRC_X86
    fill_shift(over_long, LONG_BLOCK);
    fill_shift(over_short, SHORT_BLOCK);
    __builtin_cpu_init();
    use_hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

uint32_t isr_crc32c_portable(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data, *end = p + len;
    uint32_t state = ~crc;
    for (; end - p >= 8; p += 8) {
        state ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        state = slices[7][state & 0xff] ^ slices[6][state >> 8 & 0xff] ^ slices[5][state >> 16 & 0xff] ^
                slices[4][state >> 24] ^ slices[3][p[4]] ^ slices[2][p[5]] ^ slices[1][p[6]] ^
                slices[0][p[7]];
    }
    for (; p < end; p++)
        state = (state >> 8) ^ slices[0][(state ^ *p) & 0xff];
    return ~state;
}

uint32_t isr_crc32c(uint32_t crc, const void *data, size_t len)
{
#ifdef ISR_CRC_X86
    if (use_hardware)
        return hardware(crc, data, len);
#endif
    return isr_crc32c_portable(crc, data, len);
}

int isr_crc32c_is_hardware(void)
{
    return use_hardware;
}
