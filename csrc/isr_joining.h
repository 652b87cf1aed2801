/* What the parts of `insync.replication.client._joining` share: fields of Python's objects, and `join`. */
#ifndef ISR_JOINING_H
#define ISR_JOINING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* One field of a class with slots. */
typedef struct {
    const char *name;
    Py_ssize_t offset;
} Field;

/* Of Accumulator: the fields that more than one part uses. */
enum { USED, WAITING, BUFFER_MEMORY, TOPICS, BARRED, UNYIELDED, LARGEST };
extern Field isr_of_accumulator[];

extern long long isr_record_overhead; /* what a record counts for beside its key and value */
extern PyObject *isr_empty_tuple;

/* A borrowed reference, or NULL where the attribute was never set. */
static inline PyObject *get(PyObject *of, const Field *field)
{
    return *(PyObject **)((char *)of + field->offset);
}

/* Steals the reference. */
static inline void set(PyObject *of, const Field *field, PyObject *value)
{
    PyObject **place = (PyObject **)((char *)of + field->offset), *old = *place;
    *place = value;
    Py_XDECREF(old);
}

/* Whether it is a plain integer that fits; 0 leaves no error behind. */
static inline int whole(PyObject *object, long long *value)
{
    int overflow;
    if (object == NULL || !PyLong_CheckExact(object))
        return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* Where the slot of a class lies, or -1 with an error set. */
Py_ssize_t isr_offset_of(PyTypeObject *type, const char *name);

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
