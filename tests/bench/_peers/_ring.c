/* A byte ring between one writer and one reader in shared memory, with eventfds to wake who sleeps.
 * For the benchmark that decides whether shm:// should have one. */
#include "_ring.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Positions only grow; each has a pair of cache lines for itself. */
struct ring {
    _Alignas(128) _Atomic uint64_t tail;
    _Alignas(128) _Atomic uint64_t head;
    _Alignas(128) _Atomic uint32_t reader_waits;
    _Alignas(128) _Atomic uint32_t writer_waits;
};

_Static_assert(sizeof(struct ring) <= RING_HEADER, "the header has room");

static void wake(_Atomic uint32_t *waits, int eventfd)
{
    uint64_t one = 1;

    /* The position was stored before this load, in every order that the other side can see. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(waits, memory_order_relaxed) && atomic_exchange(waits, 0))
        while (write(eventfd, &one, sizeof one) < 0)
            ;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

int64_t ring_write(void *base, uint64_t capacity, const char *data, uint64_t size, int eventfd)
{
    struct ring *ring = base;
    char *bytes = (char *)base + RING_HEADER;
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t room = capacity - (tail - atomic_load_explicit(&ring->head, memory_order_acquire));
    uint64_t count = smaller(size, room), at = tail & (capacity - 1), first = smaller(count, capacity - at);

    if (count == 0)
        return 0;
    memcpy(bytes + at, data, first);
    memcpy(bytes, data + first, count - first);
    atomic_store_explicit(&ring->tail, tail + count, memory_order_release);
    wake(&ring->reader_waits, eventfd);
    return (int64_t)count;
}

int64_t ring_read(void *base, uint64_t capacity, char *data, uint64_t size, int eventfd)
{
    struct ring *ring = base;
    const char *bytes = (const char *)base + RING_HEADER;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&ring->tail, memory_order_acquire) - head;
    uint64_t count = smaller(size, there), at = head & (capacity - 1), first = smaller(count, capacity - at);

    if (count == 0)
        return 0;
    memcpy(data, bytes + at, first);
    memcpy(data + first, bytes, count - first);
    atomic_store_explicit(&ring->head, head + count, memory_order_release);
    /* A writer that waits is worth waking when there is room for something. */
    if (there - count <= capacity - capacity / 4)
        wake(&ring->writer_waits, eventfd);
    return (int64_t)count;
}

int ring_reader_may_sleep(void *base)
{
    struct ring *ring = base;

    atomic_store_explicit(&ring->reader_waits, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&ring->tail) == atomic_load(&ring->head))
        return 1;
    atomic_store_explicit(&ring->reader_waits, 0, memory_order_relaxed);
    return 0;
}

int ring_writer_may_sleep(void *base, uint64_t capacity)
{
    struct ring *ring = base;

    atomic_store_explicit(&ring->writer_waits, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&ring->tail) - atomic_load(&ring->head) > capacity - capacity / 4)
        return 1;
    atomic_store_explicit(&ring->writer_waits, 0, memory_order_relaxed);
    return 0;
}
