/* The way of records from other threads to the thread of their producer: see isr_joining.c. */
#include "isr_joining.h"

#include <pthread.h>
#include <time.h>

/* ---- RecordQueue: records on their way from other threads ---- */

/* Each function here runs from its beginning to its end while its thread holds the interpreter, so that other threads
 * see all of what it does or nothing. Where Python code runs in between (a function that is told), the comments say what may
 * have changed. */

/* The base of HandedOver. */
typedef struct {
    PyObject_HEAD
    PyObject *delivery, *lost, *callbacks, *producer;
    char looked_at;
} Handed;

static PyTypeObject HandedType;
static PyObject *name_moved, *name_closed, *empty_tuple;

typedef struct {
    PyObject *record, *topic, *value, *key;
    PyObject *arguments; /* what `try_append` takes; NULL: it is topic, value and key, and nothing else */
    long long cost;
    double deadline;
} Item;

typedef struct {
    PyObject_HEAD
    Item *items;
    size_t room, head, count; /* of the ring; `room` is a power of two */
    long long queued, most;
    char moving, closed;
    unsigned born_after; /* as many forks: in a child nobody takes what its parent's queue has */
} RecordQueue;

static unsigned forks;

static void count_fork(void)
{
    forks++;
}

enum { FULL, QUEUED, FIRST, CLOSED };

static void item_clear(Item *item)
{
    Py_XDECREF(item->record);
    Py_XDECREF(item->topic);
    Py_XDECREF(item->value);
    Py_XDECREF(item->key);
    Py_XDECREF(item->arguments);
}

/* Takes the references if it says QUEUED or FIRST; -1 with an error set. */
static int queue_put(RecordQueue *self, const Item *item)
{
    int is_first;
    if (self->closed || self->born_after != forks)
        return CLOSED;
    if (self->queued > self->most)
        return FULL;
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 64;
        Item *items = PyMem_New(Item, room);
        if (items == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (size_t at = 0; at < self->count; at++)
            items[at] = self->items[(self->head + at) & (self->room - 1)];
        PyMem_Free(self->items);
        self->items = items;
        self->room = room;
        self->head = 0;
    }
    is_first = !self->moving;
    self->items[(self->head + self->count++) & (self->room - 1)] = *item;
    self->queued += item->cost;
    self->moving = 1;
    return is_first ? FIRST : QUEUED;
}

static Item queue_pop(RecordQueue *self)
{
    Item item = self->items[self->head];
    self->head = (self->head + 1) & (self->room - 1);
    self->count--;
    return item;
}

/* As Python sees it: (record, cost, deadline, arguments). */
static PyObject *as_tuple(const Item *item)
{
    PyObject *arguments = item->arguments;
    if (arguments != NULL)
        return Py_BuildValue("(OLdO)", item->record, item->cost, item->deadline, arguments);
    return Py_BuildValue("(OLd(OOOOOO))", item->record, item->cost, item->deadline, item->topic, item->value,
                         item->key, empty_tuple, Py_None, Py_None);
}

static PyObject *queue_offer(PyObject *object, PyObject *args)
{
    PyObject *record, *arguments;
    Item item = {0};
    if (!PyArg_ParseTuple(args, "O!LdO!:offer", &HandedType, &record, &item.cost, &item.deadline, &PyTuple_Type,
                          &arguments))
        return NULL;
    item.record = Py_NewRef(record);
    item.arguments = Py_NewRef(arguments);
    int said = queue_put((RecordQueue *)object, &item);
    if (said != QUEUED && said != FIRST)
        item_clear(&item);
    return said < 0 ? NULL : PyLong_FromLong(said);
}

static PyObject *queue_first(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    RecordQueue *self = (RecordQueue *)object;
    if (self->count == 0)
        Py_RETURN_NONE;
    return as_tuple(&self->items[self->head]);
}

static PyObject *queue_popleft(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    RecordQueue *self = (RecordQueue *)object;
    if (self->count == 0)
        return PyErr_Format(PyExc_IndexError, "no record is queued");
    Item item = queue_pop(self);
    item_clear(&item);
    Py_RETURN_NONE;
}

