/* `insync.replication.client._joining`: a record joins the open batch of its partition, and `send` is awaited.
 *
 * Everything here has a twin in Python that does the same to the same objects: `Joiner` is `_accumulator.join`,
 * `Sending` is the coroutine of `Producer.send`. The fields of those objects are slots, whose offsets `bind` looks up
 * once. So there is no state in C that could differ from Python's, and what a record needs beyond the way that most
 * records take is left to Python: this code then changes nothing, and says None.
 *
 * Producers for threads and asyncio hand their records over to the thread of the producer. `Entrance` does for most
 * records what their `send` does, and `RecordQueue` is the queue between the threads, a twin of `_handover.RecordQueue`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <time.h>

/* One field of a class with slots. */
typedef struct {
    const char *name;
    Py_ssize_t offset;
} Field;

/* Accumulator */
enum { USED, WAITING, BUFFER_MEMORY, TOPICS, BARRED, UNYIELDED, LARGEST };
static Field of_accumulator[] = {{"used", 0},   {"waiting", 0},   {"_buffer_memory", 0}, {"_topics", 0},
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
    {"accumulator", of_accumulator, NULL}, {"queues", of_queues, NULL}, {"topic", of_topic, NULL},
    {"queue", of_queue, NULL},             {"batch", of_batch, NULL},   {"delivery", of_delivery, NULL},
};
enum { ACCUMULATOR_TYPE, QUEUES_TYPE, TOPIC_TYPE, QUEUE_TYPE, BATCH_TYPE, DELIVERY_TYPE, TYPES };

static long long record_overhead;
static PyObject *name_date, *name_close, *name_throw, *empty_tuple, *only_key;

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

