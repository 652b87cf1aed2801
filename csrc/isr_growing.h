/* A batch that records join: its bytes, of the record format v2, grow with each. */
#ifndef ISR_GROWING_H
#define ISR_GROWING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

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

/* One record: a key or value that is NULL is null; `headers` as they stand in the record, count first, or NULL. */
typedef struct {
    const char *key, *value, *headers;
    Py_ssize_t key_length, value_length, headers_length;
    int64_t ms;
    Py_ssize_t body, size; /* what isr_measure() finds: without its length, and with it */
} NewRecord;

/* How many bytes the record takes as the next one of the batch. */
void isr_measure(const GrowingBatch *batch, NewRecord *record);

/* Takes the record that was measured; -1 with an error set if it cannot. Runs no Python code. */
int isr_append(GrowingBatch *batch, const NewRecord *record);

/* Milliseconds since 1970. */
int64_t isr_now_ms(void);

int isr_add_growing(PyObject *module);

#endif
