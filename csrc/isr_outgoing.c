/* Frames on their way out: the head of one, and what is to be known of its payload. See isr_framing.c. */
#include "isr_framing.h"

/* Python computes the CRC of what is longer, and lets other threads run meanwhile. */
#define LONG_PAYLOAD (64 << 10)

/* ---- encode_header ---- */

enum { FRAME_TYPE, CORR, KIND, KIND_VERSION, FLAGS, AUX, PAYLOAD_LENGTH, PAYLOAD_CRC, MAX_RESPONSE, BODY, ARGUMENTS };
static const struct {
    const char *name;
    long long most;
} arguments[ARGUMENTS] = {
    {"frame_type", UINT8_MAX}, {"corr", LLONG_MAX}, {"kind", UINT16_MAX},
    {"kind_version", UINT8_MAX}, {"flags", UINT8_MAX}, {"aux", UINT32_MAX},
    {"payload_length", LLONG_MAX}, {"payload_crc", UINT32_MAX}, {"max_response", (long long)UINT32_MAX << 10},
    {"body", 0},
};
static PyObject *argument_names[ARGUMENTS];

int isr_prepare_outgoing(void)
{
    for (int which = 0; which < ARGUMENTS; which++)
        if (argument_names[which] == NULL &&
            (argument_names[which] = PyUnicode_InternFromString(arguments[which].name)) == NULL)
            return -1;
    return 0;
}

static inline void write32(uint8_t *p, uint32_t value)
{
    for (int at = 0; at < 4; at++)
        p[at] = (uint8_t)(value >> 8 * at);
}

static inline void write64(uint8_t *p, uint64_t value)
{
    write32(p, (uint32_t)value);
    write32(p + 4, (uint32_t)(value >> 32));
}

/* Which one of those that are given by name, or -1. A caller's names are interned, or Python looks at them. */
static inline int argument_of(PyObject *name)
{
    for (int which = KIND; which < ARGUMENTS; which++)
        if (name == argument_names[which])
            return which;
    return -1;
}

/* Whether all arguments are plain; then `values` and `body` are set. Of a subclass of int its number counts, as for
 * struct; but for `max_response`, with which Python calculates. */
static int all_plain(PyObject *const *args, Py_ssize_t count, PyObject *names, long long *values, PyObject **body)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count != 2)
        return 0;
    for (Py_ssize_t at = 0; at < count + named; at++) {
        int which = at < count ? (int)at : argument_of(PyTuple_GET_ITEM(names, at - count)), overflow;
        if (which == BODY && PyBytes_CheckExact(args[at])) {
            *body = args[at];
            continue;
        }
        if (which < 0 || which == BODY || !PyLong_Check(args[at]) ||
            (which == MAX_RESPONSE && !PyLong_CheckExact(args[at])))
            return 0;
        /* -1 where it is no such number */
        values[which] = PyLong_AsLongLongAndOverflow(args[at], &overflow);
        if (values[which] < 0 || values[which] > arguments[which].most)
            return 0;
    }
    return *body == NULL || (uint64_t)PyBytes_GET_SIZE(*body) <= UINT32_MAX;
}

PyObject *isr_encode_header(PyObject *twin, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long values[ARGUMENTS] = {0};
    PyObject *body = NULL;
    if (!all_plain(args, count, names, values, &body))
        return PyObject_Vectorcall(twin, args, (size_t)count, names);
    Py_ssize_t length = body == NULL ? 0 : PyBytes_GET_SIZE(body);
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, ISR_HEADER_SIZE + length);
    if (encoded == NULL)
        return NULL;
    uint8_t *p = (uint8_t *)PyBytes_AS_STRING(encoded);
    uint32_t kind = (uint32_t)values[KIND];
    write32(p, ISR_MAGIC | ISR_HEADER_WORDS << 16 | (uint32_t)values[FRAME_TYPE] << 24);
    write32(p + 4, kind | (uint32_t)values[KIND_VERSION] << 16 | (uint32_t)values[FLAGS] << 24);
    write64(p + 8, (uint64_t)values[CORR]);
    write32(p + 16, (uint32_t)length);
    write32(p + 20, (uint32_t)values[AUX]);
    write64(p + 24, (uint64_t)values[PAYLOAD_LENGTH]);
    write32(p + 32, length ? isr_crc32c(0, PyBytes_AS_STRING(body), (size_t)length) : 0);
    write32(p + 36, (uint32_t)values[PAYLOAD_CRC]);
    write32(p + 40, (uint32_t)((values[MAX_RESPONSE] + 1023) >> 10));
    write32(p + ISR_SEALED, isr_crc32c(0, p, ISR_SEALED));
    if (length)
        memcpy(p + ISR_HEADER_SIZE, PyBytes_AS_STRING(body), (size_t)length);
    return encoded;
}

/* ---- payloads ---- */

/* Adds one part to the size of a payload and, if it is asked for, to its CRC; 0: Python must look. */
static int add_bytes(const void *data, Py_ssize_t length, long long *size, uint32_t *crc)
{
    *size += length;
    if (crc != NULL && *size > LONG_PAYLOAD)
        return 0;
    if (crc != NULL && length)
        *crc = isr_crc32c(*crc, data, (size_t)length);
    return 1;
}

/* The size of a payload of nothing but contiguous bytes and, if it is asked for, its CRC; 0: Python must look. */
static int sum_up(PyObject *parts, long long *size, uint32_t *crc)
{
    if (!PyList_CheckExact(parts) && !PyTuple_CheckExact(parts))
        return 0;
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(parts); at++) {
        PyObject *part = PySequence_Fast_GET_ITEM(parts, at);
        int added;
        if (PyBytes_CheckExact(part)) {
            added = add_bytes(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part), size, crc);
        } else if (PyByteArray_CheckExact(part)) {
            added = add_bytes(PyByteArray_AS_STRING(part), PyByteArray_GET_SIZE(part), size, crc);
        } else if (PyMemoryView_Check(part)) {
            Py_buffer buffer;
            if (PyObject_GetBuffer(part, &buffer, PyBUF_SIMPLE) < 0) {
                PyErr_Clear();
                return 0;
            }
            added = add_bytes(buffer.buf, buffer.len, size, crc);
            PyBuffer_Release(&buffer);
        } else {
            return 0;
        }
        if (!added)
            return 0;
    }
    return 1;
}

PyObject *isr_size_of(PyObject *twin, PyObject *parts)
{
    long long size = 0;
    return sum_up(parts, &size, NULL) ? PyLong_FromLongLong(size) : PyObject_CallOneArg(twin, parts);
}

PyObject *isr_payload_of(PyObject *twin, PyObject *parts)
{
    long long size = 0;
    uint32_t crc = 0;
    if (!sum_up(parts, &size, &crc))
        return PyObject_CallOneArg(twin, parts);
    return Py_BuildValue("(LiI)", size, PySequence_Fast_GET_SIZE(parts) ? ISR_PAYLOAD_CRC : 0, crc);
}

/* Mostly all of it has gone. */
PyObject *isr_after(PyObject *twin, PyObject *const *args, Py_ssize_t count)
{
    long long size = 0, gone;
    if (count == 2 && whole(args[1], &gone) && sum_up(args[0], &size, NULL) && size <= gone)
        return PyList_New(0);
    return PyObject_Vectorcall(twin, args, (size_t)count, NULL);
}
