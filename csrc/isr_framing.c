/* `insync.transport._framing`: plain frames are taken out of a link's buffer, and made.
 *
 * Everything here has a twin in Python that does the same. `take_frames` does what `StreamLink._parse` does, to the same
 * fields of the same objects, whose offsets `bind` looks up once: no state is kept in C. What is not a whole, small and
 * right frame is left to Python, which decides what becomes of it and words the errors. The functions in isr_outgoing.c
 * call their twins for what is not plain.
 */
#include "isr_framing.h"

/* StreamLink */
enum { BUFFER, START, END, PARTIAL, READY, HEADER, MISSING, NEXT_HEAD, IS_BEHIND, IS_HELD_BACK, LARGE, LIMITS };
static Field of_link[] = {{"_buffer", 0},    {"_start", 0},        {"_end", 0},   {"_partial", 0}, {"_ready", 0},
                          {"_header", 0},    {"_missing", 0},      {"_next_head", 0},
                          {"_is_behind", 0}, {"_is_held_back", 0}, {"_large", 0}, {"limits", 0},   {NULL, 0}};
/* Limits */
enum { MAX_BODY, MAX_PAYLOAD };
static Field of_limits[] = {{"max_body_bytes", 0}, {"max_payload_bytes", 0}, {NULL, 0}};
/* Header */
enum { TYPE, KIND, KIND_VERSION, FLAGS, CORR, BODY_LENGTH, AUX, PAYLOAD_LENGTH, BODY_CRC, PAYLOAD_CRC, MAX_RESPONSE, SIZE };
static Field of_header[] = {{"type", 0},     {"kind", 0},        {"kind_version", 0}, {"flags", 0}, {"corr", 0},
                            {"body_length", 0}, {"aux", 0},      {"payload_length", 0},
                            {"body_crc", 0}, {"payload_crc", 0}, {"max_response", 0}, {"size", 0},  {NULL, 0}};
/* Frame */
enum { F_HEADER, F_BODY, F_PAYLOAD };
static Field of_frame[] = {{"header", 0}, {"body", 0}, {"payload", 0}, {NULL, 0}};
/* EmptyPayload */
enum { IS_RELEASED };
static Field of_empty[] = {{"_is_released", 0}, {NULL, 0}};
/* BufferPayload */
enum { P_BUFFER, P_POOL, P_VIEW, P_NBYTES };
static Field of_payload[] = {{"_buffer", 0}, {"_pool", 0}, {"_view", 0}, {"nbytes", 0}, {NULL, 0}};

static struct {
    const char *name;
    Field *fields;
    int is_made; /* here, so that it must have no other fields */
    PyTypeObject *type;
} classes[] = {
    {"link", of_link, 0, NULL},   {"limits", of_limits, 0, NULL}, {"header", of_header, 1, NULL},
    {"frame", of_frame, 1, NULL}, {"empty", of_empty, 1, NULL},   {"payload", of_payload, 1, NULL},
};
enum { LINK_TYPE, LIMITS_TYPE, HEADER_TYPE, FRAME_TYPE, EMPTY_TYPE, PAYLOAD_TYPE, TYPES };

static Py_ssize_t most_at_once;

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

static PyObject *made(int kind)
{
    return classes[kind].type->tp_alloc(classes[kind].type, 0);
}

/* Into a new object; whether there is such a value. */
static inline int put(PyObject *of, const Field *field, PyObject *value)
{
    *(PyObject **)((char *)of + field->offset) = value;
    return value != NULL;
}

static inline int put_number(PyObject *of, const Field *field, uint64_t value)
{
    return put(of, field, PyLong_FromUnsignedLongLong(value));
}

/* NULL with an error set, as all that follow. */
static PyObject *header_of(const uint8_t *p)
{
    PyObject *header = made(HEADER_TYPE);
    if (header == NULL)
        return NULL;
    if (put_number(header, &of_header[TYPE], p[3]) && put_number(header, &of_header[KIND], read16(p + 4)) &&
        put_number(header, &of_header[KIND_VERSION], p[6]) && put_number(header, &of_header[FLAGS], p[7]) &&
        put_number(header, &of_header[CORR], read64(p + 8)) &&
        put_number(header, &of_header[BODY_LENGTH], read32(p + 16)) &&
        put_number(header, &of_header[AUX], read32(p + 20)) &&
        put_number(header, &of_header[PAYLOAD_LENGTH], read64(p + 24)) &&
        put_number(header, &of_header[BODY_CRC], read32(p + 32)) &&
        put_number(header, &of_header[PAYLOAD_CRC], read32(p + 36)) &&
        put_number(header, &of_header[MAX_RESPONSE], (uint64_t)read32(p + 40) << 10) &&
        put_number(header, &of_header[SIZE], (uint64_t)p[2] * 8))
        return header;
    Py_DECREF(header);
    return NULL;
}

