/* Two threads hand work over, and a third may interrupt both by signals. What is to be done is told by nothing but the
 * hand-over itself: every ask is one more number to take. For ThreadSanitizer, which sees what the worker reads
 * without having been told.
 *
 *     handover_stress ROUNDS FIRST INTERRUPTED
 *
 * FIRST is what the counters begin with, so that they wrap. INTERRUPTED: 1 for signals; each of them wakes whoever
 * sleeps, so a lost wake-up shows without them only. Ends with 1 if a wake-up is lost or work is not done.
 */
#define _GNU_SOURCE
#include "isr_handover.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROOM 1024u
#define LONG 5000000000LL

static isr_handover h;
static uint32_t first, left_at;
static int interrupted, over;
/* Plain memory: who reads it has been told by the hand-over. */
static uint64_t given[ROOM], sum;
static pthread_t asker, worker;

static void nap(long ns)
{
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void *work(void *unused)
{
    uint32_t done = first;
    unsigned dice = 7;
    (void)unused;
    for (;;) {
        uint32_t asked = isr_handover_rest(&h, done);
        if (rand_r(&dice) % 500 == 0)
            nap(rand_r(&dice) % 200000);
        for (; done != asked; done++) {
            if (given[done % ROOM] == UINT64_MAX)
                return NULL;
            sum += given[done % ROOM];
        }
    }
}

static void *interrupt(void *unused)
{
    unsigned dice = 3;
    (void)unused;
    while (interrupted && !__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        pthread_kill(asker, SIGUSR1);
        pthread_kill(worker, SIGUSR1);
        nap(rand_r(&dice) % 200000);
    }
    return NULL;
}

static void nothing(int signal)
{
    (void)signal;
}

/* One more number to take; whether it, and all before it, has been. */
static int give(uint64_t number, int64_t limit)
{
    given[left_at++ % ROOM] = number;
    if (limit < 0) {
        isr_handover_ask(&h);
        return 0;
    }
    return isr_handover_ask_and_wait(&h, limit);
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 0) : 0, expected = 0, late = 0;
    uint32_t since = 0;
    unsigned dice = 1;
    pthread_t interrupter;
    interrupted = argc > 3 && atoi(argv[3]);
    struct sigaction action = {.sa_handler = nothing};
    first = left_at = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 0;
    h.asked = h.done = first;
    sigaction(SIGUSR1, &action, NULL);
    asker = pthread_self();
    pthread_create(&worker, NULL, work, NULL);
    pthread_create(&interrupter, NULL, interrupt, NULL);
    for (uint64_t round = 1; round <= rounds; round++) {
        unsigned how = rand_r(&dice) % 8;
        int64_t limit = how < 3 ? -1 : how == 3 ? rand_r(&dice) % 20000 : how == 4 ? 0 : LONG;
        if (since > ROOM / 2)
            limit = LONG;
        expected += round;
        int64_t before = now();
        int done = give(round, limit);
        if (limit == LONG && now() - before >= LONG)
            return printf("a wake-up was lost in round %llu\n", (unsigned long long)round), 1;
        since = done ? 0 : since + 1;
        late += !done && limit >= 0;
        if (done && sum != expected)
            return printf("work is not done in round %llu\n", (unsigned long long)round), 1;
    }
    give(UINT64_MAX, -1);
    pthread_join(worker, NULL);
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    pthread_join(interrupter, NULL);
    if (sum != expected)
        return printf("%llu instead of %llu\n", (unsigned long long)sum, (unsigned long long)expected), 1;
    printf("%llu were not waited for to the end\n", (unsigned long long)late);
    return 0;
}
