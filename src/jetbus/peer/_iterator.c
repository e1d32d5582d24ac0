/* ``async for`` over a fetch: iterate_in_python of handles.py, compiled.
 *
 * An async generator wraps every value that it yields, for the loop to unwrap. Here `await` takes an event that is there
 * and is done; one that is yet to come is awaited by the fetch's own coroutine:
 *
 *     async for --> __anext__ (self) --> await --> events left in fetch._taken?  yes: return the next one
 *                                                                                no:  await fetch.__anext__()
 *
 * Nothing is taken before it is awaited, so nothing is lost with a task that is cancelled before it runs.
 *
 * Only the stable ABI of Python 3.11 is used: one build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* The iterator, which is its own awaitable. */
typedef struct {
    PyObject_HEAD
    PyObject *fetch;
    PyObject *taken;     /* iterates over the events that are there; NULL when the fetch has newer ones */
    PyObject *coroutine; /* waits for an event that is yet to come; NULL when nobody waits */
} FetchIterator;

static PyObject *
iterator_aiter(PyObject *self)
{
    return Py_NewRef(self);
}

static PyObject *
iterator_await(PyObject *self)
{
    if (((FetchIterator *)self)->coroutine != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "another task already waits for the next event of this loop; use one loop for each task");
        return NULL;
    }
    return Py_NewRef(self);
}

/* Return an event that is there; NULL if there is none, or with an error. */
static PyObject *
take(FetchIterator *self)
{
    if (self->taken == NULL) {
        self->taken = PyObject_GetAttrString(self->fetch, "_taken");
        if (self->taken == NULL)
            return NULL;
    }
    PyObject *taken = Py_NewRef(self->taken);
    PyObject *event = PyIter_Next(taken);
    Py_DECREF(taken);
    if (event == NULL)
        Py_CLEAR(self->taken);
    return event;
}

static int
start_waiting(FetchIterator *self)
{
    if (self->coroutine == NULL)
        self->coroutine = PyObject_CallMethod(self->fetch, "__anext__", NULL);
    return self->coroutine == NULL ? -1 : 0;
}

static PySendResult
iterator_send(PyObject *object, PyObject *sent, PyObject **result)
{
    FetchIterator *self = (FetchIterator *)object;
    if (self->coroutine == NULL) {
        *result = take(self);
        if (*result != NULL)
            return PYGEN_RETURN;
        if (PyErr_Occurred() || start_waiting(self) < 0)
            return PYGEN_ERROR;
    }
    PyObject *coroutine = Py_NewRef(self->coroutine);
    PySendResult how = PyIter_Send(coroutine, sent, result);
    Py_DECREF(coroutine);
    if (how != PYGEN_NEXT)
        Py_CLEAR(self->coroutine);
    return how;
}

static PyObject *
iterator_next(PyObject *self)
{
    PyObject *result;
    if (iterator_send(self, Py_None, &result) != PYGEN_RETURN)
        return result;
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL);
    Py_DECREF(result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

/* Cancel a task. A coroutine that has not begun raises what is thrown, which is right here, too. */
static PyObject *
iterator_throw(PyObject *object, PyObject *args)
{
    FetchIterator *self = (FetchIterator *)object;
    if (start_waiting(self) < 0)
        return NULL;
    PyObject *throw = PyObject_GetAttrString(self->coroutine, "throw");
    if (throw == NULL)
        return NULL;
    PyObject *result = PyObject_Call(throw, args, NULL);
    Py_DECREF(throw);
    if (result == NULL)
        Py_CLEAR(self->coroutine);
    return result;
}

static PyObject *
iterator_close(PyObject *object, PyObject *Py_UNUSED(none))
{
    FetchIterator *self = (FetchIterator *)object;
    PyObject *coroutine = self->coroutine;
    if (coroutine == NULL)
        Py_RETURN_NONE;
    self->coroutine = NULL;
    PyObject *result = PyObject_CallMethod(coroutine, "close", NULL);
    Py_DECREF(coroutine);
    return result;
}

static PyObject *
iterator_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *fetch;
    if (!PyArg_ParseTuple(args, "O", &fetch))
        return NULL;
    FetchIterator *self = PyObject_GC_New(FetchIterator, type);
    if (self == NULL)
        return NULL;
    self->fetch = Py_NewRef(fetch);
    self->taken = NULL;
    self->coroutine = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int
iterator_traverse(PyObject *object, visitproc visit, void *arg)
{
    FetchIterator *self = (FetchIterator *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->fetch);
    Py_VISIT(self->taken);
    Py_VISIT(self->coroutine);
    return 0;
}

static int
iterator_clear(PyObject *object)
{
    FetchIterator *self = (FetchIterator *)object;
    Py_CLEAR(self->fetch);
    Py_CLEAR(self->taken);
    Py_CLEAR(self->coroutine);
    return 0;
}

static void
iterator_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    iterator_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef iterator_methods[] = {
    {"throw", iterator_throw, METH_VARARGS, "Raise an error where the next event is waited for."},
    {"close", iterator_close, METH_NOARGS, "Stop waiting."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot iterator_slots[] = {
    {Py_tp_doc, "The events of a fetch, one after the other."},
    {Py_tp_new, iterator_new},
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_tp_methods, iterator_methods},
    {Py_am_aiter, iterator_aiter},
    {Py_am_anext, iterator_aiter},
    {Py_am_await, iterator_await},
    {Py_am_send, iterator_send},
    {Py_tp_iter, iterator_aiter},
    {Py_tp_iternext, iterator_next},
    {0, NULL},
};

static PyType_Spec iterator_spec = {
    .name = "jetbus.peer._iterator.FetchIterator",
    .basicsize = sizeof(FetchIterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = iterator_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *iterator = PyType_FromSpec(&iterator_spec);
    if (iterator == NULL)
        return -1;
    int added = PyModule_AddType(module, (PyTypeObject *)iterator);
    Py_DECREF(iterator);
    return added;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_iterator",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__iterator(void)
{
    return PyModuleDef_Init(&module);
}
