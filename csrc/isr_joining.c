/* `insync.replication.client.producer._joining`: a record joins the open batch of its partition.
 *
 * The classes of the producer that a record passes have their bases here: `Accumulator` is a `Joiner`, `TopicQueues` a
 * `TopicTails`, `Batch` a `GrowingBatch` (isr_growing.c), `Delivery` a `Place`. C owns the fields that it uses, and Python
 * sees them as attributes. Whatever a record needs beyond the way that most records take is decided in Python: this code
 * then changes nothing, and says None.
 *
 * Producers for threads and asyncio hand their records over to the thread of the producer (isr_handing.c).
 */
#include "isr_joining.h"

/* ---- Place: the base of Delivery ---- */

typedef struct {
    PyObject_HEAD
    PyObject *batch;
    Py_ssize_t index;
} Place;

static int place_init(Place *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"batch", "index", NULL};
    PyObject *batch;
    Py_ssize_t index;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!n", names, &isr_GrowingBatchType, &batch, &index))
        return -1;
    Py_XSETREF(self->batch, Py_NewRef(batch));
    self->index = index;
    return 0;
}

static int place_traverse(Place *self, visitproc visit, void *arg)
{
    Py_VISIT(self->batch);
    return 0;
}

static int place_clear(Place *self)
{
    Py_CLEAR(self->batch);
    return 0;
}

static void place_dealloc(Place *self)
{
    PyObject_GC_UnTrack(self);
    place_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef place_members[] = {
    {"_batch", T_OBJECT_EX, offsetof(Place, batch), READONLY, NULL},
    {"_index", T_PYSSIZET, offsetof(Place, index), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PlaceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Place",
    .tp_doc = PyDoc_STR("Place(batch, index): of a record."),
    .tp_basicsize = sizeof(Place),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)place_init,
    .tp_traverse = (traverseproc)place_traverse,
    .tp_clear = (inquiry)place_clear,
    .tp_dealloc = (destructor)place_dealloc,
    .tp_members = place_members,
};

/* ---- Tail: where records join the queue of a partition ---- */

typedef struct {
    PyObject_HEAD
    PyObject *queue, *open;
    Py_ssize_t enough;
} Tail;

static int tail_init(Tail *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"queue", NULL};
    PyObject *queue;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O", names, &queue))
        return -1;
    Py_XSETREF(self->queue, Py_NewRef(queue));
    return 0;
}

static int tail_traverse(Tail *self, visitproc visit, void *arg)
{
    Py_VISIT(self->queue);
    Py_VISIT(self->open);
    return 0;
}

static int tail_clear(Tail *self)
{
    Py_CLEAR(self->queue);
    Py_CLEAR(self->open);
    return 0;
}

