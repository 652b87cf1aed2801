/* A batch that records join: its bytes, of the record format v2, grow with each. */
#ifndef ISR_GROWING_H
#define ISR_GROWING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "isr_write.h"

/* Records from `from` on have this timestamp. */
typedef struct {
    int32_t from;
    int64_t ms;
} Stamp;

/* The base of `Batch`. */
typedef struct {
    PyObject_HEAD
    uint8_t *bytes; /* room for the header, then the records; NULL before the first and after release() */
    Py_ssize_t size, room;
    int count;
    int64_t first_ms, last_ms, greatest_ms; /* of the timestamps */
    Stamp *stamps; /* the timestamps behind the first one, where they change */
    int stamp_count, stamp_room;
    int readers;   /* buffers given out: the bytes stay where they are */
    char sealed, released;
} GrowingBatch;

extern PyTypeObject isr_GrowingBatchType;

/* A record, and the moment of it. */
typedef struct {
    new_record record; /* of which isr_measure() sets delta and index */
    int64_t ms;
    size_t body;
    Py_ssize_t size; /* of all of it; isr_measure() finds both */
} Arrival;

/* Bytes where they lie, or None, which has the length `none`. */
static inline void isr_point_at(PyObject *item, int64_t none, const uint8_t **bytes, int64_t *length)
{
    *bytes = item == Py_None ? NULL : (const uint8_t *)PyBytes_AS_STRING(item);
    *length = item == Py_None ? none : PyBytes_GET_SIZE(item);
}

/* How many bytes the record takes as the next one of the batch. */
void isr_measure(const GrowingBatch *batch, Arrival *arrival);

/* Takes the record that was measured; -1 with an error set if it cannot. Runs no Python code. */
int isr_append(GrowingBatch *batch, const Arrival *arrival);

/* Milliseconds since 1970. */
int64_t isr_now_ms(void);

int isr_add_growing(PyObject *module);

#endif
