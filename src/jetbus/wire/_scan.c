/* Scans of JSON texts: for numbers that may be too big (numbers.py) and for the nesting of brackets (nesting.py).
 *
 * A short object of few members is scanned in a fraction of the time that a call of `re` takes, a long one at
 * the speed of memory. The functions for numbers only say whether a text is worth a closer look.
 *
 * Only the stable ABI of Python 3.11 is used: one build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <string.h>

#define BLOCK 512
#define IS_DIGIT(c) ((unsigned char)((c) - '0') < 10)
#define IS_E(c) (((c) | 0x20) == 'e')

/* A digit, an e, perhaps a plus, three digits. */
static int
is_exponent(const unsigned char *text, Py_ssize_t at, Py_ssize_t size)
{
    Py_ssize_t digits = at + 2;
    if (!IS_DIGIT(text[at]) || !IS_E(text[at + 1]))
        return 0;
    if (digits < size && text[digits] == '+')
        digits++;
    return digits + 2 < size && IS_DIGIT(text[digits]) && IS_DIGIT(text[digits + 1]) && IS_DIGIT(text[digits + 2]);
}

static PyObject *
has_big_exponent(PyObject *Py_UNUSED(module), PyObject *value)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(value, &bytes, &size) < 0)
        return NULL;
    const unsigned char *text = (const unsigned char *)bytes;
    for (Py_ssize_t start = 0; start < size - 1; start += BLOCK) {
        Py_ssize_t stop = start + BLOCK < size - 1 ? start + BLOCK : size - 1;
        unsigned char found = 0;
        /* Without a branch, so that the compiler can look at many bytes at once. */
        for (Py_ssize_t at = start; at < stop; at++)
            found |= IS_DIGIT(text[at]) & IS_E(text[at + 1]);
        if (!found)
            continue;
        for (Py_ssize_t at = start; at < stop; at++)
            if (is_exponent(text, at, size))
                Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static int
is_of_number(unsigned char c)
{
    return IS_DIGIT(c) || c == '.' || c == '-' || c == '+' || IS_E(c);
}

/* A run of more than so many bytes of which numbers consist. It covers one in so many positions at least, so that only
 * these and what is around them need be looked at. */
static int
runs_longer_than(const unsigned char *text, Py_ssize_t size, Py_ssize_t longest)
{
    Py_ssize_t at = longest;
    while (at < size) {
        Py_ssize_t first = at, end = at;
        while (first > 0 && is_of_number(text[first - 1]) && at - first <= longest)
            first--;
        while (end < size && is_of_number(text[end]) && end - first <= longest)
            end++;
        if (end > at && end - first > longest)
            return 1;
        at = (end > at ? end : at) + longest + 1;
    }
    return 0;
}

static PyObject *
has_long_run(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, longest;
    if (!PyArg_ParseTuple(args, "y#n:has_long_run", &bytes, &size, &longest))
        return NULL;
    return PyBool_FromLong(runs_longer_than((const unsigned char *)bytes, size, longest));
}

/* The position behind a string whose quotation mark is at `at`. */
static Py_ssize_t
after_string(const unsigned char *text, Py_ssize_t at, Py_ssize_t size)
{
    for (at++; at < size && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at + 1;
}

/* Both brackets differ in one bit from their twin: an opening one is '{' with that bit set, a closing one '}'. */
#define IS_OPENING(c) (((c) | 0x20) == '{')
#define IS_CLOSING(c) (((c) | 0x20) == '}')

static int
opens_more_than(const unsigned char *text, Py_ssize_t size, Py_ssize_t many)
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
balance_of(const unsigned char *text, Py_ssize_t size)
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
    const unsigned char *text = (const unsigned char *)bytes;
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
    const unsigned char *text = (const unsigned char *)bytes;
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

/* Plain: ASCII, no more opening brackets than may be nested, no number that may be too big or too long.
 * One pass, in blocks whose brackets a byte can count. */
static int
is_plain(const unsigned char *text, Py_ssize_t size, Py_ssize_t depth_max, Py_ssize_t longest)
{
    Py_ssize_t opening = 0;
    for (Py_ssize_t start = 0; start < size; start += 128) {
        Py_ssize_t stop = start + 128 < size ? start + 128 : size;
        unsigned char seen = 0, exponents = 0, brackets = 0;
        /* Without a branch, so that the compiler can look at many bytes at once. Bytes objects end with a NUL. */
        for (Py_ssize_t at = start; at < stop; at++) {
            seen |= text[at];
            exponents |= IS_DIGIT(text[at]) & IS_E(text[at + 1]);
            brackets += IS_OPENING(text[at]);
        }
        opening += brackets;
        if (seen & 0x80 || opening > depth_max)
            return 0;
        for (Py_ssize_t at = start; exponents && at < stop; at++)
            if (is_exponent(text, at, size))
                return 0;
    }
    return size <= longest || !runs_longer_than(text, size, longest);
}

static PyObject *
are_plain(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "are_plain(texts: list[bytes], depth_max, longest, bytes_max)");
        return NULL;
    }
    Py_ssize_t depth_max = PyLong_AsSsize_t(args[1]), longest = PyLong_AsSsize_t(args[2]);
    Py_ssize_t left = PyLong_AsSsize_t(args[3]), texts = PyList_Size(args[0]);
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t index = 0; index < texts; index++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(args[0], index), &text, &size) < 0)
            return NULL;
        left -= size;
        if (left < 0 || !is_plain((const unsigned char *)text, size, depth_max, longest))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"are_plain", (PyCFunction)(void (*)(void))are_plain, METH_FASTCALL,
     "Tell whether no text of a list is worth a closer look, for its encoding, nesting or numbers."},
    {"has_big_exponent", has_big_exponent, METH_O, "Whether bytes may have a number with an exponent of three digits."},
    {"has_long_run", has_long_run, METH_VARARGS, "Whether bytes may have a number of more than so many characters."},
    {"is_too_deep", is_too_deep, METH_VARARGS, "Whether brackets are balanced and nested more than so deep."},
    {"count_outer", count_outer, METH_VARARGS, "Count separators directly inside the outermost brackets."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModuleDef_Init(&module);
}
