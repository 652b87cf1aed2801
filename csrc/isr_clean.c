#include "isr_clean.h"

#include <stdlib.h>
#include <string.h>

#include "isr_batch.h"
#include "isr_crc32c.h"
#include "isr_header.h"
#include "isr_record.h"

#define TRANSACTIONAL 0x10
#define HAS_HORIZON 0x40
#define MOST_GROWTH 20         /* bytes a record may gain when its timestamp is told from another base */

/* SipHash-2-4, output of 128 bits (Aumasson and Bernstein). */

typedef struct {
    uint64_t v0, v1, v2, v3;
} sip_state;

typedef struct {
    uint64_t low, high;
} hash128;

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void sip_rounds(sip_state *s, int rounds)
{
    while (rounds-- > 0) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 = rotate(s->v2, 32);
    }
}

static uint64_t little64(const uint8_t *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static hash128 siphash(const uint64_t seed[2], const uint8_t *data, size_t len)
{
    sip_state s = {seed[0] ^ UINT64_C(0x736f6d6570736575), seed[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                   seed[0] ^ UINT64_C(0x6c7967656e657261), seed[1] ^ UINT64_C(0x7465646279746573)};
    size_t at = 0;
    for (; len - at >= 8; at += 8) {
        uint64_t word = little64(data + at, 8);
        s.v3 ^= word;
        sip_rounds(&s, 2);
        s.v0 ^= word;
    }
    uint64_t last = (uint64_t)len << 56 | little64(data + at, len - at);
    s.v3 ^= last;
    sip_rounds(&s, 2);
    s.v0 ^= last;
    s.v2 ^= 0xee;
    sip_rounds(&s, 4);
    hash128 found = {s.v0 ^ s.v1 ^ s.v2 ^ s.v3, 0};
    s.v1 ^= 0xdd;
    sip_rounds(&s, 4);
    found.high = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return found;
}

static void read_seed(const uint8_t *bytes, uint64_t seed[2])
{
    seed[0] = little64(bytes, 8);
    seed[1] = little64(bytes + 8, 8);
}

void isr_siphash(const uint8_t *seed, const uint8_t *data, size_t len, uint8_t *out)
{
    uint64_t words[2];
    read_seed(seed, words);
    hash128 found = siphash(words, data, len);
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(found.low >> 8 * i);
        out[8 + i] = (uint8_t)(found.high >> 8 * i);
    }
}

/* The map: open addressing. */

typedef struct {
    hash128 key;
    int64_t above;            /* the offset, plus one; 0 = free */
} slot;

struct isr_keymap {
    slot *slots;
    uint64_t room;
    int64_t count;
    int64_t most;
    uint64_t seed[2];
};

isr_keymap *isr_keymap_new(int64_t slots, const uint8_t *seed)
{
    if (slots < 4 || (uint64_t)slots > SIZE_MAX / sizeof(slot))
        return NULL;
    isr_keymap *map = calloc(1, sizeof *map);
    if (map == NULL)
        return NULL;
    map->slots = calloc((size_t)slots, sizeof(slot));
    if (map->slots == NULL) {
        free(map);
        return NULL;
    }
    map->room = (uint64_t)slots;
    map->most = slots / 4 * 3;
    read_seed(seed, map->seed);
    return map;
}

void isr_keymap_free(isr_keymap *map)
{
    if (map == NULL)
        return;
    free(map->slots);
    free(map);
}

int64_t isr_keymap_count(const isr_keymap *map)
{
    return map->count;
}

/* The slot of a key: where it is, or the free one where it belongs. */
static slot *slot_of(const isr_keymap *map, hash128 hash)
{
    uint64_t at = hash.low % map->room;
    slot *found = &map->slots[at];
    while (found->above != 0 && (found->key.low != hash.low || found->key.high != hash.high)) {
        at = at + 1 == map->room ? 0 : at + 1;
        found = &map->slots[at];
    }
    return found;
}

/* The latest offset of a key, plus one; 0 if it is not in the map. */
static int64_t latest(const isr_keymap *map, const record_view *record)
{
    return slot_of(map, siphash(map->seed, record->key, (size_t)record->key_length))->above;
}

/* The batch at data[at..len): its header, or why it is not to be gone into here. */
static int enter(const uint8_t *data, size_t len, size_t at, int flags, isr_batch_info *info)
{
    if (len - at < ISR_BATCH_HEADER)
        return ISR_TRUNCATED;
    int reason = check_header(data + at, (int64_t)(len - at));
    if (reason != ISR_OK)
        return reason;
    read_header(data + at, (int64_t)at, info);
    if (!(flags & ISR_CLEAN_ANY) && (info->attributes & (TRANSACTIONAL | CONTROL)))
        return ISR_SPECIAL;
    if (info->record_count > 0 && (info->attributes & CODEC_MASK))
        return ISR_COMPRESSED;
    if ((flags & ISR_CLEAN_VERIFY) &&
        isr_crc32c(0, data + at + CRC_FROM, (size_t)info->size_bytes - CRC_FROM) != get32(data + at + 17))
        return ISR_BAD_CRC;
    return ISR_OK;
}

/* The next record of a batch; 0 if it does not fit the batch. */
static int next_record(const uint8_t **p, const uint8_t *end, const isr_batch_info *info, record_view *record)
{
    return get_record(p, end, record) && record->offset_delta >= 0 &&
           record->offset_delta <= info->last_offset_delta;
}

/* Before any key is entered: nobody reads the records of a batch that turns bad in the middle, so they replace none. */
static int can_be_read(const uint8_t *batch, const isr_batch_info *info)
{
    const uint8_t *p = batch + ISR_BATCH_HEADER, *end = batch + info->size_bytes;
    record_view record;
    for (int32_t i = 0; i < info->record_count; i++)
        if (!next_record(&p, end, info, &record))
            return 0;
    return p == end;
}

static int add_batch(isr_keymap *map, const uint8_t *batch, const isr_batch_info *info, int64_t from,
                     isr_keymap_progress *progress)
{
    const uint8_t *p = batch + ISR_BATCH_HEADER, *end = batch + info->size_bytes;
    record_view record;
    if (!can_be_read(batch, info))
        return ISR_BAD_RECORD;
    for (int32_t i = 0; i < info->record_count; i++) {
        next_record(&p, end, info, &record);
        int64_t offset = info->base_offset + record.offset_delta;
        if (offset < from || record.key_length < 0)
            continue;
        hash128 hash = siphash(map->seed, record.key, (size_t)record.key_length);
        slot *found = slot_of(map, hash);
        if (found->above == 0) {
            if (map->count == map->most) {
                progress->next_offset = offset;
                return ISR_MAP_FULL;
            }
            map->count++;
            found->key = hash;
        }
        if (found->above <= offset)
            found->above = offset + 1;
    }
    return ISR_OK;
}

int isr_keymap_add(isr_keymap *map, const uint8_t *data, size_t len, int64_t from, int flags,
                   isr_keymap_progress *progress)
{
    isr_batch_info info;
    while (progress->consumed < len) {
        int reason = enter(data, len, progress->consumed, flags, &info);
        if (reason == ISR_OK && !(info.attributes & CONTROL))
            reason = add_batch(map, data + progress->consumed, &info, from, progress);
        if (reason != ISR_OK)
            return reason;
        progress->next_offset = info.base_offset + info.last_offset_delta + 1;
        progress->consumed += (size_t)info.size_bytes;
    }
    return ISR_OK;
}

/* Cleaning */

static int is_kept(const isr_clean_rules *rules, int64_t last_offset)
{
    int64_t low = 0, high = rules->kept_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rules->kept[middle] < last_offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < rules->kept_count && rules->kept[low] == last_offset;
}

static int stays(const isr_keymap *map, const isr_clean_rules *rules, const isr_batch_info *info,
                 const record_view *record)
{
    int64_t offset = info->base_offset + record->offset_delta;
    if (rules->flags & ISR_CLEAN_DROP)
        return 0;
    if ((info->attributes & CONTROL) || offset >= rules->covered)
        return 1;
    if (record->key_length < 0)
        return 0;
    if (record->value_length < 0 && (info->attributes & HAS_HORIZON) && info->base_timestamp <= rules->now)
        return 0;
    return latest(map, record) <= offset + 1;
}

static uint8_t *put_varint(uint8_t *out, int64_t value)
{
    uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    while (raw >= 0x80) {
        *out++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *out++ = (uint8_t)raw;
    return out;
}

/* The record at [p, end) with its timestamp told from a base that is `earlier` by so much. */
static uint8_t *put_rebased(uint8_t *out, const uint8_t *p, const uint8_t *end, uint64_t earlier)
{
    uint8_t fields[16];
    int64_t length = 0, delta = 0;
    get_varint(&p, end, &length);
    uint8_t attributes = *p++;
    get_varint(&p, end, &delta);
    fields[0] = attributes;
    uint8_t *fields_end = put_varint(fields + 1, (int64_t)((uint64_t)delta + earlier));
    size_t head = (size_t)(fields_end - fields), rest = (size_t)(end - p);
    out = put_varint(out, (int64_t)(head + rest));
    memcpy(out, fields, head);
    memcpy(out + head, p, rest);
    return out + head + rest;
}

typedef struct {
    int64_t kept, keyless;
    int64_t max_timestamp;    /* of those kept */
    int tombstone;            /* one of those kept is */
} survey;

/* Looks at all records of a batch: how many stay, and what that means for its header. */
static int look(const isr_keymap *map, const uint8_t *batch, const isr_clean_rules *rules,
                const isr_batch_info *info, survey *found)
{
    const uint8_t *p = batch + ISR_BATCH_HEADER, *end = batch + info->size_bytes;
    record_view record;
    memset(found, 0, sizeof *found);
    found->max_timestamp = INT64_MIN;
    for (int32_t i = 0; i < info->record_count; i++) {
        if (!next_record(&p, end, info, &record))
            return ISR_BAD_RECORD;
        if (!stays(map, rules, info, &record)) {
            found->keyless += record.key_length < 0 && !(rules->flags & ISR_CLEAN_DROP);
            continue;
        }
        found->kept++;
        found->tombstone |= record.value_length < 0 && !(info->attributes & CONTROL);
        int64_t timestamp = (int64_t)((uint64_t)info->base_timestamp + (uint64_t)record.timestamp_delta);
        if (timestamp > found->max_timestamp)
            found->max_timestamp = timestamp;
    }
    return p == end ? ISR_OK : ISR_BAD_RECORD;
}

/* Writes the batch without the records that go; `marked` gives it the delete horizon. Returns its size. */
static size_t put_batch(const isr_keymap *map, const uint8_t *batch, const isr_clean_rules *rules,
                        const isr_batch_info *info, const survey *found, int marked, uint8_t *out)
{
    const uint8_t *p = batch + ISR_BATCH_HEADER, *end = batch + info->size_bytes;
    int64_t base_timestamp = marked ? rules->horizon : info->base_timestamp;
    int64_t max_timestamp = found->kept && !(info->attributes & LOG_APPEND_TIME) ? found->max_timestamp
                                                                                 : info->max_timestamp;
    uint16_t attributes = (uint16_t)info->attributes;
    record_view record;
    memcpy(out, batch, ISR_BATCH_HEADER);
    uint8_t *to = out + ISR_BATCH_HEADER;
    for (int32_t i = 0; i < info->record_count && found->kept; i++) {
        const uint8_t *start = p;
        next_record(&p, end, info, &record);
        if (!stays(map, rules, info, &record))
            continue;
        if (marked) {
            to = put_rebased(to, start, p, (uint64_t)info->base_timestamp - (uint64_t)base_timestamp);
        } else {
            memcpy(to, start, (size_t)(p - start));
            to += p - start;
        }
    }
    if (found->kept == 0) {
        base_timestamp = max_timestamp;
        attributes &= (uint16_t)~(HAS_HORIZON | CODEC_MASK);
    } else if (marked) {
        attributes |= HAS_HORIZON;
    }
    size_t size = (size_t)(to - out);
    put32(out + 8, (uint32_t)(size - LENGTH_END));
    put16(out + 21, attributes);
    put64(out + 27, (uint64_t)base_timestamp);
    put64(out + 35, (uint64_t)max_timestamp);
    put32(out + 57, (uint32_t)found->kept);
    put32(out + 17, isr_crc32c(0, out + CRC_FROM, size - CRC_FROM));
    return size;
}

int isr_clean(const isr_keymap *map, const uint8_t *data, size_t len, const isr_clean_rules *rules, uint8_t *out,
              size_t room, isr_clean_progress *progress)
{
    isr_batch_info info;
    survey found;
    while (progress->consumed < len) {
        const uint8_t *batch = data + progress->consumed;
        int reason = enter(data, len, progress->consumed, rules->flags, &info);
        if (reason == ISR_OK)
            reason = look(map, batch, rules, &info, &found);
        if (reason != ISR_OK)
            return reason;
        size_t size = (size_t)info.size_bytes;
        int64_t last_offset = info.base_offset + info.last_offset_delta;
        int due = (found.tombstone && last_offset < rules->covered) || (rules->flags & ISR_CLEAN_MARK);
        int marked = due && found.kept && !(info.attributes & HAS_HORIZON);
        size_t most = size + (marked ? (size_t)found.kept * MOST_GROWTH : 0);
        if (most > room - progress->written)
            return ISR_NO_ROOM;
        int whole = found.kept == info.record_count && !marked;
        if (found.kept > 0 || is_kept(rules, last_offset)) {
            if (whole)
                memcpy(out + progress->written, batch, size);
            else
                size = put_batch(map, batch, rules, &info, &found, marked, out + progress->written);
            progress->written += size;
            progress->changed += !whole;
        } else {
            progress->changed++;
        }
        progress->removed += info.record_count - found.kept;
        progress->keyless += found.keyless;
        progress->consumed += (size_t)info.size_bytes;
    }
    return ISR_OK;
}
