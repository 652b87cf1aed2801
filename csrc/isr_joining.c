/* `insync.replication.client.producer._joining`: a record joins the open batch of its partition, and `send` is awaited.
 *
 * Everything here has a twin in Python that does the same to the same objects: `Joiner` is `_accumulator.join`,
 * `Sending` (isr_sending.c) the coroutine of `Producer.send`. The fields of those objects are slots, whose offsets
 * `bind` looks up once. So there is no state in C that could differ from Python's, and what a record needs beyond the
 * way that most records take is left to Python: this code then changes nothing, and says None.
 *
 * Producers for threads and asyncio hand their records over to the thread of the producer. `Entrance` does for most
 * records what their `send` does, and `RecordQueue`, a twin of `_handover.RecordQueue`, is the queue between the threads
 * (isr_handing.c).
 */
#include "isr_joining.h"

#include <time.h>

/* Accumulator */
Field isr_of_accumulator[] = {{"used", 0},   {"waiting", 0},   {"_buffer_memory", 0}, {"_topics", 0},
                                 {"barred", 0}, {"unyielded", 0}, {"_largest", 0},       {NULL, 0}};
/* TopicQueues */
enum { STICKY, STICKY_UNTIL, BY_KEY, QUEUES, TOPIC };
static Field of_queues[] = {{"sticky", 0}, {"sticky_until", 0}, {"by_key", 0},
                            {"queues", 0}, {"_topic", 0},       {NULL, 0}};
/* Topic */
enum { LEADERS };
static Field of_topic[] = {{"leaders", 0}, {NULL, 0}};
/* PartitionQueue */
enum { OPEN, ENOUGH };
static Field of_queue[] = {{"open", 0}, {"enough", 0}, {NULL, 0}};
/* Batch */
enum { SIZE, SINCE, UNTIL, VALUES, KEYS, HEADERS };
static Field of_batch[] = {{"size", 0},   {"since", 0}, {"until", 0},  {"values", 0},
                           {"keys", 0},   {"headers", 0}, {NULL, 0}};
/* Delivery */
enum { BATCH, INDEX };
static Field of_delivery[] = {{"_batch", 0}, {"_index", 0}, {NULL, 0}};

static struct {
    const char *name;
    Field *fields;
    PyTypeObject *type;
} classes[] = {
    {"accumulator", isr_of_accumulator, NULL}, {"queues", of_queues, NULL}, {"topic", of_topic, NULL},
    {"queue", of_queue, NULL},             {"batch", of_batch, NULL},   {"delivery", of_delivery, NULL},
};
enum { ACCUMULATOR_TYPE, QUEUES_TYPE, TOPIC_TYPE, QUEUE_TYPE, BATCH_TYPE, DELIVERY_TYPE, TYPES };

long long isr_record_overhead;
PyObject *isr_empty_tuple;
static PyObject *name_date;

static inline int is_a(PyObject *object, int kind)
{
    return object != NULL && Py_TYPE(object) == classes[kind].type;
}

int isr_is_topic(PyObject *object)
{
    return is_a(object, QUEUES_TYPE);
}

static double system_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Joiner ---- */

/* Whether now is a time of which the batch knows the millisecond; -1 with an error set. */
static int is_dated(Joiner *self, PyObject *batch)
{
    PyObject *since = get(batch, &of_batch[SINCE]), *until = get(batch, &of_batch[UNTIL]);
    double now;
    if (since == NULL || until == NULL || !PyFloat_CheckExact(since) || !PyFloat_CheckExact(until))
        return 0;
    if (self->clock == NULL) {
        now = system_time();
    } else {
        /* It may be any function, so the batch may have other times when it returns. */
        double from = PyFloat_AS_DOUBLE(since), to = PyFloat_AS_DOUBLE(until);
        PyObject *told = PyObject_CallNoArgs(self->clock);
        if (told == NULL)
            return -1;
        now = PyFloat_AsDouble(told);
        Py_DECREF(told);
        return now == -1.0 && PyErr_Occurred() ? -1 : from <= now && now < to;
    }
    return PyFloat_AS_DOUBLE(since) <= now && now < PyFloat_AS_DOUBLE(until);
}

/* Appends, and takes back what it appended if it fails in between. `made` are keys for a batch that had none so far. */
static int add(PyObject *batch, PyObject *key, PyObject *value, PyObject *made)
{
    PyObject *values = get(batch, &of_batch[VALUES]), *keys = made != NULL ? made : get(batch, &of_batch[KEYS]);
    PyObject *headers = get(batch, &of_batch[HEADERS]);
    Py_ssize_t index = PyList_GET_SIZE(values);
    if (PyList_Append(values, value) < 0)
        return -1;
    if (keys != Py_None && PyList_Append(keys, key) < 0)
        goto values_only;
    if (headers != Py_None && PyList_Append(headers, isr_empty_tuple) < 0)
        goto both;
    if (made != NULL)
        set(batch, &of_batch[KEYS], Py_NewRef(made));
    return 0;
both:
    if (keys != Py_None)
        PyList_SetSlice(keys, index, index + 1, NULL);
values_only:
    PyList_SetSlice(values, index, index + 1, NULL);
    return -1;
}

