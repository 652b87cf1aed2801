/* One thread asks another for work and waits for it, neither holding a lock of the interpreter meanwhile. */
#ifndef ISR_HANDOVER_H
#define ISR_HANDOVER_H

#include <stdint.h>

/* Begins as zeros. `asked` counts how often the one thread has asked; the other has done all up to `done`. */
typedef struct {
    uint32_t asked;
    uint32_t done;
    uint32_t rests;  /* the worker sleeps, or is about to */
    uint32_t waits;  /* so does the one that asks */
} isr_handover;

/* The asking thread: asks once more, and wakes the worker. */
void isr_handover_ask(isr_handover *h);

/* The same, then waits until all that was asked is done: 1, or 0 if that takes longer than timeout_ns. */
int isr_handover_ask_and_wait(isr_handover *h, int64_t timeout_ns);

/* The worker: all up to `done` is done. Returns what has been asked as soon as that is more. */
uint32_t isr_handover_rest(isr_handover *h, uint32_t done);

#endif
