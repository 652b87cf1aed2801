#include "isr_growing.h"

#include <structmember.h>
#include <time.h>

static const Py_ssize_t FIRST_ROOM = 512;

int64_t isr_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void isr_measure(const GrowingBatch *batch, Arrival *arrival)
{
    arrival->record.delta = batch->count == 0 ? 0 : (int64_t)((uint64_t)arrival->ms - (uint64_t)batch->first_ms);
    arrival->record.index = batch->count;
    arrival->body = body_size(&arrival->record);
    arrival->size = (Py_ssize_t)(varint_size((int64_t)arrival->body) + arrival->body);
}

static int make_room(GrowingBatch *batch, Py_ssize_t size)
{
    Py_ssize_t room = batch->room < FIRST_ROOM ? FIRST_ROOM : batch->room;
    uint8_t *bytes;
    if (size > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a batch of %zd bytes is above the format's 2 GiB", size);
        return -1;
    }
    while (room < size)
        room *= 2;
    bytes = PyMem_Realloc(batch->bytes, (size_t)room);
    if (bytes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    batch->bytes = bytes;
    batch->room = room;
    return 0;
}

/* The next record has another timestamp than the last. */
static int change_stamp(GrowingBatch *batch, int64_t ms)
{
    if (batch->stamp_count == batch->stamp_room) {
        int room = batch->stamp_room == 0 ? 4 : 2 * batch->stamp_room;
        Stamp *stamps = PyMem_Realloc(batch->stamps, (size_t)room * sizeof(Stamp));
        if (stamps == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        batch->stamps = stamps;
        batch->stamp_room = room;
    }
    batch->stamps[batch->stamp_count++] = (Stamp){batch->count, ms};
    return 0;
}

int isr_append(GrowingBatch *batch, const Arrival *arrival)
{
    if (batch->sealed || batch->released) {
        PyErr_SetString(PyExc_ValueError, "the batch is sealed: it takes no more records");
        return -1;
    }
    if (batch->size + arrival->size > batch->room && make_room(batch, batch->size + arrival->size) < 0)
        return -1;
    if (batch->count > 0 && arrival->ms != batch->last_ms && change_stamp(batch, arrival->ms) < 0)
        return -1;
    write_record(batch->bytes + batch->size, arrival->body, &arrival->record);
    if (batch->count == 0)
        batch->first_ms = batch->greatest_ms = arrival->ms;
    if (arrival->ms > batch->greatest_ms)
        batch->greatest_ms = arrival->ms;
    batch->last_ms = arrival->ms;
    batch->size += arrival->size;
    batch->count++;
    return 0;
}

/* ---- the methods ---- */

/* As isr_point_at(), of what a caller gives. */
static int read_item(PyObject *object, const char *what, int64_t none, const uint8_t **bytes, int64_t *length)
{
    if (object != Py_None && !PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: bytes or None, not %s", what, Py_TYPE(object)->tp_name);
        return -1;
    }
    isr_point_at(object, none, bytes, length);
    return 0;
}

static int read_ms(PyObject *object, int64_t *ms)
{
    *ms = object == Py_None ? isr_now_ms() : PyLong_AsLongLong(object);
    return *ms == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    GrowingBatch *batch = (GrowingBatch *)self;
    Arrival arrival;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "append() takes a key, a value, headers and a timestamp");
    if (read_item(args[0], "key", -1, &arrival.record.key, &arrival.record.key_length) < 0 ||
        read_item(args[1], "value", -1, &arrival.record.value, &arrival.record.value_length) < 0 ||
        read_item(args[2], "headers", 0, &arrival.record.headers, &arrival.record.headers_length) < 0 ||
        read_ms(args[3], &arrival.ms) < 0)
        return NULL;
    isr_measure(batch, &arrival);
    return isr_append(batch, &arrival) < 0 ? NULL : PyLong_FromLong(batch->count - 1);
}

static PyObject *extend(PyObject *self, PyObject *args)
{
    GrowingBatch *batch = (GrowingBatch *)self;
    PyObject *key, *values, *ms;
    Py_ssize_t start, stop, most, at;
    Arrival arrival = {0};
    if (!PyArg_ParseTuple(args, "OOnnnO:extend", &key, &values, &start, &stop, &most, &ms) ||
        read_item(key, "key", -1, &arrival.record.key, &arrival.record.key_length) < 0 || read_ms(ms, &arrival.ms) < 0)
        return NULL;
    if (!PyList_Check(values) && !PyTuple_Check(values))
        return PyErr_Format(PyExc_TypeError, "extend() takes values in a list or a tuple");
    if (start < 0 || stop > PySequence_Fast_GET_SIZE(values))
        return PyErr_Format(PyExc_IndexError, "values from %zd to %zd of %zd", start, stop,
                            PySequence_Fast_GET_SIZE(values));
    for (at = start; at < stop; at++) {
        PyObject *value = PySequence_Fast_GET_ITEM(values, at);
        if (value != Py_None && !PyBytes_CheckExact(value))
            break;
        isr_point_at(value, -1, &arrival.record.value, &arrival.record.value_length);
        isr_measure(batch, &arrival);
        if (batch->size + arrival.size > most && at > start)
            break;
        if (isr_append(batch, &arrival) < 0) {
            if (at == start)
                return NULL;
            /* The records before it are taken, and their number must be known. The next call fails again. */
            PyErr_Clear();
            break;
        }
    }
    return PyLong_FromSsize_t(at - start);
}

static PyObject *finish(PyObject *self, PyObject *args)
{
    GrowingBatch *batch = (GrowingBatch *)self;
    long long producer_id;
    int epoch, sequence, transactional;
    if (!PyArg_ParseTuple(args, "Liip:finish", &producer_id, &epoch, &sequence, &transactional))
        return NULL;
    if (batch->count == 0 || batch->released)
        return PyErr_Format(PyExc_ValueError, "the batch has no records");
    if (batch->readers)
        return PyErr_Format(PyExc_BufferError, "the batch is being read");
    put_batch_header(batch->bytes, batch->size, batch->count, batch->first_ms, batch->greatest_ms, producer_id,
                     (int16_t)epoch, sequence, transactional ? TRANSACTIONAL : 0);
    batch->sealed = 1;
    Py_RETURN_NONE;
}

static PyObject *timestamp(PyObject *self, PyObject *index)
{
    GrowingBatch *batch = (GrowingBatch *)self;
    Py_ssize_t at = PyLong_AsSsize_t(index);
    int low = 0, high = batch->stamp_count;
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (at < 0 || at >= batch->count)
        return PyErr_Format(PyExc_IndexError, "record %zd of %d", at, batch->count);
    while (low < high) {
        int middle = (low + high) / 2;
        if (batch->stamps[middle].from <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return PyLong_FromLongLong(low == 0 ? batch->first_ms : batch->stamps[low - 1].ms);
}

static void free_bytes(GrowingBatch *batch)
{
    PyMem_Free(batch->bytes);
    batch->bytes = NULL;
    batch->room = 0;
}

static PyObject *release(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    GrowingBatch *batch = (GrowingBatch *)self;
    batch->released = 1;
    if (!batch->readers)
        free_bytes(batch);
    Py_RETURN_NONE;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    GrowingBatch *batch = (GrowingBatch *)self;
    if (!batch->sealed || batch->released) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, batch->released ? "the bytes of the batch were released"
                                                           : "the batch is not sealed");
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, batch->bytes, batch->size, 1, flags) < 0)
        return -1;
    batch->readers++;
    return 0;
}