/* As many as there are records. */
static PyObject *nones(Py_ssize_t count)
{
    PyObject *made = PyList_New(count);
    for (Py_ssize_t at = 0; made != NULL && at < count; at++)
        PyList_SET_ITEM(made, at, Py_NewRef(Py_None));
    return made;
}

static inline int is_list_or_none(PyObject *object)
{
    return object != NULL && (object == Py_None || PyList_CheckExact(object));
}

PyObject *isr_join(Joiner *self, PyObject *topic, PyObject *value, PyObject *key)
{
    PyObject *accumulator = self->accumulator, *topics, *queues, *queue, *batch, *delivery, *made = NULL;
    PyObject *values, *keys, *new_size, *new_used, *index;
    long long most, enough, used, used_by_now, memory, waiting, size, taken;
    /* Other strings and bytes may have functions of their own: Python calls those. */
    if (!PyBytes_CheckExact(value) || !PyUnicode_CheckExact(topic))
        return NULL;
    topics = get(accumulator, &isr_of_accumulator[TOPICS]);
    if (topics == NULL || !PyDict_CheckExact(topics))
        return NULL;
    queues = PyDict_GetItemWithError(topics, topic);
    if (!is_a(queues, QUEUES_TYPE))
        return NULL;
    size = isr_record_overhead + PyBytes_GET_SIZE(value);
    if (key == Py_None) {
        queue = get(queues, &of_queues[STICKY]);
        if (!whole(get(queues, &of_queues[STICKY_UNTIL]), &most))
            return NULL;
    } else if (PyBytes_CheckExact(key)) {
        PyObject *described = get(queues, &of_queues[TOPIC]), *all = get(queues, &of_queues[QUEUES]);
        PyObject *by_key = get(queues, &of_queues[BY_KEY]), *leaders;
        if (!is_a(described, TOPIC_TYPE) || by_key == NULL || !PyDict_CheckExact(by_key))
            return NULL;
        leaders = get(described, &of_topic[LEADERS]);
        if (all == NULL || leaders == NULL || !PyList_CheckExact(all) || !PyList_CheckExact(leaders))
            return NULL;
        if (PyList_GET_SIZE(all) < PyList_GET_SIZE(leaders))
            return NULL; /* the topic has grown */
        queue = PyDict_GetItemWithError(by_key, key);
        size += PyBytes_GET_SIZE(key);
        most = LLONG_MAX;
    } else {
        return NULL;
    }
    if (!is_a(queue, QUEUE_TYPE))
        return NULL;
    batch = get(queue, &of_queue[OPEN]);
    if (!is_a(batch, BATCH_TYPE) || !whole(get(batch, &of_batch[SIZE]), &taken) ||
        !whole(get(queue, &of_queue[ENOUGH]), &enough) ||
        !whole(get(accumulator, &isr_of_accumulator[USED]), &used) ||
        !whole(get(accumulator, &isr_of_accumulator[BUFFER_MEMORY]), &memory) ||
        !whole(get(accumulator, &isr_of_accumulator[WAITING]), &waiting))
        return NULL;
    /* A batch takes no more than a request may hold, so the record is not too large either. */
    if (taken + size >= enough || taken + size > most || used + size > memory || waiting)
        return NULL;
    /* Here functions of Python may run (a clock, the date of a batch, finalisers while memory is allocated): the batch
     * stays alive, and its lists are looked up after them. */
    Py_INCREF(batch);
    switch (is_dated(self, batch)) {
    case 0: {
        PyObject *dated = PyObject_CallMethodNoArgs(batch, name_date);
        if (dated == NULL)
            goto failed;
        Py_DECREF(dated);
        break;
    }
    case -1:
        goto failed;
    }
    delivery = classes[DELIVERY_TYPE].type->tp_alloc(classes[DELIVERY_TYPE].type, 0);
    if (delivery == NULL)
        goto failed;
    values = get(batch, &of_batch[VALUES]);
    keys = get(batch, &of_batch[KEYS]);
    if (values == NULL || !PyList_CheckExact(values) || !is_list_or_none(keys) ||
        !is_list_or_none(get(batch, &of_batch[HEADERS]))) {
        PyErr_SetString(PyExc_TypeError, "a batch keeps its values, keys and headers in lists");
        goto not_added;
    }
    if (keys == Py_None && key != Py_None && (made = nones(PyList_GET_SIZE(values))) == NULL)
        goto not_added;
    /* From here on nothing else runs. What did may have sent, and then all of the above may have changed. */
    if (!whole(get(accumulator, &isr_of_accumulator[USED]), &used_by_now) || used_by_now != used)
        goto not_added;
    new_size = PyLong_FromLongLong(taken + size);
    new_used = PyLong_FromLongLong(used + size);
    index = PyLong_FromSsize_t(PyList_GET_SIZE(values));
    if (new_size == NULL || new_used == NULL || index == NULL || add(batch, key, value, made) < 0) {
        Py_XDECREF(new_size);
        Py_XDECREF(new_used);
        Py_XDECREF(index);
        goto not_added;
    }
    Py_XDECREF(made);
    set(batch, &of_batch[SIZE], new_size);
    set(accumulator, &isr_of_accumulator[USED], new_used);
    set(delivery, &of_delivery[BATCH], batch);
    set(delivery, &of_delivery[INDEX], index);
    return delivery;
not_added:
    Py_XDECREF(made);
    Py_DECREF(delivery);
failed:
    Py_DECREF(batch);
    return NULL;
}

