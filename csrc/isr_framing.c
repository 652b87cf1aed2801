/* `insync.transport._framing`: frames as bytes, and the plain ones taken out of a link's buffer.
 *
 * transport/frames.py shows the layout of a frame. A plain frame is whole, small and right. At the first one that is not,
 * `take_frames` stops: Python decides what becomes of it, and words the errors.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "isr_crc32c.h"

#define MAGIC 0x5249u
#define HEADER_SIZE 48
#define SEALED 44 /* bytes of a header that its own CRC covers */
#define HEADER_WORDS 6
#define MAX_HEADER_WORDS 32
#define HAS_PAYLOAD_CRC 1

static inline uint16_t read16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t read32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t read64(const uint8_t *p)
{
    return read32(p) | (uint64_t)read32(p + 4) << 32;
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

/* ---- Header ---- */

typedef struct {
    PyObject_HEAD
    unsigned long long corr, payload_length, max_response;
    unsigned int body_length, aux, body_crc, payload_crc;
    unsigned short kind, size;
    unsigned char type, kind_version, flags;
} Header;

static PyMemberDef header_members[] = {
    {"type", T_UBYTE, offsetof(Header, type), READONLY, PyDoc_STR("A `FrameType`, or one of another time.")},
    {"kind", T_USHORT, offsetof(Header, kind), READONLY, NULL},
    {"kind_version", T_UBYTE, offsetof(Header, kind_version), READONLY, NULL},
    {"flags", T_UBYTE, offsetof(Header, flags), READONLY, PyDoc_STR("See `Flag`.")},
    {"corr", T_ULONGLONG, offsetof(Header, corr), READONLY, PyDoc_STR("The correlation number.")},
    {"body_length", T_UINT, offsetof(Header, body_length), READONLY, NULL},
    {"aux", T_UINT, offsetof(Header, aux), READONLY, PyDoc_STR("Remaining milliseconds, or a status.")},
    {"payload_length", T_ULONGLONG, offsetof(Header, payload_length), READONLY, NULL},
    {"body_crc", T_UINT, offsetof(Header, body_crc), READONLY, NULL},
    {"payload_crc", T_UINT, offsetof(Header, payload_crc), READONLY, NULL},
    {"max_response", T_ULONGLONG, offsetof(Header, max_response), READONLY, PyDoc_STR("Bytes.")},
    {"size", T_USHORT, offsetof(Header, size), READONLY, PyDoc_STR("Bytes of the header itself.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HeaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.transport._framing.Header",
    .tp_doc = PyDoc_STR("A frame's header, decoded."),
    .tp_basicsize = sizeof(Header),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_members = header_members,
};

enum { RIGHT, NO_FRAME, DAMAGED, BAD_WORDS };

/* Of HEADER_SIZE bytes. */
static int judge_header(const uint8_t *p)
{
    if (read16(p) != MAGIC)
        return NO_FRAME;
    if (isr_crc32c(0, p, SEALED) != read32(p + SEALED))
        return DAMAGED;
    return p[2] < HEADER_WORDS || p[2] > MAX_HEADER_WORDS ? BAD_WORDS : RIGHT;
}

static Header *make_header(const uint8_t *p)
{
    Header *header = PyObject_New(Header, &HeaderType);
    if (header == NULL)
        return NULL;
    header->size = (unsigned short)(p[2] * 8);
    header->type = p[3];
    header->kind = read16(p + 4);
    header->kind_version = p[6];
    header->flags = p[7];
    header->corr = read64(p + 8);
    header->body_length = read32(p + 16);
    header->aux = read32(p + 20);
    header->payload_length = read64(p + 24);
    header->body_crc = read32(p + 32);
    header->payload_crc = read32(p + 36);
    header->max_response = (unsigned long long)read32(p + 40) << 10;
    return header;
}

static PyObject *decode_header(PyObject *Py_UNUSED(module), PyObject *raw)
{
    if (!PyBytes_Check(raw) || PyBytes_GET_SIZE(raw) != HEADER_SIZE)
        return PyErr_Format(PyExc_ValueError, "a header has %d bytes", HEADER_SIZE);
    const uint8_t *p = (const uint8_t *)PyBytes_AS_STRING(raw);
    int wrong = judge_header(p);
    return wrong ? PyLong_FromLong(wrong) : (PyObject *)make_header(p);
}

/* ---- encode_header ---- */

enum { FRAME_TYPE, CORR, KIND, KIND_VERSION, FLAGS, AUX, PAYLOAD_LENGTH, PAYLOAD_CRC, MAX_RESPONSE, BODY, ARGUMENTS };
static const struct {
    const char *name;
    unsigned long long most;
} arguments[ARGUMENTS] = {
    {"frame_type", UINT8_MAX}, {"corr", UINT64_MAX}, {"kind", UINT16_MAX},
    {"kind_version", UINT8_MAX}, {"flags", UINT8_MAX}, {"aux", UINT32_MAX},
    {"payload_length", UINT64_MAX}, {"payload_crc", UINT32_MAX}, {"max_response", (unsigned long long)UINT32_MAX << 10},
    {"body", 0},
};
static PyObject *argument_names[ARGUMENTS];

/* Which one of those that are given by name, or -1 with an error set. */
static int argument_of(PyObject *name)
{
    for (int which = KIND; which < ARGUMENTS; which++)
        if (name == argument_names[which])
            return which;
    /* A caller's names are interned, mostly. */
    for (int which = KIND; which < ARGUMENTS; which++)
        if (PyUnicode_Compare(name, argument_names[which]) == 0)
            return which;
    PyErr_Format(PyExc_TypeError, "encode_header() has no argument %R", name);
    return -1;
}

static int read_argument(int which, PyObject *object, unsigned long long *value)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL)
        return -1;
    *value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (PyErr_Occurred() || *value > arguments[which].most) {
        PyErr_Format(PyExc_OverflowError, "%s of a frame is a number from 0 to %llu, not %R", arguments[which].name,
                     arguments[which].most, object);
        return -1;
    }
    return 0;
}

static PyObject *encode_header(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    unsigned long long values[ARGUMENTS] = {0};
    PyObject *body = NULL;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "encode_header() takes a frame type and a correlation number");
    for (Py_ssize_t at = 0; at < count + named; at++) {
        int which = at < count ? (int)at : argument_of(PyTuple_GET_ITEM(names, at - count));
        if (which < 0)
            return NULL;
        if (which == BODY) {
            if (!PyBytes_Check(args[at]))
                return PyErr_Format(PyExc_TypeError, "a frame's body is bytes, not %s", Py_TYPE(args[at])->tp_name);
            body = args[at];
        } else if (read_argument(which, args[at], &values[which]) < 0) {
            return NULL;
        }
    }
    Py_ssize_t length = body == NULL ? 0 : PyBytes_GET_SIZE(body);
    if ((uint64_t)length > UINT32_MAX)
        return PyErr_Format(PyExc_OverflowError, "a frame's body of %zd bytes", length);
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + length);
    if (encoded == NULL)
        return NULL;
    uint8_t *p = (uint8_t *)PyBytes_AS_STRING(encoded);
    write32(p, MAGIC | HEADER_WORDS << 16 | (uint32_t)values[FRAME_TYPE] << 24);
    write32(p + 4, (uint32_t)values[KIND] | (uint32_t)values[KIND_VERSION] << 16 | (uint32_t)values[FLAGS] << 24);
    write64(p + 8, values[CORR]);
    write32(p + 16, (uint32_t)length);
    write32(p + 20, (uint32_t)values[AUX]);
    write64(p + 24, values[PAYLOAD_LENGTH]);
    write32(p + 32, length ? isr_crc32c(0, PyBytes_AS_STRING(body), (size_t)length) : 0);
    write32(p + 36, (uint32_t)values[PAYLOAD_CRC]);
    write32(p + 40, (uint32_t)((values[MAX_RESPONSE] + 1023) >> 10));
    write32(p + SEALED, isr_crc32c(0, p, SEALED));
    if (length)
        memcpy(p + HEADER_SIZE, PyBytes_AS_STRING(body), (size_t)length);
    return encoded;
}

