/* The check of JSON messages in one pass, for intake.py; and scans of JSON texts, for _texts.py.
 *
 *     _walk.h     checks texts and finds the parts of a message
 *     _reader.h   makes a Message of the parts
 *     _lane.c     scans of texts; the module
 *
 * No pointer into a text outlives the call that was given the text. Only the stable ABI of Python 3.11 is used: one
 * build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_walk.h"

#include "_reader.h"

/* -- scans of texts that may not be JSON */

/* The position behind a string whose quotation mark is at `at`, or the end. */
static Py_ssize_t
after_string(Text text, Py_ssize_t at, Py_ssize_t size)
{
    for (at++; at < size && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at + 1;
}

static int
opens_more_than(Text text, Py_ssize_t size, Py_ssize_t many)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t start = 0; start < size && count <= many; start += 128) {
        Py_ssize_t stop = start + 128 < size ? start + 128 : size;
        unsigned char some = 0;
        /* Without a branch, so that the compiler can look at many bytes at once. */
        for (Py_ssize_t at = start; at < stop; at++)
            some += IS_OPENING(text[at]);
        count += some;
    }
    return count > many;
}

/* The number of opening brackets minus that of closing ones. */
static Py_ssize_t
balance_of(Text text, Py_ssize_t size)
{
    Py_ssize_t balance = 0;
    for (Py_ssize_t start = 0; start < size; start += 64) {
        Py_ssize_t stop = start + 64 < size ? start + 64 : size;
        signed char some = 0;
        for (Py_ssize_t at = start; at < stop; at++)
            some += IS_OPENING(text[at]) - IS_CLOSING(text[at]);
        balance += some;
    }
    return balance;
}

static PyObject *
is_too_deep(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, depth_max, depth = 0, deepest = 0, at = 0;
    if (!PyArg_ParseTuple(args, "y#n:is_too_deep", &bytes, &size, &depth_max))
        return NULL;
    Text text = (Text)bytes;
    if (!opens_more_than(text, size, depth_max))
        Py_RETURN_FALSE;
    while (at < size) {
        unsigned char c = text[at];
        if (c == '"') {
            at = after_string(text, at, size);
            continue;
        }
        depth += IS_OPENING(c) - IS_CLOSING(c);
        at++;
        if (depth > deepest) {
            deepest = depth;
            /* Only the balance is still unknown, and without strings it can be had at the speed of memory. */
            if (depth == depth_max + 1 && memchr(text + at, '"', size - at) == NULL) {
                depth += balance_of(text + at, size - at);
                break;
            }
        }
    }
    return PyBool_FromLong(depth == 0 && deepest > depth_max);
}

static PyObject *
count_outer(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    int separator;
    Py_ssize_t size, depth = 0, count = 0, at = 0;
    if (!PyArg_ParseTuple(args, "y#i:count_outer", &bytes, &size, &separator))
        return NULL;
    Text text = (Text)bytes;
    while (at < size) {
        unsigned char c = text[at];
        if (c == '"') {
            at = after_string(text, at, size);
            continue;
        }
        depth += IS_OPENING(c) - IS_CLOSING(c);
        count += (c == separator) & (depth == 1);
        at++;
    }
    return PyLong_FromSsize_t(count);
}

static int
is_of_number(unsigned char c)
{
    return IS_DIGIT(c) || c == '.' || c == '-' || c == '+' || IS_E(c);
}

/* Tell whether a run of characters of numbers has an exponent of three digits or more that is not negative. */
static int
has_big_exponent(Text run, Py_ssize_t chars)
{
    for (Py_ssize_t at = 0; at + 3 < chars; at++) {
        Py_ssize_t digits = at + 1 + (run[at + 1] == '+');
        if (IS_E(run[at]) && digits + 2 < chars && IS_DIGIT(run[digits]) && IS_DIGIT(run[digits + 1]) &&
            IS_DIGIT(run[digits + 2]))
            return 1;
    }
    return 0;
}

static PyObject *
judge_numbers(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, chars_max, at = 0;
    if (!PyArg_ParseTuple(args, "y#n:judge_numbers", &bytes, &size, &chars_max))
        return NULL;
    Text text = (Text)bytes;
    long verdict = 0;
    while (at < size) {
        if (text[at] == '"') {
            at = after_string(text, at, size);
            continue;
        }
        Py_ssize_t start = at;
        while (at < size && is_of_number(text[at]))
            at++;
        Py_ssize_t chars = at - start;
        if (chars > chars_max)
            return PyLong_FromLong(2);
        if (verdict == 0 && (chars > SAFE_CHARS || has_big_exponent(text + start, chars)) &&
            is_beyond_double(text + start, chars))
            verdict = 1;
        if (chars == 0)
            at++;
    }
    return PyLong_FromLong(verdict);
}

/* -- the module */

static int
prepare(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &reader_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Reader", type);
    Py_DECREF(type);
    return failed;
}

static PyMethodDef functions[] = {
    {"is_too_deep", is_too_deep, METH_VARARGS, "Tell whether brackets are balanced and nested more than so deep."},
    {"count_outer", count_outer, METH_VARARGS, "Count separators directly inside the outermost brackets."},
    {"judge_numbers", judge_numbers, METH_VARARGS, "Return 2 for a number that is too long, 1 for one too big, else 0."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_lane",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__lane(void)
{
    return PyModuleDef_Init(&definition);
}
