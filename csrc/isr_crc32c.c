#include "isr_crc32c.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define ISR_CRC_X86 1
#include <immintrin.h>
#endif

#define POLY 0x82F63B78u

#ifndef ISR_CRC_MOST          /* less for trying what other machines do */
#define ISR_CRC_MOST ISR_CRC_FOLDING
#endif

/* Three streams hide the instruction's latency of three cycles; their CRCs are joined by advancing
 * the earlier ones over as many zero bytes as the later ones are long. */
#define LONG_BLOCK 4096u
#define SHORT_BLOCK 256u

static uint32_t slices[8][256];
static int best_way;

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

__attribute__((target("sse4.2,crc32"))) static const uint8_t *
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

__attribute__((target("sse4.2,crc32"))) static uint32_t with_instruction(uint32_t crc, const void *data, size_t len)
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

/* Folding: 64 bytes at a time are multiplied ahead by a power of x, modulo the polynomial, onto the bytes that stand
 * so far behind them. What is left at the end is 16 bytes with the remainder of all that was folded. */
#define FOLD_FROM 1024u

static uint64_t fold_by_256[2], fold_by_192[2], fold_by_128[2], fold_by_64[2], fold_lanes[8];

/* x^n modulo the polynomial, lowest power in the highest bit. */
static uint32_t power_of_x(unsigned n)
{
    uint32_t power = 1u << 31;
    while (n-- > 0)
        power = power & 1 ? (power >> 1) ^ POLY : power >> 1;
    return power;
}

/* The factors for both halves of 16 bytes that move by that many bytes. A product of two reflected numbers of 64 bits
 * comes out multiplied by x, and a number of 32 bits counts as one times x^32: hence 33 powers less. */
static void set_factors(uint64_t factors[2], unsigned bytes)
{
    factors[0] = power_of_x(bytes * 8 + 64 - 33);
    factors[1] = power_of_x(bytes * 8 - 33);
}

static void set_fold_factors(void)
{
    set_factors(fold_by_256, 256);
    set_factors(fold_by_192, 192);
    set_factors(fold_by_128, 128);
    set_factors(fold_by_64, 64);
    for (unsigned lane = 0; lane < 3; lane++)
        set_factors(fold_lanes + (size_t)2 * lane, 48 - 16 * lane);
}

#define FOLDING __attribute__((target("avx512f,vpclmulqdq,sse4.2,crc32")))

FOLDING static inline __m512i factors(const uint64_t of[2])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)of));
}

FOLDING static inline __m512i fold(__m512i from, __m512i by, __m512i onto)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(from, by, 0x00),
                                     _mm512_clmulepi64_epi128(from, by, 0x11), onto, 0x96);
}

FOLDING static uint32_t with_folding(uint32_t crc, const void *data, size_t len)
{
    if (len < FOLD_FROM)
        return with_instruction(crc, data, len);
    const uint8_t *p = data, *end = p + len;
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    __m512i by = factors(fold_by_256);
    for (p += 256; end - p >= 256; p += 256) {
        a = fold(a, by, _mm512_loadu_si512(p));
        b = fold(b, by, _mm512_loadu_si512(p + 64));
        c = fold(c, by, _mm512_loadu_si512(p + 128));
        d = fold(d, by, _mm512_loadu_si512(p + 192));
    }
    d = fold(a, factors(fold_by_192), d);
    d = fold(b, factors(fold_by_128), d);
    d = fold(c, factors(fold_by_64), d);
    /* The last of the four lanes is where the others go. */
    __m512i moved = fold(d, _mm512_loadu_si512(fold_lanes), _mm512_setzero_si512());
    uint64_t words[8];
    _mm512_storeu_si512(words, _mm512_mask_mov_epi64(moved, 0xc0, d));
    uint64_t first = words[0] ^ words[2] ^ words[4] ^ words[6];
    uint64_t second = words[1] ^ words[3] ^ words[5] ^ words[7];
    uint32_t state = (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, first), second);
    return with_instruction(~state, p, (size_t)(end - p));
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
    set_fold_factors();
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        best_way = ISR_CRC_INSTRUCTION;
    if (best_way && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        best_way = ISR_CRC_FOLDING;
    if (best_way > ISR_CRC_MOST)
        best_way = ISR_CRC_MOST;
#endif
}

static uint32_t with_tables(uint32_t crc, const void *data, size_t len)
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

uint32_t isr_crc32c_by(int way, uint32_t crc, const void *data, size_t len)
{
    if (way > best_way)
        way = best_way;
#ifdef ISR_CRC_X86
    if (way == ISR_CRC_FOLDING)
        return with_folding(crc, data, len);
    if (way == ISR_CRC_INSTRUCTION)
        return with_instruction(crc, data, len);
#endif
    return with_tables(crc, data, len);
}

uint32_t isr_crc32c(uint32_t crc, const void *data, size_t len)
{
    return isr_crc32c_by(best_way, crc, data, len);
}

int isr_crc32c_best_way(void)
{
    return best_way;
}
