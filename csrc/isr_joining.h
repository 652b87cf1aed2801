/* What the parts of `insync.replication.client.producer._joining` share: the bases in C of classes in Python. */
#ifndef ISR_JOINING_H
#define ISR_JOINING_H

#include "isr_growing.h"

#include <structmember.h>

/* The base of `Accumulator`. */
typedef struct {
    PyObject_HEAD
    PyObject *topics;  /* a dictionary: for each name a TopicTails */
    PyObject *barred;  /* NULL or None: records may be sent */
    PyTypeObject *delivery_type;
    Py_ssize_t used, buffer_memory, largest, overhead;
    long long waiting, unyielded, pause_after;
    char direct;
} Joiner;

extern PyTypeObject isr_JoinerType;

int isr_is_barred(const Joiner *self);

/* Whether C may take a record: other strings and bytes may have functions of their own, which Python calls. */
static inline int isr_is_plain(PyObject *topic, PyObject *value, PyObject *key)
{
    return PyUnicode_CheckExact(topic) && PyBytes_CheckExact(value) && (key == Py_None || PyBytes_CheckExact(key));
}

/* The most that a record with a value and perhaps a key takes in any batch. */
Py_ssize_t isr_most(const Joiner *self, PyObject *value, PyObject *key);

/* Whether it is the queues of a topic. */
int isr_is_topic(PyObject *object);

/* The delivery of a record that has joined. NULL with no error set: there is more to decide, and nothing is taken. */
PyObject *isr_join(Joiner *self, PyObject *topic, PyObject *value, PyObject *key);

int isr_add_handing(PyObject *module);

#endif