static inline int is_a(PyObject *object, int kind)
{
    return object != NULL && Py_TYPE(object) == classes[kind].type;
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

static double system_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Joiner ---- */

typedef struct {
    PyObject_HEAD
    PyObject *accumulator;
    PyObject *clock; /* NULL: the system's */
    vectorcallfunc vectorcall;
} Joiner;

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
    if (headers != Py_None && PyList_Append(headers, empty_tuple) < 0)
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

/* The delivery of a record that has joined. NULL with no error set: there is more to decide, and nothing is taken. */
static PyObject *join(Joiner *self, PyObject *topic, PyObject *value, PyObject *key)
{
    PyObject *accumulator = self->accumulator, *topics, *queues, *queue, *batch, *delivery, *made = NULL;
    PyObject *values, *keys, *new_size, *new_used, *index;
    long long most, enough, used, used_by_now, memory, waiting, size, taken;
    /* Other strings and bytes may have functions of their own: Python calls those. */
    if (!PyBytes_CheckExact(value) || !PyUnicode_CheckExact(topic))
        return NULL;
    topics = get(accumulator, &of_accumulator[TOPICS]);
    if (topics == NULL || !PyDict_CheckExact(topics))
        return NULL;
    queues = PyDict_GetItemWithError(topics, topic);
    if (!is_a(queues, QUEUES_TYPE))
        return NULL;
    size = record_overhead + PyBytes_GET_SIZE(value);
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
        !whole(get(accumulator, &of_accumulator[USED]), &used) ||
        !whole(get(accumulator, &of_accumulator[BUFFER_MEMORY]), &memory) ||
        !whole(get(accumulator, &of_accumulator[WAITING]), &waiting))
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
    if (!whole(get(accumulator, &of_accumulator[USED]), &used_by_now) || used_by_now != used)
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
    set(accumulator, &of_accumulator[USED], new_used);
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
    PyObject *delivery = join((Joiner *)callable, args[0], args[1], args[2]);
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

static PyTypeObject JoinerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client._joining.Joiner",
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

/* ---- Sender: what `Producer.send` is while its block is open ---- */

typedef struct {
    PyObject_HEAD
    Joiner *joiner;
    PyObject *in_full; /* the method of Python: it takes any arguments */
    PyObject *pause;   /* lets other tasks run */
    long long most;    /* records between two pauses */
    char closed;
    vectorcallfunc vectorcall;
} Sender;

/* ---- Sending: one call of it, to be awaited ---- */

typedef struct {
    PyObject_HEAD
    Sender *sender;
    PyObject *topic, *value, *key;
    PyObject *inner;    /* the coroutine that goes on with it */
    PyObject *delivery; /* where `inner` is only a pause */
    enum { NEW, BEGUN, OVER } state;
} Sending;

static PyTypeObject SendingType;
static Sending *spare; /* the memory of the last one: a loop that sends needs one at a time */

static void sending_empty(Sending *self)
{
    self->state = OVER;
    Py_CLEAR(self->sender);
    Py_CLEAR(self->topic);
    Py_CLEAR(self->value);
    Py_CLEAR(self->key);
    Py_CLEAR(self->inner);
    Py_CLEAR(self->delivery);
}

/* The counter of records since the last pause lies in the accumulator, where Python counts, too. */
static int is_pause_due(Sender *sender)
{
    PyObject *accumulator = sender->joiner->accumulator, *counted;
    long long count;
    if (!whole(get(accumulator, &of_accumulator[UNYIELDED]), &count))
        count = 0;
    counted = PyLong_FromLongLong(++count);
    if (counted == NULL)
        return -1;
    set(accumulator, &of_accumulator[UNYIELDED], counted);
    return count >= sender->most;
}

/* Either the delivery at once, or `inner` and perhaps `delivery` are set; -1 with an error set. */
static int sending_begin(Sending *self, PyObject **delivery)
{
    Sender *sender = self->sender;
    PyObject *taken = NULL;
    *delivery = NULL;
    self->state = BEGUN;
    if (!sender->closed && get(sender->joiner->accumulator, &of_accumulator[BARRED]) == Py_None) {
        taken = join(sender->joiner, self->topic, self->value, self->key);
        if (taken == NULL && PyErr_Occurred())
            return -1;
    }
    if (taken == NULL) {
        PyObject *args[] = {self->topic, self->value, self->key};
        self->inner = PyObject_Vectorcall(sender->in_full, args, 2, only_key);
    } else {
        int due = is_pause_due(sender);
        if (due <= 0) {
            *delivery = taken;
            /* It is taken, whatever went wrong with the counter. */
            if (due < 0)
                PyErr_Clear();
            return 0;
        }
        self->delivery = taken;
        self->inner = PyObject_CallNoArgs(sender->pause);
    }
    return self->inner == NULL ? -1 : 0;
}

static PySendResult sending_send(PyObject *object, PyObject *sent, PyObject **result)
{
    Sending *self = (Sending *)object;
    PySendResult status;
    *result = NULL;
    if (self->state == OVER) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return PYGEN_ERROR;
    }
    if (self->state == NEW) {
        if (sent != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
            return PYGEN_ERROR;
        }
        if (sending_begin(self, result) < 0) {
            sending_empty(self);
            return PYGEN_ERROR;
        }
        if (*result != NULL) {
            self->state = OVER;
            return PYGEN_RETURN;
        }
    } else if (self->inner == NULL) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return PYGEN_ERROR;
    }
    /* While it runs, it is not here: it cannot be entered twice. */
    PyObject *inner = self->inner;
    self->inner = NULL;
    status = PyIter_Send(inner, sent, result);
    if (status == PYGEN_NEXT) {
        self->inner = inner;
        return status;
    }
    Py_DECREF(inner);
    if (status == PYGEN_RETURN && self->delivery != NULL)
        Py_SETREF(*result, Py_NewRef(self->delivery));
    sending_empty(self);
    return status;
}

