/* What the parts of `insync.transport._framing` share: the layout of a frame. See transport/frames.py. */
#ifndef ISR_FRAMING_H
#define ISR_FRAMING_H

#include "isr_crc32c.h"
#include "isr_slots.h"

#define ISR_MAGIC 0x5249u
#define ISR_HEADER_SIZE 48
#define ISR_SEALED 44 /* bytes of a header that its own CRC covers */
#define ISR_HEADER_WORDS 6
#define ISR_MAX_HEADER_WORDS 32
#define ISR_PAYLOAD_CRC 1

/* Functions that leave to their `self`, the twin in Python, what is not plain. */
PyObject *isr_encode_header(PyObject *twin, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *isr_size_of(PyObject *twin, PyObject *parts);
PyObject *isr_payload_of(PyObject *twin, PyObject *parts);
PyObject *isr_after(PyObject *twin, PyObject *const *args, Py_ssize_t count);

/* -1 with an error set. */
int isr_prepare_outgoing(void);

#endif