static PyObject *joiner_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 3 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes a topic, a value and a key");
    PyObject *delivery = isr_join((Joiner *)callable, args[0], args[1], args[2]);
    if (delivery == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return delivery;
}

static PyObject *joiner_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"accumulator", "clock", NULL};
    PyObject *accumulator, *clock = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|O", names, &accumulator, &clock))
        return NULL;
    if (classes[ACCUMULATOR_TYPE].type == NULL ||
        !PyObject_TypeCheck(accumulator, classes[ACCUMULATOR_TYPE].type))
        return PyErr_Format(PyExc_TypeError, "the accumulator must be of the class that bind() was told");
    Joiner *self = (Joiner *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->accumulator = Py_NewRef(accumulator);
    self->clock = clock == Py_None ? NULL : Py_NewRef(clock);
    self->vectorcall = joiner_call;
    return (PyObject *)self;
}

static int joiner_traverse(Joiner *self, visitproc visit, void *arg)
{
    Py_VISIT(self->accumulator);
    Py_VISIT(self->clock);
    return 0;
}

static int joiner_clear(Joiner *self)
{
    /* The accumulator stays: a call needs one. It lets go of this, which breaks the cycle. */
    Py_CLEAR(self->clock);
    return 0;
}

static void joiner_dealloc(Joiner *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->accumulator);
    Py_XDECREF(self->clock);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject isr_JoinerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Joiner",
    .tp_doc = PyDoc_STR("Joiner(accumulator, clock=None): called with a topic, a value and a key, does what "
                        "`_accumulator.join` does."),
    .tp_basicsize = sizeof(Joiner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = joiner_new,
    .tp_traverse = (traverseproc)joiner_traverse,
    .tp_clear = (inquiry)joiner_clear,
    .tp_dealloc = (destructor)joiner_dealloc,
    .tp_vectorcall_offset = offsetof(Joiner, vectorcall),
    .tp_call = PyVectorcall_Call,
};

/* ---- the module ---- */

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named)
{
    static char *names[] = {"accumulator", "queues", "topic", "queue", "batch", "delivery", "overhead", NULL};
    PyTypeObject *given[TYPES];
    long long overhead;
    if (!PyArg_ParseTupleAndKeywords(args, named, "$O!O!O!O!O!O!L", names, &PyType_Type, &given[0], &PyType_Type,
                                     &given[1], &PyType_Type, &given[2], &PyType_Type, &given[3], &PyType_Type,
                                     &given[4], &PyType_Type, &given[5], &overhead))
        return NULL;
    for (int kind = 0; kind < TYPES; kind++)
        if (isr_find_fields(given[kind], classes[kind].fields) < 0)
            return NULL;
    for (int kind = 0; kind < TYPES; kind++)
        Py_XSETREF(classes[kind].type, (PyTypeObject *)Py_NewRef(given[kind]));
    isr_record_overhead = overhead;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind_records", isr_bind_records, METH_O,
     PyDoc_STR("bind_records(type): the class of records that are handed over. Raises TypeError as bind().")},
    {"bind", (PyCFunction)(void (*)(void))bind, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("bind(*, accumulator, queues, topic, queue, batch, delivery, overhead): the classes whose slots are "
               "used, and what a record counts for beside its key and value. Raises TypeError where a class has no "
               "such slot.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_joining",
    .m_doc = PyDoc_STR("The way of most records into a batch, in C; see csrc/isr_joining.c."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__joining(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    name_date = PyUnicode_InternFromString("date");
    isr_empty_tuple = PyTuple_New(0);
    if (name_date == NULL || isr_empty_tuple == NULL || PyModule_AddType(module, &isr_JoinerType) < 0 ||
        isr_add_sending(module) < 0 || isr_add_handing(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
