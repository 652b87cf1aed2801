/* All ways of computing a CRC-32C agree, in one go or in two. */
#include "input.h"
#include "isr_crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_input(&in, data, size))
        return 0;
    uint32_t start = (uint32_t)in.first, expected = isr_crc32c_by(ISR_CRC_TABLES, start, in.bytes, in.len);
    size_t cut = in.len ? (uint32_t)in.second % in.len : 0;
    for (int way = ISR_CRC_TABLES; way <= isr_crc32c_best_way() + 1; way++) {
        CHECK(isr_crc32c_by(way, start, in.bytes, in.len) == expected);
        uint32_t half = isr_crc32c_by(way, start, in.bytes, cut);
        CHECK(isr_crc32c_by(way, half, in.bytes + cut, in.len - cut) == expected);
    }
    CHECK(isr_crc32c(start, in.bytes, in.len) == expected);
    free_input(&in);
    return 0;
}