/* ---- payloads on their way out ---- */

/* More than this is summed up while other threads run. */
#define LONG_PART (64 << 10)

/* Adds one part to the size of a payload and to its CRC, unless that is NULL. 1; 0 for a range of a file; -1 with an error
 * set. */
static int add_part(PyObject *part, long long *size, uint32_t *crc)
{
    Py_buffer buffer;
    if (!PyBytes_Check(part) && !PyByteArray_Check(part) && !PyMemoryView_Check(part)) {
        PyObject *length = PyObject_GetAttrString(part, "length");
        long long more = length == NULL ? -1 : PyLong_AsLongLong(length);
        Py_XDECREF(length);
        *size += more;
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyObject_GetBuffer(part, &buffer, PyBUF_SIMPLE) < 0) {
        if (PyMemoryView_Check(part) && PyErr_ExceptionMatches(PyExc_BufferError))
            PyErr_SetString(PyExc_ValueError, "a part of a payload must be contiguous: copy it with bytes() first");
        return -1;
    }
    *size += buffer.len;
    if (crc != NULL && buffer.len > LONG_PART) {
        Py_BEGIN_ALLOW_THREADS
        *crc = isr_crc32c(*crc, buffer.buf, (size_t)buffer.len);
        Py_END_ALLOW_THREADS
    } else if (crc != NULL && buffer.len) {
        *crc = isr_crc32c(*crc, buffer.buf, (size_t)buffer.len);
    }
    PyBuffer_Release(&buffer);
    return 1;
}