static PyObject *queue_settle(PyObject *object, PyObject *cost)
{
    RecordQueue *self = (RecordQueue *)object;
    long long moved = PyLong_AsLongLong(cost);
    if (moved == -1 && PyErr_Occurred())
        return NULL;
    self->queued -= moved;
    self->moving = self->count != 0;
    return PyBool_FromLong(self->moving);
}

static PyObject *queue_waiting(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    RecordQueue *self = (RecordQueue *)object;
    /* Memory comes first: a collection of garbage runs anything. Others may add meanwhile, or take some away. */
    PyObject *found = PyList_New(0);
    if (found == NULL)
        return NULL;
    for (size_t at = 0; at < self->count; at++)
        if (PyList_Append(found, self->items[(self->head + at) & (self->room - 1)].record) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    return found;
}

static PyObject *queue_close(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    RecordQueue *self = (RecordQueue *)object;
    PyObject *left = PyList_New(0);
    if (left == NULL)
        return NULL;
    self->closed = 1;
    while (self->count) {
        Item item = queue_pop(self);
        int failed = PyList_Append(left, item.record);
        item_clear(&item);
        if (failed) {
            Py_DECREF(left);
            return NULL;
        }
    }
    return left;
}

/* Moves records from the front into their batches, up to the first that needs more; gives what they cost. */
static PyObject *queue_move(PyObject *object, PyObject *accumulator)
{
    RecordQueue *self = (RecordQueue *)object;
    long long moved = 0;
    if (!PyObject_TypeCheck(accumulator, &isr_JoinerType))
        return PyErr_Format(PyExc_TypeError, "move() takes an accumulator");
    Joiner *joiner = (Joiner *)accumulator;
    while (self->count && !isr_is_barred(joiner)) {
        /* Others may add while memory is allocated, and the ring may lie elsewhere then. Only this thread takes away. */
        Item item = self->items[self->head];
        if (item.arguments != NULL)
            break;
        PyObject *delivery = isr_join(joiner, item.topic, item.value, item.key);
        if (delivery == NULL) {
            /* Python takes it, or says what is wrong with it. */
            PyErr_Clear();
            break;
        }
        queue_pop(self);
        Handed *record = (Handed *)item.record;
        Py_XSETREF(record->delivery, delivery);
        moved += item.cost;
        int has_told = record->callbacks != NULL && record->callbacks != Py_None;
        PyObject *told = has_told ? PyObject_CallMethodNoArgs(item.record, name_moved) : Py_NewRef(Py_None);
        item_clear(&item);
        if (told == NULL)
            return NULL;
        Py_DECREF(told);
    }
    return PyLong_FromLongLong(moved);
}

static Py_ssize_t queue_length(PyObject *object)
{
    return (Py_ssize_t)((RecordQueue *)object)->count;
}

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"most", NULL};
    long long most;
    if (!PyArg_ParseTupleAndKeywords(args, named, "L", names, &most))
        return NULL;
    RecordQueue *self = (RecordQueue *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->most = most;
    self->born_after = forks;
    return (PyObject *)self;
}

static int queue_traverse(RecordQueue *self, visitproc visit, void *arg)
{
    for (size_t at = 0; at < self->count; at++) {
        Item *item = &self->items[(self->head + at) & (self->room - 1)];
        Py_VISIT(item->record);
        Py_VISIT(item->arguments);
    }
    return 0;
}

static int queue_clear(RecordQueue *self)
{
    while (self->count) {
        Item item = queue_pop(self);
        item_clear(&item);
    }
    return 0;
}