static PyObject *as_returned(PySendResult status, PyObject *result)
{
    if (status == PYGEN_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *sending_next(PyObject *self)
{
    PyObject *result;
    PySendResult status = sending_send(self, Py_None, &result);
    return as_returned(status, result);
}

static PyObject *sending_send_method(PyObject *self, PyObject *sent)
{
    PyObject *result;
    PySendResult status = sending_send(self, sent, &result);
    return as_returned(status, result);
}

static PyObject *raise_thrown(PyObject *const *args, Py_ssize_t count)
{
    PyObject *type = args[0], *value = count > 1 ? args[1] : Py_None;
    PyObject *traceback = count > 2 && args[2] != Py_None ? args[2] : NULL;
    if (traceback != NULL && !PyTraceBack_Check(traceback))
        return PyErr_Format(PyExc_TypeError, "throw() third argument must be a traceback object");
    if (PyExceptionInstance_Check(type)) {
        value = type;
        type = (PyObject *)Py_TYPE(value);
        if (traceback == NULL) {
            PyErr_SetObject(type, value);
            return NULL;
        }
    } else if (!PyExceptionClass_Check(type)) {
        return PyErr_Format(PyExc_TypeError, "exceptions must be classes or instances deriving from "
                                             "BaseException, not %s", Py_TYPE(type)->tp_name);
    }
    PyErr_Restore(Py_NewRef(type), value == Py_None ? NULL : Py_NewRef(value), Py_XNewRef(traceback));
    return NULL;
}

static PyObject *sending_throw(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Sending *self = (Sending *)object;
    if (count < 1 || count > 3)
        return PyErr_Format(PyExc_TypeError, "throw() takes one to three arguments");
    if (self->state == OVER)
        return PyErr_Format(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    if (self->state == NEW) {
        sending_empty(self);
        return raise_thrown(args, count);
    }
    if (self->inner == NULL)
        return PyErr_Format(PyExc_ValueError, "coroutine already executing");
    PyObject *inner = self->inner, *method = PyObject_GetAttr(inner, name_throw), *result;
    if (method == NULL)
        return NULL;
    self->inner = NULL;
    result = PyObject_Vectorcall(method, args, count, NULL);
    Py_DECREF(method);
    if (result != NULL) {
        self->inner = inner;
        return result;
    }
    Py_DECREF(inner);
    /* A pause that has ended: the record was taken. */
    if (self->delivery != NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) {
        PyErr_Clear();
        PyErr_SetObject(PyExc_StopIteration, self->delivery);
    }
    sending_empty(self);
    return NULL;
}

static PyObject *sending_close(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    Sending *self = (Sending *)object;
    if (self->state == BEGUN && self->inner == NULL)
        return PyErr_Format(PyExc_ValueError, "coroutine already executing");
    PyObject *inner = self->inner, *closed;
    self->inner = NULL;
    sending_empty(self);
    if (inner == NULL)
        Py_RETURN_NONE;
    closed = PyObject_CallMethodNoArgs(inner, name_close);
    Py_DECREF(inner);
    return closed;
}

static PyObject *sending_await(PyObject *object)
{
    Sending *self = (Sending *)object;
    if (self->state == BEGUN && self->inner != NULL)
        return PyErr_Format(PyExc_RuntimeError, "coroutine is being awaited already");
    return Py_NewRef(object);
}

/* What tools ask a coroutine that waits: the one that goes on with it answers. */
static PyObject *sending_frame(PyObject *object, void *name)
{
    PyObject *inner = ((Sending *)object)->inner;
    return inner != NULL ? PyObject_GetAttrString(inner, name)
                         : PyErr_Format(PyExc_AttributeError, "%s: it does not wait", (const char *)name);
}

static int sending_traverse(Sending *self, visitproc visit, void *arg)
{
    Py_VISIT(self->sender);
    Py_VISIT(self->topic);
    Py_VISIT(self->value);
    Py_VISIT(self->key);
    Py_VISIT(self->inner);
    Py_VISIT(self->delivery);
    return 0;
}

static void warn_of_unawaited(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_WarnEx(PyExc_RuntimeWarning, "coroutine 'Producer.send' was never awaited", 1) < 0)
        PyErr_WriteUnraisable((PyObject *)&SendingType);
    PyErr_Restore(type, value, traceback);
}

static int sending_clear(Sending *self)
{
    int unawaited = self->state == NEW;
    sending_empty(self);
    if (unawaited)
        warn_of_unawaited();
    return 0;
}

static void sending_dealloc(Sending *self)
{
    PyObject_GC_UnTrack(self);
    sending_clear(self);
    if (spare == NULL)
        spare = self;
    else
        PyObject_GC_Del(self);
}

static PyAsyncMethods sending_async = {
    .am_await = sending_await,
    .am_send = sending_send,
};

static PyMethodDef sending_methods[] = {
    {"send", sending_send_method, METH_O, PyDoc_STR("As a coroutine's.")},
    {"throw", (PyCFunction)(void (*)(void))sending_throw, METH_FASTCALL, PyDoc_STR("As a coroutine's.")},
    {"close", sending_close, METH_NOARGS, PyDoc_STR("As a coroutine's.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef sending_attributes[] = {
    {"cr_frame", sending_frame, NULL, PyDoc_STR("While it waits: where."), "cr_frame"},
    {"cr_await", sending_frame, NULL, PyDoc_STR("While it waits: for what."), "cr_await"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject SendingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client._joining.Sending",
    .tp_doc = PyDoc_STR("One call of `Producer.send`. To be awaited, as a coroutine: nothing happens before."),
    .tp_basicsize = sizeof(Sending),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_as_async = &sending_async,
    .tp_iternext = sending_next,
    .tp_methods = sending_methods,
    .tp_getset = sending_attributes,
    .tp_traverse = (traverseproc)sending_traverse,
    .tp_clear = (inquiry)sending_clear,
    .tp_dealloc = (destructor)sending_dealloc,
};

static PyObject *sender_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Sender *self = (Sender *)callable;
    PyObject *key = Py_None;
    int is_plain = PyVectorcall_NARGS(flags) == 2;
    if (is_plain && names != NULL && PyTuple_GET_SIZE(names) != 0) {
        is_plain = PyTuple_GET_SIZE(names) == 1 &&
                   PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), PyTuple_GET_ITEM(only_key, 0)) == 0;
        key = args[2];
    }
    if (!is_plain)
        return PyObject_Vectorcall(self->in_full, args, flags, names);
    Sending *made = spare;
    if (made != NULL) {
        spare = NULL;
        PyObject_Init((PyObject *)made, &SendingType);
    } else {
        made = PyObject_GC_New(Sending, &SendingType);
        if (made == NULL)
            return NULL;
    }
    made->sender = (Sender *)Py_NewRef(self);
    made->topic = Py_NewRef(args[0]);
    made->value = Py_NewRef(args[1]);
    made->key = Py_NewRef(key);
    made->inner = made->delivery = NULL;
    made->state = NEW;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

static PyObject *sender_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"joiner", "in_full", "pause", "most", NULL};
    PyObject *joiner, *in_full, *pause;
    long long most;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!OOL", names, &JoinerType, &joiner, &in_full, &pause, &most))
        return NULL;
    Sender *self = (Sender *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->joiner = (Joiner *)Py_NewRef(joiner);
    self->in_full = Py_NewRef(in_full);
    self->pause = Py_NewRef(pause);
    self->most = most;
    self->closed = 0;
    self->vectorcall = sender_call;
    return (PyObject *)self;
}

static PyObject *sender_close(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    ((Sender *)self)->closed = 1;
    Py_RETURN_NONE;
}

static int sender_traverse(Sender *self, visitproc visit, void *arg)
{
    Py_VISIT(self->joiner);
    Py_VISIT(self->in_full);
    Py_VISIT(self->pause);
    return 0;
}

static void sender_dealloc(Sender *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->joiner);
    Py_XDECREF(self->in_full);
    Py_XDECREF(self->pause);
    Py_TYPE(self)->tp_free(self);
}

/* What else the method has (its name, its code): whoever looks finds the coroutine function that this stands for. */
static PyObject *sender_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Sender *)self)->in_full, name);
}

