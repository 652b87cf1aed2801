#include "isr_poll.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

/* Nanoseconds. Two looks and an interrupt between them take less. The shortest slice that a thread gets is as long. */
#define LOST 100000

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int isr_poll_until(int fd, int64_t until_ns)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    int64_t now = now_ns();
    for (;;) {
        if (poll(&look, 1, 0))
            return 1;
        int64_t before = now;
        now = now_ns();
        if (now - before > LOST)
            return -1;
        if (now >= until_ns)
            return 0;
        sched_yield();
    }
}
