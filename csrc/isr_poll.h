/* Waits for a descriptor without going to sleep. */
#ifndef ISR_POLL_H
#define ISR_POLL_H

#include <stdint.h>

/* Looks whether `fd` can be read until it can, or until `until_ns` of CLOCK_MONOTONIC. Between two looks it lets another
 * thread run that waits for this processor. Returns 1 if there is something to see, also an error; 0: the time is over;
 * -1: another thread wanted the processor, and has had it. */
int isr_poll_until(int fd, int64_t until_ns);

#endif
