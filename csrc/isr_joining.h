/* What the parts of `insync.replication.client.producer._joining` share: the fields of an accumulator, and `join`. */
#ifndef ISR_JOINING_H
#define ISR_JOINING_H

#include "isr_slots.h"

/* Of Accumulator: the fields that more than one part uses. */
enum { USED, WAITING, BUFFER_MEMORY, TOPICS, BARRED, UNYIELDED, LARGEST };
extern Field isr_of_accumulator[];

extern long long isr_record_overhead; /* what a record counts for beside its key and value */
extern PyObject *isr_empty_tuple;

/* Whether it is the queues of a topic. */
int isr_is_topic(PyObject *object);

typedef struct {
    PyObject_HEAD
    PyObject *accumulator;
    PyObject *clock; /* NULL: the system's */
    vectorcallfunc vectorcall;
} Joiner;

extern PyTypeObject isr_JoinerType;

/* The delivery of a record that has joined. NULL with no error set: there is more to decide, and nothing is taken. */
PyObject *isr_join(Joiner *self, PyObject *topic, PyObject *value, PyObject *key);

/* Make the types of each part known to the module, and what it needs; -1 with an error set. */
int isr_add_sending(PyObject *module);
int isr_add_handing(PyObject *module);

/* The class of records that are handed over: a function of the module. */
PyObject *isr_bind_records(PyObject *module, PyObject *type);

#endif
