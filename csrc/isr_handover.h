/* One thread asks another for work and waits for it, neither holding a lock of the interpreter meanwhile. */
#ifndef ISR_HANDOVER_H
#define ISR_HANDOVER_H

#include <stdint.h>

enum { ISR_PROCESSOR_WORDS = 16 };

/* Begins as zeros. `asked` counts how often the one thread has asked; the other has done all up to `done`. */
typedef struct {
    uint32_t asked;
    uint32_t done;
    uint32_t rests;  /* the worker sleeps, or is about to */
    uint32_t waits;  /* so does the one that asks */
    int32_t worker;  /* the worker's thread id; 0 before it has begun, -1 when it has ended */
    int32_t bound;   /* the number of the processor that the worker is bound to, plus one; 0: to none */
    uint64_t usual[ISR_PROCESSOR_WORDS];  /* the processors that the asking thread had when it bound or freed the worker */
} isr_handover;

/* Any thread: asks once more, and wakes the worker, on whatever processor the asking thread may use. */
void isr_handover_ask(isr_handover *h);

/* The same, then waits until all that was asked is done: 1, or 0 if that takes longer than timeout_ns. The worker is bound
 * to the processor of this thread, until it is asked by isr_handover_ask or is late: mostly it begins in the place of this
 * thread, which goes on when all is done. This thread itself is never bound. */
int isr_handover_ask_and_wait(isr_handover *h, int64_t timeout_ns);

/* The worker: all up to `done` is done. Returns what has been asked as soon as that is more. */
uint32_t isr_handover_rest(isr_handover *h, uint32_t done);

/* A thread that the worker has started, first of all: it runs where the asking thread may, not where the worker is bound. */
void isr_handover_leave(isr_handover *h);

/* The worker, last of all: its thread id means nothing any more. */
void isr_handover_end(isr_handover *h);

#endif
