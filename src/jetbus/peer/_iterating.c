/* The loop over a fetch: iterating.py's generator, compiled.
 *
 * An async generator wraps every value that it yields, for the loop to unwrap. Here `await` takes an event that is there
 * and is done; one that is yet to come is awaited by the fetch's own coroutine. Nothing is taken before it is awaited,
 * so nothing is lost with a task that is cancelled before it runs.
 *
 * Only the stable ABI of Python 3.11 is used: one build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* The loop, and what it awaits: each time itself. */
typedef struct {
    PyObject_HEAD
    PyObject *fetch;
    PyObject *taken;     /* iterates over the events that are there; NULL when the fetch is to be asked for it */
    PyObject *coroutine; /* waits for an event that is not there; NULL when nobody waits */
} Iterating;

static PyObject *
iterating_aiter(PyObject *self)
{
    return Py_NewRef(self);
}

static PyObject *
iterating_await(PyObject *self)
{
    if (((Iterating *)self)->coroutine != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "somebody waits for the next event of this loop already; begin a loop each");
        return NULL;
    }
    return Py_NewRef(self);
}

/* An event that is there. NULL if there is none, or with an error. */
static PyObject *
take(Iterating *self)
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
begin_to_wait(Iterating *self)
{
    if (self->coroutine == NULL)
        self->coroutine = PyObject_CallMethod(self->fetch, "__anext__", NULL);
    return self->coroutine == NULL ? -1 : 0;
}

static PySendResult
iterating_send(PyObject *object, PyObject *sent, PyObject **result)
{
    Iterating *self = (Iterating *)object;
    if (self->coroutine == NULL) {
        *result = take(self);
        if (*result != NULL)
            return PYGEN_RETURN;
        if (PyErr_Occurred() || begin_to_wait(self) < 0)
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
iterating_next(PyObject *self)
{
    PyObject *result;
    if (iterating_send(self, Py_None, &result) != PYGEN_RETURN)
        return result;
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL);
    Py_DECREF(result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

/* So a task is cancelled. A coroutine that has not begun raises what is thrown, which is right for us, too. */
static PyObject *
iterating_throw(PyObject *object, PyObject *args)
{
    Iterating *self = (Iterating *)object;
    if (begin_to_wait(self) < 0)
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
iterating_close(PyObject *object, PyObject *Py_UNUSED(none))
{
    Iterating *self = (Iterating *)object;
    PyObject *coroutine = self->coroutine;
    if (coroutine == NULL)
        Py_RETURN_NONE;
    self->coroutine = NULL;
    PyObject *result = PyObject_CallMethod(coroutine, "close", NULL);
    Py_DECREF(coroutine);
    return result;
}

static PyObject *
iterating_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *fetch;
    if (!PyArg_ParseTuple(args, "O", &fetch))
        return NULL;
    Iterating *self = PyObject_GC_New(Iterating, type);
    if (self == NULL)
        return NULL;
    self->fetch = Py_NewRef(fetch);
    self->taken = NULL;
    self->coroutine = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int
iterating_traverse(PyObject *object, visitproc visit, void *arg)
{
    Iterating *self = (Iterating *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->fetch);
    Py_VISIT(self->taken);
    Py_VISIT(self->coroutine);
    return 0;
}

static int
iterating_clear(PyObject *object)
{
    Iterating *self = (Iterating *)object;
    Py_CLEAR(self->fetch);
    Py_CLEAR(self->taken);
    Py_CLEAR(self->coroutine);
    return 0;
}

static void
iterating_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    iterating_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef iterating_methods[] = {
    {"throw", iterating_throw, METH_VARARGS, "Raise an error where the next event is waited for."},
    {"close", iterating_close, METH_NOARGS, "Wait no more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot iterating_slots[] = {
    {Py_tp_doc, "The events of a fetch, one after the other."},
    {Py_tp_new, iterating_new},
    {Py_tp_dealloc, iterating_dealloc},
    {Py_tp_traverse, iterating_traverse},
    {Py_tp_clear, iterating_clear},
    {Py_tp_methods, iterating_methods},
    {Py_am_aiter, iterating_aiter},
    {Py_am_anext, iterating_aiter},
    {Py_am_await, iterating_await},
    {Py_am_send, iterating_send},
    {Py_tp_iter, iterating_aiter},
    {Py_tp_iternext, iterating_next},
    {0, NULL},
};

static PyType_Spec iterating_spec = {
    .name = "jetbus.peer._iterating.Iterating",
    .basicsize = sizeof(Iterating),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = iterating_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *iterating = PyType_FromSpec(&iterating_spec);
    if (iterating == NULL)
        return -1;
    int added = PyModule_AddType(module, (PyTypeObject *)iterating);
    Py_DECREF(iterating);
    return added;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_iterating",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__iterating(void)
{
    return PyModuleDef_Init(&module);
}