static PyObject *payload_of(const uint8_t *p, Py_ssize_t length)
{
    PyObject *payload = made(length ? PAYLOAD_TYPE : EMPTY_TYPE), *copy, *view;
    if (payload == NULL)
        return NULL;
    if (!length) {
        put(payload, &of_empty[IS_RELEASED], Py_NewRef(Py_False));
        return payload;
    }
    put(payload, &of_payload[P_BUFFER], Py_NewRef(Py_None));
    put(payload, &of_payload[P_POOL], Py_NewRef(Py_None));
    copy = PyBytes_FromStringAndSize((const char *)p, length);
    view = copy == NULL ? NULL : PyMemoryView_FromObject(copy);
    Py_XDECREF(copy);
    if (put(payload, &of_payload[P_VIEW], view) && put_number(payload, &of_payload[P_NBYTES], (uint64_t)length))
        return payload;
    Py_DECREF(payload);
    return NULL;
}

static PyObject *frame_of(const uint8_t *p, Py_ssize_t size, Py_ssize_t body, Py_ssize_t payload)
{
    PyObject *frame = made(FRAME_TYPE);
    if (frame == NULL)
        return NULL;
    if (put(frame, &of_frame[F_HEADER], header_of(p)) &&
        put(frame, &of_frame[F_BODY], PyBytes_FromStringAndSize((const char *)p + size, body)) &&
        put(frame, &of_frame[F_PAYLOAD], payload_of(p + size + body, payload)))
        return frame;
    Py_DECREF(frame);
    return NULL;
}

typedef struct {
    long long body, payload, large;
} Bounds;

/* The frame at the beginning of some bytes, and how long it is. NULL with no error set: they begin with something else. */
static PyObject *plain_frame(const uint8_t *p, Py_ssize_t there, const Bounds *bounds, Py_ssize_t *length)
{
    if (there < ISR_HEADER_SIZE || read16(p) != ISR_MAGIC || isr_crc32c(0, p, ISR_SEALED) != read32(p + ISR_SEALED) ||
        p[2] < ISR_HEADER_WORDS || p[2] > ISR_MAX_HEADER_WORDS)
        return NULL;
    uint64_t announced = read64(p + 24), rest = (uint64_t)there;
    uint32_t body = read32(p + 16), size = p[2] * 8u;
    if (announced > rest || size + (uint64_t)body + announced > rest)
        return NULL;
    /* What is there has a length of the machine's. */
    Py_ssize_t payload = (Py_ssize_t)announced;
    if (body > bounds->body || payload > bounds->payload || payload >= bounds->large)
        return NULL;
    if (body && isr_crc32c(0, p + size, body) != read32(p + 32))
        return NULL;
    if (p[7] & ISR_PAYLOAD_CRC && isr_crc32c(0, p + size + body, announced) != read32(p + 36))
        return NULL;
    *length = (Py_ssize_t)size + body + payload;
    return frame_of(p, size, body, payload);
}