static void release_buffer(PyObject *self, Py_buffer *Py_UNUSED(view))
{
    GrowingBatch *batch = (GrowingBatch *)self;
    if (--batch->readers == 0 && batch->released)
        free_bytes(batch);
}

static PyObject *make(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    GrowingBatch *batch = (GrowingBatch *)type->tp_alloc(type, 0);
    if (batch != NULL)
        batch->size = ISR_BATCH_HEADER;
    return (PyObject *)batch;
}

static void dealloc(GrowingBatch *batch)
{
    free_bytes(batch);
    PyMem_Free(batch->stamps);
    Py_TYPE(batch)->tp_free(batch);
}

static PyMethodDef methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL,
     PyDoc_STR("append(key, value, headers, timestamp_ms): take one record; gives its index. Headers: as they stand in "
               "the record, or None. Timestamp: milliseconds since 1970, or None for now. Raises ValueError once the "
               "batch is sealed, or above 2 GiB.")},
    {"extend", extend, METH_VARARGS,
     PyDoc_STR("extend(key, values, start, stop, most, timestamp_ms): take values[start:stop] as records of one key, up to "
               "the first that is neither bytes nor None, or with which the batch has over `most` bytes (the first is taken "
               "in any case); gives how many.")},
    {"finish", finish, METH_VARARGS,
     PyDoc_STR("finish(producer_id, producer_epoch, base_sequence, transactional): write the header, with which the batch is "
               "sealed and can be read as a buffer. Raises BufferError while it is.")},
    {"timestamp", timestamp, METH_O, PyDoc_STR("timestamp(index): of a record, in milliseconds since 1970.")},
    {"release", release, METH_NOARGS,
     PyDoc_STR("The bytes are not needed any more; those that are being read stay until then.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"size", T_PYSSIZET, offsetof(GrowingBatch, size), READONLY, PyDoc_STR("Bytes, with the header, not compressed.")},
    {"count", T_INT, offsetof(GrowingBatch, count), READONLY, PyDoc_STR("Of records.")},
    {NULL, 0, 0, 0, NULL},
};

static PyBufferProcs as_buffer = {.bf_getbuffer = get_buffer, .bf_releasebuffer = release_buffer};

PyTypeObject isr_GrowingBatchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.GrowingBatch",
    .tp_doc = PyDoc_STR("A batch that records join: its bytes, of the record format v2, grow with each."),
    .tp_basicsize = sizeof(GrowingBatch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = make,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_as_buffer = &as_buffer,
};

int isr_add_growing(PyObject *module)
{
    return PyModule_AddType(module, &isr_GrowingBatchType);
}