/* Whether all parts are in memory, -1 with an error set. Of `crc` nothing is known where they are not. */
static int sum_up(PyObject *parts, long long *size, uint32_t *crc)
{
    int in_memory = 1;
    PyObject *all = PySequence_Fast(parts, "the parts of a payload are a sequence");
    if (all == NULL)
        return -1;
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(all); at++) {
        int added = add_part(PySequence_Fast_GET_ITEM(all, at), size, in_memory ? crc : NULL);
        if (added < 0) {
            Py_DECREF(all);
            return -1;
        }
        in_memory = in_memory && added;
    }
    Py_DECREF(all);
    return in_memory;
}

static PyObject *size_of(PyObject *Py_UNUSED(module), PyObject *parts)
{
    long long size = 0;
    return sum_up(parts, &size, NULL) < 0 ? NULL : PyLong_FromLongLong(size);
}

static PyObject *payload_of(PyObject *Py_UNUSED(module), PyObject *parts)
{
    long long size = 0;
    uint32_t crc = 0;
    int in_memory = sum_up(parts, &size, &crc);
    if (in_memory < 0)
        return NULL;
    int has_crc = in_memory && PyObject_IsTrue(parts);
    return Py_BuildValue("(LiI)", size, has_crc ? HAS_PAYLOAD_CRC : 0, has_crc ? crc : 0);
}

/* ---- Copied: the base of BytesPayload ---- */

typedef struct {
    PyObject_HEAD
    PyObject *data; /* bytes; None once it is released */
    Py_ssize_t nbytes;
} Copied;

static int copied_init(Copied *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"data", NULL};
    PyObject *data;
    if (!PyArg_ParseTupleAndKeywords(args, named, "S", names, &data))
        return -1;
    Py_XSETREF(self->data, Py_NewRef(data));
    self->nbytes = PyBytes_GET_SIZE(data);
    return 0;
}