static void tail_dealloc(Tail *self)
{
    PyObject_GC_UnTrack(self);
    tail_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef tail_members[] = {
    {"queue", T_OBJECT, offsetof(Tail, queue), READONLY, PyDoc_STR("Whose tail it is.")},
    {"open", T_OBJECT, offsetof(Tail, open), 0, PyDoc_STR("The batch that takes records, or None.")},
    {"enough", T_PYSSIZET, offsetof(Tail, enough), 0,
     PyDoc_STR("At how many bytes to see whether the open batch goes on growing.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject TailType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Tail",
    .tp_doc = PyDoc_STR("Tail(queue): where records join the queue of a partition."),
    .tp_basicsize = sizeof(Tail),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)tail_init,
    .tp_traverse = (traverseproc)tail_traverse,
    .tp_clear = (inquiry)tail_clear,
    .tp_dealloc = (destructor)tail_dealloc,
    .tp_members = tail_members,
};

/* ---- TopicTails: the base of TopicQueues ---- */

typedef struct {
    PyObject_HEAD
    PyObject *sticky, *by_key;
    Py_ssize_t sticky_until;
} TopicTails;

static PyObject *tails_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    TopicTails *self = (TopicTails *)type->tp_alloc(type, 0);
    if (self != NULL && (self->by_key = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int tails_traverse(TopicTails *self, visitproc visit, void *arg)
{
    Py_VISIT(self->sticky);
    Py_VISIT(self->by_key);
    return 0;
}

static int tails_clear(TopicTails *self)
{
    /* The dictionary stays: `join` needs one. The tails in it let go of what they refer to. */
    Py_CLEAR(self->sticky);
    return 0;
}

static void tails_dealloc(TopicTails *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->sticky);
    Py_XDECREF(self->by_key);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef tails_members[] = {
    {"sticky", T_OBJECT, offsetof(TopicTails, sticky), 0,
     PyDoc_STR("Where the last record without a key went, if such records stay with a partition for a while.")},
    {"sticky_until", T_PYSSIZET, offsetof(TopicTails, sticky_until), 0,
     PyDoc_STR("The size of its open batch up to which they do.")},
    {"by_key", T_OBJECT, offsetof(TopicTails, by_key), READONLY, PyDoc_STR("Where records with these keys go.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject TopicTailsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.TopicTails",
    .tp_doc = PyDoc_STR("Where the records of a topic go without a decision."),
    .tp_basicsize = sizeof(TopicTails),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = tails_new,
    .tp_traverse = (traverseproc)tails_traverse,
    .tp_clear = (inquiry)tails_clear,
    .tp_dealloc = (destructor)tails_dealloc,
    .tp_members = tails_members,
};

int isr_is_topic(PyObject *object)
{
    return object != NULL && PyObject_TypeCheck(object, &TopicTailsType);
}

/* ---- Joiner: the base of Accumulator ---- */

int isr_is_barred(const Joiner *self)
{
    return self->barred != NULL && self->barred != Py_None;
}

Py_ssize_t isr_most(const Joiner *self, PyObject *value, PyObject *key)
{
    return self->overhead + PyBytes_GET_SIZE(value) + (key == Py_None ? 0 : PyBytes_GET_SIZE(key));
}

/* Where a record goes, and the size up to which its batch takes it; NULL if that is to be decided. */
static Tail *find_tail(const Joiner *self, PyObject *topic, PyObject *key, Py_ssize_t *until)
{
    PyObject *found = PyDict_GetItemWithError(self->topics, topic);
    if (!isr_is_topic(found))
        return NULL;
    TopicTails *tails = (TopicTails *)found;
    if (key == Py_None) {
        found = tails->sticky;
        *until = tails->sticky_until;
    } else {
        found = PyDict_GetItemWithError(tails->by_key, key);
        *until = PY_SSIZE_T_MAX;
    }
    return found != NULL && Py_IS_TYPE(found, &TailType) ? (Tail *)found : NULL;
}

PyObject *isr_join(Joiner *self, PyObject *topic, PyObject *value, PyObject *key)
{
    Arrival arrival = {0};
    Py_ssize_t until, most;
    if (!isr_is_plain(topic, value, key) || self->waiting || self->delivery_type == NULL)
        return NULL;
    /* First of all: finalisers may run where memory is allocated, and may send. Nothing of Python's runs behind it. */
    Place *delivery = (Place *)self->delivery_type->tp_alloc(self->delivery_type, 0);
    if (delivery == NULL)
        return NULL;
    Tail *tail = find_tail(self, topic, key, &until);
    if (tail == NULL || tail->open == NULL || !PyObject_TypeCheck(tail->open, &isr_GrowingBatchType))
        goto not_taken;
    GrowingBatch *batch = (GrowingBatch *)tail->open;
    isr_point_at(key, -1, &arrival.record.key, &arrival.record.key_length);
    isr_point_at(value, -1, &arrival.record.value, &arrival.record.value_length);
    arrival.ms = isr_now_ms();
    /* Python decides by the most, too. A batch takes no more than a request may hold, so no record here is too large. */
    most = isr_most(self, value, key);
    if (batch->size + most >= tail->enough || batch->size + most > until || self->used + most > self->buffer_memory)
        goto not_taken;
    isr_measure(batch, &arrival);
    if (isr_append(batch, &arrival) < 0)
        goto not_taken;
    self->used += arrival.size;
    delivery->batch = Py_NewRef(batch);
    delivery->index = batch->count - 1;
    return (PyObject *)delivery;
not_taken:
    Py_DECREF(delivery);
    return NULL;
}

static PyObject *join(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "join() takes a topic, a value and a key");
    PyObject *delivery = isr_join((Joiner *)self, args[0], args[1], args[2]);
    if (delivery == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return delivery;
}

static PyObject *send(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Joiner *self = (Joiner *)object;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "send() takes a topic, a value and a key");
    if (!self->direct || isr_is_barred(self) || self->unyielded >= self->pause_after)
        Py_RETURN_NONE;
    PyObject *delivery = isr_join(self, args[0], args[1], args[2]);
    if (delivery != NULL)
        self->unyielded++;
    else if (!PyErr_Occurred())
        Py_RETURN_NONE;
    return delivery;
}

static PyObject *joiner_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    Joiner *self = (Joiner *)type->tp_alloc(type, 0);
    if (self != NULL && (self->topics = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int joiner_init(Joiner *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"delivery_type", "buffer_memory", "largest", "overhead", "pause_after", NULL};
    PyTypeObject *type;
    Py_ssize_t memory, largest, overhead;
    long long pause_after;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!nnnL", names, &PyType_Type, &type, &memory, &largest, &overhead,
                                     &pause_after))
        return -1;
    if (!PyType_IsSubtype(type, &PlaceType)) {
        PyErr_Format(PyExc_TypeError, "%s is no class of places", type->tp_name);
        return -1;
    }
    Py_XSETREF(self->delivery_type, (PyTypeObject *)Py_NewRef(type));
    self->buffer_memory = memory;
    self->largest = largest;
    self->overhead = overhead;
    self->pause_after = pause_after;
    return 0;
}

static int joiner_traverse(Joiner *self, visitproc visit, void *arg)
{
    Py_VISIT(self->topics);
    Py_VISIT(self->barred);
    Py_VISIT(self->delivery_type);
    return 0;
}

static int joiner_clear(Joiner *self)
{
    /* The topics stay: a call needs them. They hold nothing that refers to this. */
    Py_CLEAR(self->barred);
    return 0;
}

static void joiner_dealloc(Joiner *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->topics);
    Py_XDECREF(self->barred);
    Py_XDECREF(self->delivery_type);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef joiner_methods[] = {
    {"join", (PyCFunction)(void (*)(void))join, METH_FASTCALL,
     PyDoc_STR("join(topic, value, key): the delivery of a record that has joined the open batch of its partition. None "
               "if there is more to decide; nothing is taken then.")},
    {"send", (PyCFunction)(void (*)(void))send, METH_FASTCALL,
     PyDoc_STR("send(topic, value, key): `join`, and the record counts as `unyielded`. None also where a pause is due, or "
               "not every record may be sent.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef joiner_members[] = {
    {"_topics", T_OBJECT, offsetof(Joiner, topics), READONLY, NULL},
    {"_largest", T_PYSSIZET, offsetof(Joiner, largest), READONLY, NULL},
    {"_buffer_memory", T_PYSSIZET, offsetof(Joiner, buffer_memory), READONLY, NULL},
    {"barred", T_OBJECT, offsetof(Joiner, barred), 0,
     PyDoc_STR("Why nothing may be sent now: the producer is fenced, or no transaction is open.")},
    {"used", T_PYSSIZET, offsetof(Joiner, used), 0, PyDoc_STR("Bytes of records without an outcome.")},
    {"waiting", T_LONGLONG, offsetof(Joiner, waiting), 0, PyDoc_STR("How many wait for memory.")},
    {"unyielded", T_LONGLONG, offsetof(Joiner, unyielded), 0,
     PyDoc_STR("Records that were taken since other tasks could run.")},
    {"direct", T_BOOL, offsetof(Joiner, direct), 0,
     PyDoc_STR("Whether `send` may take records: the producer is open, and no serializer has to see them.")},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject isr_JoinerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Joiner",
    .tp_doc = PyDoc_STR("Joiner(delivery_type, buffer_memory, largest, overhead, pause_after): takes records for which a "
                        "batch is open. A record counts for at most `overhead` bytes beside its key and value."),
    .tp_basicsize = sizeof(Joiner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = joiner_new,
    .tp_init = (initproc)joiner_init,
    .tp_traverse = (traverseproc)joiner_traverse,
    .tp_clear = (inquiry)joiner_clear,
    .tp_dealloc = (destructor)joiner_dealloc,
    .tp_methods = joiner_methods,
    .tp_members = joiner_members,
};

/* ---- the module ---- */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_joining",
    .m_doc = PyDoc_STR("The way of most records into a batch; see csrc/isr_joining.c."),
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__joining(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (isr_add_growing(module) < 0 || PyModule_AddType(module, &PlaceType) < 0 ||
        PyModule_AddType(module, &TailType) < 0 || PyModule_AddType(module, &TopicTailsType) < 0 ||
        PyModule_AddType(module, &isr_JoinerType) < 0 || isr_add_handing(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
