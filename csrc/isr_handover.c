#define _GNU_SOURCE
#include "isr_handover.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
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

/* What sched_setattr takes, in the form that every system with that call knows. */
typedef struct {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime;
    uint64_t deadline;
    uint64_t period;
} scheduling;

/* Nanoseconds. Linux 6.12 and later has a thread that asks for shorter slices begin when it is woken, in the place of the one
 * that runs on its processor. */
#define SHORT_SLICE 100000
#define USUAL_SLICE 0

/* The slices of this thread from now on; systems before that take no notice. */
static void ask_for_slice(uint64_t ns)
{
    scheduling mine;
    memset(&mine, 0, sizeof mine);
    if (syscall(SYS_sched_getattr, 0, &mine, sizeof mine, 0) || (mine.policy != SCHED_OTHER && mine.policy != SCHED_BATCH))
        return;
    mine.size = sizeof mine;
    mine.runtime = ns;
    syscall(SYS_sched_setattr, 0, &mine, 0);
}

/* Who waits sleeps while the worker works, so that one processor serves both in turn. Left to itself the scheduler wakes the
 * worker on another one that is idle, or busy with something else: that takes many times as long as to go on where the
 * caches are warm and the time slice is not over. Only the worker is bound: the thread that waits belongs to the program.
 */

_Static_assert(sizeof(cpu_set_t) == sizeof ((isr_handover *)0)->usual, "a set of processors fits");

/* The processors that this thread may use, which asks. Returns how many; 0 if the system does not tell. */
static int mine(isr_handover *h, cpu_set_t *set)
{
    uint64_t words[ISR_PROCESSOR_WORDS];
    if (sched_getaffinity(0, sizeof *set, set))
        return 0;
    memcpy(words, set, sizeof words);
    for (int i = 0; i < ISR_PROCESSOR_WORDS; i++)
        STORE(&h->usual[i], words[i]);
    return CPU_COUNT(set);
}

/* Binds the worker to the processor on which this thread runs. */
static void lend_processor(isr_handover *h)
{
    cpu_set_t set;
    int32_t worker = LOAD(&h->worker);
    int processor = sched_getcpu();
    if (worker <= 0 || processor < 0 || processor >= CPU_SETSIZE || LOAD(&h->bound) == processor + 1 || mine(h, &set) < 2)
        return;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    STORE(&h->bound, processor + 1);
    sched_setaffinity(worker, sizeof set, &set);
}

/* For work that nobody waits for. Of two threads that bind and free the worker at once either may be the last: then it
 * works where it may, and not where it would best. */
static void free_worker(isr_handover *h)
{
    cpu_set_t set;
    int32_t worker = LOAD(&h->worker);
    if (!LOAD(&h->bound) || worker <= 0)
        return;
    STORE(&h->bound, 0);
    if (mine(h, &set))
        sched_setaffinity(worker, sizeof set, &set);
}

void isr_handover_leave(isr_handover *h)
{
    cpu_set_t set;
    uint64_t words[ISR_PROCESSOR_WORDS];
    for (int i = 0; i < ISR_PROCESSOR_WORDS; i++)
        words[i] = LOAD(&h->usual[i]);
    memcpy(&set, words, sizeof set);
    if (CPU_COUNT(&set))
        sched_setaffinity(0, sizeof set, &set);
    ask_for_slice(USUAL_SLICE);
}

void isr_handover_end(isr_handover *h)
{
    STORE(&h->worker, -1);
    STORE(&h->bound, 0);
}

/* The flags of those who sleep are set before the counters are looked at, and the counters before the flags: one of
 * the two sees what the other did. */
static void ask(isr_handover *h)
{
    __atomic_add_fetch(&h->asked, 1, __ATOMIC_SEQ_CST);
    if (LOAD(&h->rests))
        wake(&h->asked);
}

void isr_handover_ask(isr_handover *h)
{
    free_worker(h);
    ask(h);
}

int isr_handover_ask_and_wait(isr_handover *h, int64_t timeout_ns)
{
    lend_processor(h);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + timeout_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    ask(h);
    if (LOAD(&h->done) == LOAD(&h->asked))
        return 1;
    int in_time = 1;
    STORE(&h->waits, 1);
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
    if (!in_time)
        free_worker(h);
    return in_time;
}

uint32_t isr_handover_rest(isr_handover *h, uint32_t done)
{
    if (!LOAD(&h->worker)) {
        ask_for_slice(SHORT_SLICE);
        STORE(&h->worker, (int32_t)syscall(SYS_gettid));
    }
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