static void copied_dealloc(Copied *self)
{
    Py_XDECREF(self->data);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef copied_members[] = {
    {"_data", T_OBJECT, offsetof(Copied, data), 0, NULL},
    {"nbytes", T_PYSSIZET, offsetof(Copied, nbytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CopiedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.transport._framing.Copied",
    .tp_doc = PyDoc_STR("Copied(data): bytes of a payload's own."),
    .tp_basicsize = sizeof(Copied),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)copied_init,
    .tp_dealloc = (destructor)copied_dealloc,
    .tp_members = copied_members,
};

/* ---- Frame ---- */

typedef struct {
    PyObject_HEAD
    PyObject *header, *body, *payload;
} Frame;

static PyTypeObject FrameType;

/* Takes the references, also if it fails; each may be NULL with an error set. */
static PyObject *make_frame(PyObject *header, PyObject *body, PyObject *payload)
{
    Frame *frame = header == NULL || body == NULL || payload == NULL ? NULL : PyObject_GC_New(Frame, &FrameType);
    if (frame == NULL) {
        Py_XDECREF(header);
        Py_XDECREF(body);
        Py_XDECREF(payload);
        return NULL;
    }
    frame->header = header;
    frame->body = body;
    frame->payload = payload;
    PyObject_GC_Track(frame);
    return (PyObject *)frame;
}

static PyObject *frame_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *named)
{
    static char *names[] = {"header", "body", "payload", NULL};
    PyObject *header, *body, *payload;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!SO", names, &HeaderType, &header, &body, &payload))
        return NULL;
    return make_frame(Py_NewRef(header), Py_NewRef(body), Py_NewRef(payload));
}

static int frame_traverse(Frame *self, visitproc visit, void *arg)
{
    Py_VISIT(self->payload);
    return 0;
}

static int frame_clear(Frame *self)
{
    Py_CLEAR(self->payload);
    return 0;
}

static void frame_dealloc(Frame *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->header);
    Py_XDECREF(self->body);
    Py_XDECREF(self->payload);
    PyObject_GC_Del(self);
}