static void queue_dealloc(RecordQueue *self)
{
    PyObject_GC_UnTrack(self);
    queue_clear(self);
    PyMem_Free(self->items);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef queue_methods[] = {
    {"offer", queue_offer, METH_VARARGS,
     PyDoc_STR("offer(record, cost, deadline, arguments): queue a record that costs so many bytes, with the time by which its "
               "outcome must be known and what `try_append` takes; gives FULL, QUEUED, FIRST (it is queued, and the one "
               "that takes must be told) or CLOSED.")},
    {"first", queue_first, METH_NOARGS, PyDoc_STR("The first record with what `offer` was given, or None.")},
    {"popleft", queue_popleft, METH_NOARGS, PyDoc_STR("Take the first record away.")},
    {"settle", queue_settle, METH_O,
     PyDoc_STR("settle(cost): records of this cost were taken away. Whether there are others; if not, the next one is a first "
               "one.")},
    {"waiting", queue_waiting, METH_NOARGS, PyDoc_STR("The records in it.")},
    {"close", queue_close, METH_NOARGS,
     PyDoc_STR("It takes nothing more; gives the records that nobody will take.")},
    {"move", queue_move, METH_O,
     PyDoc_STR("move(accumulator): have those in front join their batches, as far as nothing must be decided; gives what they "
               "cost.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef queue_members[] = {
    {"queued", T_LONGLONG, offsetof(RecordQueue, queued), 0, PyDoc_STR("Bytes.")},
    {"moving", T_BOOL, offsetof(RecordQueue, moving), 0, PyDoc_STR("Whether somebody is going to take it.")},
    {NULL, 0, 0, 0, NULL},
};

static PySequenceMethods queue_as_sequence = {.sq_length = queue_length};

static PyTypeObject RecordQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.RecordQueue",
    .tp_doc = PyDoc_STR("RecordQueue(most): records from any number of threads for one that takes them. At most `most` bytes "
                        "are queued, and one record more."),
    .tp_basicsize = sizeof(RecordQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = queue_new,
    .tp_traverse = (traverseproc)queue_traverse,
    .tp_clear = (inquiry)queue_clear,
    .tp_dealloc = (destructor)queue_dealloc,
    .tp_methods = queue_methods,
    .tp_members = queue_members,
    .tp_as_sequence = &queue_as_sequence,
};

/* ---- Handed: the base of HandedOver ---- */

static int handed_traverse(Handed *self, visitproc visit, void *arg)
{
    Py_VISIT(self->delivery);
    Py_VISIT(self->lost);
    Py_VISIT(self->callbacks);
    Py_VISIT(self->producer);
    return 0;
}

static int handed_clear(Handed *self)
{
    Py_CLEAR(self->delivery);
    Py_CLEAR(self->lost);
    Py_CLEAR(self->callbacks);
    Py_CLEAR(self->producer);
    return 0;
}

static void handed_dealloc(Handed *self)
{
    PyObject_GC_UnTrack(self);
    handed_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef handed_members[] = {
    {"_delivery", T_OBJECT, offsetof(Handed, delivery), 0, PyDoc_STR("Once it is in a batch.")},
    {"_lost", T_OBJECT, offsetof(Handed, lost), 0, PyDoc_STR("Once it will never be in one.")},
    {"_callbacks", T_OBJECT, offsetof(Handed, callbacks), 0, PyDoc_STR("A list, or None.")},
    {"_producer", T_OBJECT, offsetof(Handed, producer), 0, PyDoc_STR("Whose `send` has made it.")},
    {"_looked_at", T_BOOL, offsetof(Handed, looked_at), 0,
     PyDoc_STR("Whether a caller has asked for the outcome, or has received it.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HandedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Handed",
    .tp_doc = PyDoc_STR("A record that is handed over, and its outcome."),
    .tp_basicsize = sizeof(Handed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_traverse = (traverseproc)handed_traverse,
    .tp_clear = (inquiry)handed_clear,
    .tp_dealloc = (destructor)handed_dealloc,
    .tp_members = handed_members,
};

/* ---- Entrance: where a thread puts a record that needs nothing special ---- */

typedef struct {
    PyObject_HEAD
    RecordQueue *queue;
    Joiner *joiner;
    PyObject *portal, *begin;
    PyTypeObject *kind;
    double seconds;
    long long record_cost;
    vectorcallfunc vectorcall;
} Entrance;

/* Whether the thread of the producer still takes something; 0 leaves no error behind. */
static int is_open(PyObject *portal)
{
    PyObject *found = PyObject_GetAttr(portal, name_closed);
    int is = found == Py_False;
    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return is;
}

static PyObject *entrance_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Entrance *self = (Entrance *)callable;
    Joiner *joiner = self->joiner;
    struct timespec now;
    if (PyVectorcall_NARGS(flags) != 4 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes an owner, a topic, a value and a key");
    PyObject *owner = args[0], *topic = args[1], *value = args[2], *key = args[3];
    if (!isr_is_plain(topic, value, key) || !joiner->direct || isr_is_barred(joiner) || !is_open(self->portal))
        Py_RETURN_NONE;
    if (!isr_is_topic(PyDict_GetItemWithError(joiner->topics, topic))) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (isr_most(joiner, value, key) > joiner->largest)
        Py_RETURN_NONE;
    PyObject *record = self->kind->tp_alloc(self->kind, 0);
    if (record == NULL)
        return NULL;
    ((Handed *)record)->producer = Py_NewRef(owner);
    clock_gettime(CLOCK_MONOTONIC, &now);
    Item item = {
        .record = Py_NewRef(record),
        .topic = Py_NewRef(topic),
        .value = Py_NewRef(value),
        .key = Py_NewRef(key),
        .arguments = NULL,
        .cost = self->record_cost + PyBytes_GET_SIZE(value),
        .deadline = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 + self->seconds,
    };
    int said = queue_put(self->queue, &item);
    if (said == QUEUED)
        return record;
    if (said == FIRST) {
        PyObject *begun = PyObject_CallNoArgs(self->begin);
        if (begun != NULL) {
            Py_DECREF(begun);
            return record;
        }
        /* The thread takes nothing more: the next call must fail, too. */
        self->queue->moving = 0;
    } else {
        item_clear(&item);
    }
    Py_DECREF(record);
    if (said == FIRST || said < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *entrance_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"queue", "accumulator", "portal", "begin", "kind", "seconds", "record_cost", NULL};
    PyObject *queue, *joiner, *portal, *begin;
    PyTypeObject *kind;
    double seconds;
    long long cost;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!O!OOO!dL", names, &RecordQueueType, &queue, &isr_JoinerType, &joiner,
                                     &portal, &begin, &PyType_Type, &kind, &seconds, &cost))
        return NULL;
    if (!PyType_IsSubtype(kind, &HandedType))
        return PyErr_Format(PyExc_TypeError, "%s is no class of records that are handed over", kind->tp_name);
    Entrance *self = (Entrance *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->queue = (RecordQueue *)Py_NewRef(queue);
    self->joiner = (Joiner *)Py_NewRef(joiner);
    self->portal = Py_NewRef(portal);
    self->begin = Py_NewRef(begin);
    self->kind = (PyTypeObject *)Py_NewRef(kind);
    self->seconds = seconds;
    self->record_cost = cost;
    self->vectorcall = entrance_call;
    return (PyObject *)self;
}

static int entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(self->queue);
    Py_VISIT(self->joiner);
    Py_VISIT(self->portal);
    Py_VISIT(self->begin);
    Py_VISIT(self->kind);
    return 0;
}

static void entrance_dealloc(Entrance *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->queue);
    Py_XDECREF(self->joiner);
    Py_XDECREF(self->portal);
    Py_XDECREF(self->begin);
    Py_XDECREF(self->kind);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject EntranceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Entrance",
    .tp_doc = PyDoc_STR("Entrance(queue, accumulator, portal, begin, kind, seconds, record_cost): called with an owner, a "
                        "topic, a value and a key, gives what `send` gives, or None where there is more to decide."),
    .tp_basicsize = sizeof(Entrance),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = entrance_new,
    .tp_traverse = (traverseproc)entrance_traverse,
    .tp_dealloc = (destructor)entrance_dealloc,
    .tp_vectorcall_offset = offsetof(Entrance, vectorcall),
    .tp_call = PyVectorcall_Call,
};

int isr_add_handing(PyObject *module)
{
    name_moved = PyUnicode_InternFromString("_moved");
    name_closed = PyUnicode_InternFromString("closed");
    empty_tuple = PyTuple_New(0);
    if (name_moved == NULL || name_closed == NULL || empty_tuple == NULL)
        return -1;
    if (pthread_atfork(NULL, NULL, count_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyModule_AddType(module, &RecordQueueType) < 0 || PyModule_AddType(module, &HandedType) < 0 ||
        PyModule_AddIntMacro(module, FULL) < 0 || PyModule_AddIntMacro(module, QUEUED) < 0 ||
        PyModule_AddIntMacro(module, FIRST) < 0 || PyModule_AddIntMacro(module, CLOSED) < 0)
        return -1;
    return PyModule_AddType(module, &EntranceType);
}