static PyObject *sender_wrapped(PyObject *self, void *Py_UNUSED(nothing))
{
    return Py_NewRef(((Sender *)self)->in_full);
}

static PyObject *sender_doc(PyObject *self, void *Py_UNUSED(nothing))
{
    return PyObject_GetAttrString(((Sender *)self)->in_full, "__doc__");
}

static PyGetSetDef sender_attributes[] = {
    {"__doc__", sender_doc, NULL, NULL, NULL},
    {"__wrapped__", sender_wrapped, NULL, PyDoc_STR("The method; its signature is this one's."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef sender_methods[] = {
    {"close", sender_close, METH_NOARGS, PyDoc_STR("From now on every call is one of the method of Python.")},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject SenderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client._joining.Sender",
    .tp_doc = PyDoc_STR("Sender(joiner, in_full, pause, most): called as `Producer.send`, gives what is awaited."),
    .tp_basicsize = sizeof(Sender),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = sender_new,
    .tp_traverse = (traverseproc)sender_traverse,
    .tp_dealloc = (destructor)sender_dealloc,
    .tp_methods = sender_methods,
    .tp_getset = sender_attributes,
    .tp_getattro = sender_getattr,
    .tp_vectorcall_offset = offsetof(Sender, vectorcall),
    .tp_call = PyVectorcall_Call,
};

/* ---- RecordQueue: records on their way from other threads ---- */

/* Each function here runs from its beginning to its end while its thread holds the interpreter, so that other threads
 * see all of what it does or nothing: what `_handover.RecordQueue` needs a lock for. Where Python code runs in between
 * (`join`, a function that is told), the comments say what may have changed. */

/* HandedOver, and the field of its subclasses */
enum { H_DELIVERY, H_LOST, H_LOOKED_AT, H_CALLBACKS };
static Field of_record[] = {{"_delivery", 0}, {"_lost", 0}, {"_looked_at", 0}, {"_callbacks", 0}, {NULL, 0}};
static PyTypeObject *record_type;
static PyObject *name_moved, *name_closed, *name_is_closed;

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
    if (!PyArg_ParseTuple(args, "OLdO!:offer", &record, &item.cost, &item.deadline, &PyTuple_Type, &arguments))
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
static PyObject *queue_move(PyObject *object, PyObject *joiner)
{
    RecordQueue *self = (RecordQueue *)object;
    long long moved = 0;
    if (!PyObject_TypeCheck(joiner, &JoinerType))
        return PyErr_Format(PyExc_TypeError, "move() takes a Joiner");
    const Field *barred = &of_accumulator[BARRED];
    while (self->count && get(((Joiner *)joiner)->accumulator, barred) == Py_None) {
        /* Others may add while `join` runs, and the ring may lie elsewhere then. Only this thread takes away. */
        Item item = self->items[self->head];
        if (item.arguments != NULL)
            break;
        PyObject *delivery = join((Joiner *)joiner, item.topic, item.value, item.key);
        if (delivery == NULL) {
            /* Python takes it, or says what is wrong with it. */
            PyErr_Clear();
            break;
        }
        queue_pop(self);
        set(item.record, &of_record[H_DELIVERY], delivery);
        moved += item.cost;
        PyObject *callbacks = get(item.record, &of_record[H_CALLBACKS]);
        PyObject *told = callbacks == Py_None ? Py_None : PyObject_CallMethodNoArgs(item.record, name_moved);
        if (callbacks != Py_None)
            Py_XDECREF(told);
        item_clear(&item);
        if (told == NULL)
            return NULL;
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
    {"offer", queue_offer, METH_VARARGS, PyDoc_STR("offer(record, cost, deadline, arguments): see the twin.")},
    {"first", queue_first, METH_NOARGS, PyDoc_STR("See the twin.")},
    {"popleft", queue_popleft, METH_NOARGS, PyDoc_STR("See the twin.")},
    {"settle", queue_settle, METH_O, PyDoc_STR("settle(cost): see the twin.")},
    {"waiting", queue_waiting, METH_NOARGS, PyDoc_STR("See the twin.")},
    {"close", queue_close, METH_NOARGS, PyDoc_STR("See the twin.")},
    {"move", queue_move, METH_O, PyDoc_STR("move(joiner): have those in front join their batches, as far as nothing must be decided; gives "
               "what they cost.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef queue_members[] = {
    {"queued", T_LONGLONG, offsetof(RecordQueue, queued), 0, PyDoc_STR("Bytes.")},
    {"moving", T_BOOL, offsetof(RecordQueue, moving), 0, PyDoc_STR("Whether somebody is going to take it.")},
    {NULL, 0, 0, 0, NULL},
};

static PySequenceMethods queue_as_sequence = {.sq_length = queue_length};

static PyTypeObject RecordQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client._joining.RecordQueue",
    .tp_doc = PyDoc_STR("RecordQueue(most): as `_handover.RecordQueue`, without a lock."),
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

/* ---- Entrance: where a thread puts a record that needs nothing special ---- */

typedef struct {
    PyObject_HEAD
    RecordQueue *queue;
    Joiner *joiner;
    PyObject *producer, *portal, *begin;
    PyTypeObject *kind;
    Field owner; /* of `kind` */
    double seconds;
    long long record_cost;
    vectorcallfunc vectorcall;
} Entrance;

/* Whether an attribute is False; 0 leaves no error behind. */
static int is_false(PyObject *of, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(of, name);
    int is = found == Py_False;
    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return is;
}

static PyObject *entrance_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Entrance *self = (Entrance *)callable;
    PyObject *accumulator = self->joiner->accumulator, *topics, *record;
    long long size, largest;
    struct timespec now;
    if (PyVectorcall_NARGS(flags) != 4 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "takes an owner, a topic, a value and a key");
    PyObject *owner = args[0], *topic = args[1], *value = args[2], *key = args[3];
    if (!PyBytes_CheckExact(value) || !PyUnicode_CheckExact(topic) || (key != Py_None && !PyBytes_CheckExact(key)))
        Py_RETURN_NONE;
    if (!is_false(self->portal, name_closed) || !is_false(self->producer, name_is_closed) ||
        get(accumulator, &of_accumulator[BARRED]) != Py_None)
        Py_RETURN_NONE;
    topics = get(accumulator, &of_accumulator[TOPICS]);
    if (topics == NULL || !PyDict_CheckExact(topics) || !whole(get(accumulator, &of_accumulator[LARGEST]), &largest))
        Py_RETURN_NONE;
    if (!is_a(PyDict_GetItemWithError(topics, topic), QUEUES_TYPE)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    size = record_overhead + PyBytes_GET_SIZE(value) + (key == Py_None ? 0 : PyBytes_GET_SIZE(key));
    if (size > largest)
        Py_RETURN_NONE;
    record = self->kind->tp_alloc(self->kind, 0);
    if (record == NULL)
        return NULL;
    set(record, &of_record[H_DELIVERY], Py_NewRef(Py_None));
    set(record, &of_record[H_LOST], Py_NewRef(Py_None));
    set(record, &of_record[H_LOOKED_AT], Py_NewRef(Py_False));
    set(record, &of_record[H_CALLBACKS], Py_NewRef(Py_None));
    set(record, &self->owner, Py_NewRef(owner));
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
        /* Nobody comes: whoever is next must hear of it, too. */
        self->queue->moving = 0;
    } else {
        item_clear(&item);
    }
    Py_DECREF(record);
    if (said == FIRST || said < 0)
        return NULL;
    Py_RETURN_NONE;
}

static Py_ssize_t offset_of(PyTypeObject *type, const char *name);

static PyObject *entrance_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"queue", "joiner", "producer", "portal", "begin", "kind", "seconds", "record_cost", NULL};
    PyObject *queue, *joiner, *producer, *portal, *begin;
    PyTypeObject *kind;
    double seconds;
    long long cost;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!O!OOOO!dL", names, &RecordQueueType, &queue, &JoinerType, &joiner,
                                     &producer, &portal, &begin, &PyType_Type, &kind, &seconds, &cost))
        return NULL;
    if (record_type == NULL || !PyType_IsSubtype(kind, record_type))
        return PyErr_Format(PyExc_TypeError, "%s is no class of records", kind->tp_name);
    Field owner = {"_producer", offset_of(kind, "_producer")};
    if (owner.offset < 0)
        return NULL;
    Entrance *self = (Entrance *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->queue = (RecordQueue *)Py_NewRef(queue);
    self->joiner = (Joiner *)Py_NewRef(joiner);
    self->producer = Py_NewRef(producer);
    self->portal = Py_NewRef(portal);
    self->begin = Py_NewRef(begin);
    self->kind = (PyTypeObject *)Py_NewRef(kind);
    self->owner = owner;
    self->seconds = seconds;
    self->record_cost = cost;
    self->vectorcall = entrance_call;
    return (PyObject *)self;
}

static int entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(self->queue);
    Py_VISIT(self->joiner);
    Py_VISIT(self->producer);
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
    Py_XDECREF(self->producer);
    Py_XDECREF(self->portal);
    Py_XDECREF(self->begin);
    Py_XDECREF(self->kind);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject EntranceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client._joining.Entrance",
    .tp_doc = PyDoc_STR("Entrance(queue, joiner, producer, portal, begin, kind, seconds, record_cost): called with an "
                        "owner, a topic, a value and a key, gives what `send` gives, or None."),
    .tp_basicsize = sizeof(Entrance),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = entrance_new,
    .tp_traverse = (traverseproc)entrance_traverse,
    .tp_dealloc = (destructor)entrance_dealloc,
    .tp_vectorcall_offset = offsetof(Entrance, vectorcall),
    .tp_call = PyVectorcall_Call,
};

/* ---- the module ---- */

/* Where the slot of a class lies, or -1 with an error set. */
static Py_ssize_t offset_of(PyTypeObject *type, const char *name)
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
        for (Field *field = classes[kind].fields; field->name != NULL; field++) {
            field->offset = offset_of(given[kind], field->name);
            if (field->offset < 0)
                return NULL;
        }
    for (int kind = 0; kind < TYPES; kind++)
        Py_XSETREF(classes[kind].type, (PyTypeObject *)Py_NewRef(given[kind]));
    record_overhead = overhead;
    Py_RETURN_NONE;
}