static PyMemberDef frame_members[] = {
    {"header", T_OBJECT_EX, offsetof(Frame, header), READONLY, NULL},
    {"body", T_OBJECT_EX, offsetof(Frame, body), READONLY, NULL},
    {"payload", T_OBJECT_EX, offsetof(Frame, payload), READONLY, PyDoc_STR("The taker of the frame releases it.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject FrameType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.transport._framing.Frame",
    .tp_doc = PyDoc_STR("Frame(header, body, payload): a received frame."),
    .tp_basicsize = sizeof(Frame),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = frame_new,
    .tp_traverse = (traverseproc)frame_traverse,
    .tp_clear = (inquiry)frame_clear,
    .tp_dealloc = (destructor)frame_dealloc,
    .tp_members = frame_members,
};

/* ---- take_frames ---- */

typedef struct {
    unsigned long long max_body, max_payload, large;
    PyTypeObject *payload_type;
} Plain;

static PyObject *make_payload(const Plain *plain, const uint8_t *p, Py_ssize_t length)
{
    Copied *payload = (Copied *)plain->payload_type->tp_alloc(plain->payload_type, 0);
    if (payload == NULL)
        return NULL;
    payload->data = PyBytes_FromStringAndSize((const char *)p, length);
    payload->nbytes = length;
    if (payload->data == NULL)
        Py_CLEAR(payload);
    return (PyObject *)payload;
}

/* The frame at the beginning of some bytes, and how long it is. NULL with no error set: they begin with something else. */
static PyObject *plain_frame(const uint8_t *p, Py_ssize_t there, const Plain *plain, Py_ssize_t *length)
{
    if (there < HEADER_SIZE || judge_header(p) != RIGHT)
        return NULL;
    uint64_t payload = read64(p + 24), rest = (uint64_t)there;
    uint32_t body = read32(p + 16), size = p[2] * 8u;
    if (payload > rest || size + (uint64_t)body + payload > rest)
        return NULL;
    if (body > plain->max_body || payload > plain->max_payload || payload >= plain->large)
        return NULL;
    if (body && isr_crc32c(0, p + size, body) != read32(p + 32))
        return NULL;
    if (p[7] & HAS_PAYLOAD_CRC && isr_crc32c(0, p + size + body, payload) != read32(p + 36))
        return NULL;
    *length = (Py_ssize_t)(size + body + payload);
    PyObject *header = (PyObject *)make_header(p);
    PyObject *copy = header == NULL ? NULL : PyBytes_FromStringAndSize((const char *)p + size, body);
    return make_frame(header, copy, copy == NULL ? NULL : make_payload(plain, p + size + body, (Py_ssize_t)payload));
}

static PyObject *take_frames(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer buffer;
    Plain plain;
    Py_ssize_t start, end, at, most, length = 0;
    if (!PyArg_ParseTuple(args, "y*nnKKKnO!:take_frames", &buffer, &start, &end, &plain.max_body, &plain.max_payload,
                          &plain.large, &most, &PyType_Type, &plain.payload_type))
        return NULL;
    PyObject *frames = NULL, *frame = NULL;
    if (start < 0 || end < start || end > buffer.len)
        PyErr_Format(PyExc_ValueError, "bytes %zd to %zd of %zd", start, end, buffer.len);
    else if (!PyType_IsSubtype(plain.payload_type, &CopiedType))
        PyErr_Format(PyExc_TypeError, "%s is no class of copied payloads", plain.payload_type->tp_name);
    else
        frames = PyList_New(0);
    for (at = start; frames != NULL && PyList_GET_SIZE(frames) < most; at += length) {
        frame = plain_frame((const uint8_t *)buffer.buf + at, end - at, &plain, &length);
        if (frame == NULL || PyList_Append(frames, frame) < 0)
            break;
        Py_CLEAR(frame);
    }
    Py_XDECREF(frame);
    PyBuffer_Release(&buffer);
    if (PyErr_Occurred()) {
        Py_XDECREF(frames);
        return NULL;
    }
    return Py_BuildValue("(Nn)", frames, at);
}

/* ---- the module ---- */

static PyMethodDef functions[] = {
    {"encode_header", (PyCFunction)(void (*)(void))encode_header, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("encode_header(frame_type, corr, *, kind=0, kind_version=0, flags=0, aux=0, body=b'', payload_length=0, "
               "payload_crc=0, max_response=0): header and body of a frame. Raises OverflowError for a number that does not "
               "fit its place.")},
    {"decode_header", decode_header, METH_O,
     PyDoc_STR("decode_header(raw): the header in 48 bytes, or NO_FRAME, DAMAGED or BAD_WORDS.")},
    {"size_of", size_of, METH_O,
     PyDoc_STR("size_of(parts): the bytes of a payload. Raises ValueError for a memoryview with gaps.")},
    {"payload_of", payload_of, METH_O,
     PyDoc_STR("payload_of(parts): bytes, flags and CRC of a payload. File ranges have no CRC: computing it would read what "
               "sendfile need not. Raises ValueError for a memoryview with gaps.")},
    {"take_frames", take_frames, METH_VARARGS,
     PyDoc_STR("take_frames(buffer, start, end, max_body, max_payload, large, most, payload_type): the plain frames between "
               "two positions, at most so many, and the position behind them. It ends at the first that is not whole or not "
               "right, is above a maximum, or has a payload of `large` bytes or more.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_framing",
    .m_doc = PyDoc_STR("Frames as bytes; see csrc/isr_framing.c."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__framing(void)
{
    for (int which = 0; which < ARGUMENTS; which++)
        if ((argument_names[which] = PyUnicode_InternFromString(arguments[which].name)) == NULL)
            return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddType(module, &HeaderType) < 0 || PyModule_AddType(module, &FrameType) < 0 ||
        PyModule_AddType(module, &CopiedType) < 0 || PyModule_AddIntMacro(module, NO_FRAME) < 0 ||
        PyModule_AddIntMacro(module, DAMAGED) < 0 || PyModule_AddIntMacro(module, BAD_WORDS) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
