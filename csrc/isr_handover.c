#define _GNU_SOURCE
#include "isr_handover.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOAD(place) __atomic_load_n((place), __ATOMIC_SEQ_CST)
#define STORE(place, value) __atomic_store_n((place), (value), __ATOMIC_SEQ_CST)

static void wake(uint32_t *place)
{
    syscall(SYS_futex, place, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Sleeps while *place is `value`; `until` is a time of CLOCK_MONOTONIC, or NULL. Returns an errno, 0 if woken. */
static int sleep_while(uint32_t *place, uint32_t value, const struct timespec *until)
{
    if (syscall(SYS_futex, place, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL, FUTEX_BITSET_MATCH_ANY) == 0)
        return 0;
    return errno;
}

/* The flags of those who sleep are set before the counters are looked at, and the counters before the flags: one of
 * the two sees what the other did. */
void isr_handover_ask(isr_handover *h)
{
    __atomic_add_fetch(&h->asked, 1, __ATOMIC_SEQ_CST);
    if (LOAD(&h->rests))
        wake(&h->asked);
}

int isr_handover_ask_and_wait(isr_handover *h, int64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + timeout_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    STORE(&h->waits, 1);
    isr_handover_ask(h);
    int in_time = 1;
    for (;;) {
        uint32_t done = LOAD(&h->done);
        if (done == LOAD(&h->asked))
            break;
        if (sleep_while(&h->done, done, &until) == ETIMEDOUT) {
            in_time = LOAD(&h->done) == LOAD(&h->asked);
            break;
        }
    }
    STORE(&h->waits, 0);
    return in_time;
}

uint32_t isr_handover_rest(isr_handover *h, uint32_t done)
{
    STORE(&h->done, done);
    if (LOAD(&h->waits))
        wake(&h->done);
    uint32_t asked = LOAD(&h->asked);
    if (asked != done)
        return asked;
    STORE(&h->rests, 1);
    while ((asked = LOAD(&h->asked)) == done)
        sleep_while(&h->asked, done, NULL);
    STORE(&h->rests, 0);
    return asked;
}
