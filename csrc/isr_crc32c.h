/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as RFC 3720 and the record batch format v2 use it. */
#ifndef ISR_CRC32C_H
#define ISR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The finalised CRC of `data`; pass 0 to start, or the result for what came before to go on. */
uint32_t isr_crc32c(uint32_t crc, const void *data, size_t len);

/* Ways of computing it, from the one that every machine has to the fastest. The result is the same. */
enum isr_crc_way {
    ISR_CRC_TABLES = 0,
    ISR_CRC_INSTRUCTION = 1,  /* three streams of SSE4.2's CRC-32C instruction */
    ISR_CRC_FOLDING = 2,      /* carry-less multiplication of 64 bytes at once (AVX-512, VPCLMULQDQ) */
};

/* The best that this processor has; isr_crc32c() takes it. */
int isr_crc32c_best_way(void);

/* In a given way, or in the best there is if that is less. For tests. */
uint32_t isr_crc32c_by(int way, uint32_t crc, const void *data, size_t len);

#endif
