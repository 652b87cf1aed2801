/* Fields of Python's objects where they lie: for extension modules that read and write the slots of classes in Python. */
#ifndef ISR_SLOTS_H
#define ISR_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* One field of a class with slots. */
typedef struct {
    const char *name;
    Py_ssize_t offset;
} Field;

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
static inline Py_ssize_t isr_offset_of(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    Py_ssize_t offset = -1;
    if (found == NULL)
        return -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type) {
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX)
            offset = member->offset;
    }
    Py_DECREF(found);
    if (offset < 0)
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    return offset;
}

/* Look up where the fields of a class lie: 0, or -1 with an error set. No field gets an offset that is none. */
static inline int isr_find_fields(PyTypeObject *type, Field *fields)
{
    for (Field *field = fields; field->name != NULL; field++) {
        Py_ssize_t offset = isr_offset_of(type, field->name);
        if (offset < 0)
            return -1;
        field->offset = offset;
    }
    return 0;
}

#endif
