/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as RFC 3720 and the record batch format v2 use it. */
#ifndef ISR_CRC32C_H
#define ISR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The finalised CRC of `data`; pass 0 to start, or the result for what came before to go on. */
uint32_t isr_crc32c(uint32_t crc, const void *data, size_t len);

/* The table-driven way, which every machine has. Same result. */
uint32_t isr_crc32c_portable(uint32_t crc, const void *data, size_t len);

/* 1 when isr_crc32c() uses the processor's CRC-32C instruction. */
int isr_crc32c_is_hardware(void);

#endif