/* The bytes between the link's `_start` and `_end`, as far as Python would read them as such. 0: it must look itself. */
static int held(PyObject *link, Py_buffer *buffer, long long *start, long long *end)
{
    PyObject *view = get(link, &of_link[BUFFER]);
    if (!whole(get(link, &of_link[START]), start) || !whole(get(link, &of_link[END]), end) || view == NULL ||
        !PyMemoryView_Check(view))
        return 0;
    if (PyObject_GetBuffer(view, buffer, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    if (PyMemoryView_GET_BUFFER(view)->ndim == 1 && buffer->itemsize == 1 && 0 <= *start && *end <= buffer->len)
        return 1;
    PyBuffer_Release(buffer);
    return 0;
}

/* Whether the link still is as it was: while memory is allocated, finalizers may run, and one may close it. */
static int is_unchanged(PyObject *link, const Py_buffer *buffer, long long start, long long end)
{
    long long start_now, end_now;
    return whole(get(link, &of_link[START]), &start_now) && whole(get(link, &of_link[END]), &end_now) &&
           start_now == start && end_now == end && get(link, &of_link[BUFFER]) == buffer->obj;
}

/* The frames, where only the beginning of a header is left behind them. Else None, and those that were found wait in
 * `_ready` for Python. */
static PyObject *take_frames(PyObject *Py_UNUSED(twin), PyObject *link)
{
    Py_buffer buffer;
    Bounds bounds;
    long long start, end, at;
    Py_ssize_t length = 0;
    if (classes[LINK_TYPE].type == NULL || !PyObject_TypeCheck(link, classes[LINK_TYPE].type))
        return PyErr_Format(PyExc_TypeError, "the link must be of the class that bind() was told");
    PyObject *ready = get(link, &of_link[READY]), *limits = get(link, &of_link[LIMITS]);
    if (get(link, &of_link[PARTIAL]) != Py_None || ready == NULL || !PyList_CheckExact(ready) ||
        PyList_GET_SIZE(ready) || limits == NULL || Py_TYPE(limits) != classes[LIMITS_TYPE].type ||
        !whole(get(limits, &of_limits[MAX_BODY]), &bounds.body) ||
        !whole(get(limits, &of_limits[MAX_PAYLOAD]), &bounds.payload) ||
        !whole(get(link, &of_link[LARGE]), &bounds.large) || !held(link, &buffer, &start, &end))
        Py_RETURN_NONE;
    PyObject *frames = PyList_New(0), *frame = NULL, *now;
    for (at = start; frames != NULL && PyList_GET_SIZE(frames) < most_at_once; at += length) {
        frame = plain_frame((const uint8_t *)buffer.buf + at, (Py_ssize_t)(end - at), &bounds, &length);
        if (frame == NULL || PyList_Append(frames, frame) < 0)
            break;
        Py_CLEAR(frame);
    }
    Py_XDECREF(frame);
    if (PyErr_Occurred())
        goto failed;
    if (at == start || !is_unchanged(link, &buffer, start, end)) {
        Py_DECREF(frames);
        PyBuffer_Release(&buffer);
        Py_RETURN_NONE;
    }
    now = PyLong_FromLongLong(at);
    if (now == NULL)
        goto failed;
    set(link, &of_link[START], now);
    set(link, &of_link[NEXT_HEAD], PyLong_FromLong(0)); /* small numbers exist already */
    set(link, &of_link[HEADER], Py_NewRef(Py_None));
    set(link, &of_link[IS_BEHIND], Py_NewRef(Py_False));
    PyBuffer_Release(&buffer);
    if (end - at >= ISR_HEADER_SIZE) {
        set(link, &of_link[READY], frames);
        Py_RETURN_NONE;
    }
    set(link, &of_link[IS_HELD_BACK], Py_NewRef(Py_False));
    set(link, &of_link[MISSING], PyLong_FromLong(0));
    return frames;
failed:
    Py_XDECREF(frames);
    PyBuffer_Release(&buffer);
    return NULL;
}

/* ---- the module ---- */

/* Whether a class has these fields and no others, so that an object is whole when they are set; -1 with an error set. */
static int has_only(PyTypeObject *type, const Field *fields)
{
    PyObject *slots = PyObject_GetAttrString((PyObject *)type, "__slots__");
    Py_ssize_t count = 0, known = 0;
    if (slots == NULL)
        return -1;
    if (type->tp_base == &PyBaseObject_Type && PyTuple_CheckExact(slots))
        for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(slots); at++)
            count += PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(slots, at), "__weakref__") != 0;
    Py_DECREF(slots);
    while (fields[known].name != NULL)
        known++;
    if (count == known)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s has other fields than csrc/isr_framing.c sets", type->tp_name);
    return -1;
}

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named)
{
    static char *names[] = {"link", "limits", "header", "frame", "empty", "payload", "most", NULL};
    PyTypeObject *given[TYPES];
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, named, "$O!O!O!O!O!O!n", names, &PyType_Type, &given[0], &PyType_Type,
                                     &given[1], &PyType_Type, &given[2], &PyType_Type, &given[3], &PyType_Type,
                                     &given[4], &PyType_Type, &given[5], &most))
        return NULL;
    for (int kind = 0; kind < TYPES; kind++)
        if ((classes[kind].is_made && has_only(given[kind], classes[kind].fields) < 0) ||
            isr_find_fields(given[kind], classes[kind].fields) < 0)
            return NULL;
    for (int kind = 0; kind < TYPES; kind++)
        Py_XSETREF(classes[kind].type, (PyTypeObject *)Py_NewRef(given[kind]));
    most_at_once = most;
    Py_RETURN_NONE;
}

#define AS_FUNCTION(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef twins[] = {
    {"take_frames", take_frames, METH_O, PyDoc_STR("See the twin.")},
    {"encode_header", AS_FUNCTION(isr_encode_header), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("See the twin.")},
    {"size_of", isr_size_of, METH_O, PyDoc_STR("See the twin.")},
    {"payload_of", isr_payload_of, METH_O, PyDoc_STR("See the twin.")},
    {"after", AS_FUNCTION(isr_after), METH_FASTCALL, PyDoc_STR("See the twin.")},
    {NULL, NULL, 0, NULL},
};

static PyObject *in_front_of(PyObject *Py_UNUSED(module), PyObject *twin)
{
    PyObject *name = PyObject_GetAttrString(twin, "__name__"), *made = NULL;
    if (name == NULL)
        return NULL;
    for (PyMethodDef *function = twins; made == NULL && function->ml_name != NULL; function++)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, function->ml_name) == 0) {
            made = PyCFunction_New(function, twin);
            if (made == NULL)
                break;
        }
    if (made == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "there is no %R in C", name);
    Py_DECREF(name);
    return made;
}

static PyMethodDef functions[] = {
    {"in_front_of", in_front_of, METH_O,
     PyDoc_STR("in_front_of(function): the function of that name in C, which calls this one, its twin, for what is not "
               "plain; the twin is its `__self__`. Raises ValueError where there is none of that name.")},
    {"bind", AS_FUNCTION(bind), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("bind(*, link, limits, header, frame, empty, payload, most): the classes whose slots are used, and how "
               "many frames are handed out at once. Raises TypeError where a class has no such slot, or where one "
               "of which objects are made has others.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_framing",
    .m_doc = PyDoc_STR("The way of most frames, in C; see csrc/isr_framing.c."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__framing(void)
{
    return isr_prepare_outgoing() < 0 ? NULL : PyModule_Create(&definition);
}
