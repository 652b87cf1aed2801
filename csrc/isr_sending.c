/* What `Producer.send` is while its block is open, and what it gives: see isr_joining.c. */
#include "isr_joining.h"

static PyObject *name_close, *name_throw, *only_key;

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
    if (!whole(get(accumulator, &isr_of_accumulator[UNYIELDED]), &count))
        count = 0;
    counted = PyLong_FromLongLong(++count);
    if (counted == NULL)
        return -1;
    set(accumulator, &isr_of_accumulator[UNYIELDED], counted);
    return count >= sender->most;
}

/* Either the delivery at once, or `inner` and perhaps `delivery` are set; -1 with an error set. */
static int sending_begin(Sending *self, PyObject **delivery)
{
    Sender *sender = self->sender;
    PyObject *taken = NULL;
    *delivery = NULL;
    self->state = BEGUN;
    if (!sender->closed && get(sender->joiner->accumulator, &isr_of_accumulator[BARRED]) == Py_None) {
        taken = isr_join(sender->joiner, self->topic, self->value, self->key);
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
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Sending",
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
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!OOL", names, &isr_JoinerType, &joiner, &in_full, &pause, &most))
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
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "insync.replication.client.producer._joining.Sender",
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

int isr_add_sending(PyObject *module)
{
    name_close = PyUnicode_InternFromString("close");
    name_throw = PyUnicode_InternFromString("throw");
    only_key = Py_BuildValue("(N)", PyUnicode_InternFromString("key"));
    if (name_close == NULL || name_throw == NULL || only_key == NULL)
        return -1;
    return PyModule_AddType(module, &SenderType) < 0 || PyModule_AddType(module, &SendingType) < 0 ? -1 : 0;
}