static PyObject *bind_records(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type))
        return PyErr_Format(PyExc_TypeError, "a class is expected");
    for (Field *field = of_record; field->name != NULL; field++) {
        Py_ssize_t offset = offset_of((PyTypeObject *)type, field->name);
        if (offset < 0)
            return NULL;
        field->offset = offset;
    }
    Py_XSETREF(record_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind_records", bind_records, METH_O,
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
    if (pthread_atfork(NULL, NULL, count_fork) != 0) {
        Py_DECREF(module);
        return PyErr_NoMemory();
    }
    name_date = PyUnicode_InternFromString("date");
    name_close = PyUnicode_InternFromString("close");
    name_throw = PyUnicode_InternFromString("throw");
    empty_tuple = PyTuple_New(0);
    name_moved = PyUnicode_InternFromString("_moved");
    name_closed = PyUnicode_InternFromString("closed");
    name_is_closed = PyUnicode_InternFromString("_closed");
    only_key = Py_BuildValue("(N)", PyUnicode_InternFromString("key"));
    if (name_moved == NULL || name_closed == NULL || name_is_closed == NULL || name_date == NULL || name_close == NULL || name_throw == NULL || empty_tuple == NULL || only_key == NULL ||
        PyType_Ready(&SendingType) < 0 || PyModule_AddType(module, &JoinerType) < 0 ||
        PyModule_AddType(module, &SenderType) < 0 || PyModule_AddType(module, &SendingType) < 0 ||
        PyModule_AddType(module, &RecordQueueType) < 0 || PyModule_AddType(module, &EntranceType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
