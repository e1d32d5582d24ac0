/* Looks for numbers in JSON texts that may be too big: what numbers.py does with regular expressions, compiled.
 *
 * A short object of few members is looked through in a fraction of the time that a call of `re` takes, a long one at
 * the speed of memory. Both functions only say whether a text is worth a closer look.
 *
 * Only the stable ABI of Python 3.11 is used: one build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

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
static PyObject *
has_long_run(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *bytes;
    Py_ssize_t size, longest;
    if (!PyArg_ParseTuple(args, "y#n:has_long_run", &bytes, &size, &longest))
        return NULL;
    const unsigned char *text = (const unsigned char *)bytes;
    Py_ssize_t at = longest;
    while (at < size) {
        Py_ssize_t first = at, end = at;
        while (first > 0 && is_of_number(text[first - 1]) && at - first <= longest)
            first--;
        while (end < size && is_of_number(text[end]) && end - first <= longest)
            end++;
        if (end > at && end - first > longest)
            Py_RETURN_TRUE;
        at = (end > at ? end : at) + longest + 1;
    }
    Py_RETURN_FALSE;
}

static PyMethodDef functions[] = {
    {"has_big_exponent", has_big_exponent, METH_O, "Whether bytes may have a number with an exponent of three digits."},
    {"has_long_run", has_long_run, METH_VARARGS, "Whether bytes may have a number of more than so many characters."},
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
