/* The check of a JSON message in one pass, for intake.py; and scans of JSON texts, for _texts.py.
 *
 * Reader.read walks through a text once. On the way it checks all that a message must keep to: UTF-8, the grammar of
 * JSON, the depth of nesting, the size of numbers, and that no key is given twice in the message or its parameters. It
 * notes where the parts are, as offsets into the text:
 *
 *     {"id":7,"method":"set","params":{"path":"a/b","value":[1,2]}}
 *           ^           ^             ^        ^            ^
 *       MEMBER_ID  MEMBER_METHOD  MEMBER_PARAMS PARAM_PATH  PARAM_VALUE
 *
 * The message is made from these offsets at the end. A text that fails a check, or that has a rare form (a batch,
 * parameters by position, a key with escapes), is left to Python: intake.py looks at it again and finds out which of
 * these it is. So nothing here has to know how a text is refused.
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

typedef const unsigned char *Text;

#define IS_DIGIT(c) ((unsigned char)((c) - '0') < 10)
#define IS_E(c) (((c) | 0x20) == 'e')
#define IS_SPACE(c) ((c) == ' ' || (c) == '\n' || (c) == '\r' || (c) == '\t')
/* Both brackets differ in one bit from their twin: an opening one is '{' with that bit set, a closing one '}'. */
#define IS_OPENING(c) (((c) | 0x20) == '{')
#define IS_CLOSING(c) (((c) | 0x20) == '}')

/* -- numbers */

/* A number of this many characters fits into a double if its exponent has at most two digits. */
#define SAFE_CHARS 208
#define NUMBER_CHARS_MAX 4096

/* Tell whether a number is beyond the range of a double. Text that is not a number is not. */
static int
is_beyond_double(Text number, Py_ssize_t chars)
{
    char copy[NUMBER_CHARS_MAX + 1];
    if (chars > NUMBER_CHARS_MAX)
        return 1;
    memcpy(copy, number, chars);
    copy[chars] = 0;
    double read = PyOS_string_to_double(copy, NULL, NULL);
    if (read == -1.0 && PyErr_Occurred())
        PyErr_Clear();
    return isinf(read) != 0;
}

/* -- the walk through a value */

typedef struct {
    Text end;
    Py_ssize_t depth_max;
    Py_ssize_t chars_max; /* of a number */
} Walk;

static Text
skip_spaces(const Walk *walk, Text at)
{
    while (at < walk->end && IS_SPACE(*at))
        at++;
    return at;
}

/* The position behind one character of UTF-8 that is not ASCII; NULL if it is not valid. */
static Text
skip_wide(const Walk *walk, Text at)
{
    unsigned char first = *at, least = 0x80, most = 0xBF;
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || walk->end - at <= more)
        return NULL;
    if (first == 0xE0)
        least = 0xA0; /* else it would be too long a form */
    else if (first == 0xED)
        most = 0x9F; /* else a surrogate */
    else if (first == 0xF0)
        least = 0x90;
    else if (first == 0xF4)
        most = 0x8F; /* else beyond Unicode */
    if (at[1] < least || at[1] > most)
        return NULL;
    for (int index = 2; index <= more; index++)
        if ((at[index] & 0xC0) != 0x80)
            return NULL;
    return at + more + 1;
}

/* The number of four hexadecimal digits, -1 if there are none. */
static int
read_hex(const Walk *walk, Text at)
{
    int number = 0;
    if (walk->end - at < 4)
        return -1;
    for (int index = 0; index < 4; index++) {
        unsigned char c = at[index], letter = c | 0x20;
        if (IS_DIGIT(c))
            number = number * 16 + c - '0';
        else if (letter >= 'a' && letter <= 'f')
            number = number * 16 + letter - 'a' + 10;
        else
            return -1;
    }
    return number;
}

/* The position behind an escape whose backslash is at `at`; NULL if it is not valid, or half of a surrogate pair. */
static Text
skip_escape(const Walk *walk, Text at)
{
    if (walk->end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? at + 2 : NULL;
    int unit = read_hex(walk, at + 2);
    if (unit < 0 || (unit >= 0xDC00 && unit < 0xE000))
        return NULL;
    at += 6;
    if (unit < 0xD800 || unit >= 0xE000)
        return at;
    if (walk->end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return NULL;
    unit = read_hex(walk, at + 2);
    return unit >= 0xDC00 && unit < 0xE000 ? at + 6 : NULL;
}

#define EACH_BYTE 0x0101010101010101u
#define HIGH_BITS 0x8080808080808080u
#define HAS_ZERO(word) (((word) - EACH_BYTE) & ~(word))

/* Tell whether one of eight characters is not ASCII, a quotation mark, a backslash or a control character. */
static int
has_special(uint64_t word)
{
    return ((word | HAS_ZERO(word ^ (EACH_BYTE * '"')) | HAS_ZERO(word ^ (EACH_BYTE * '\\')) |
             ((word - EACH_BYTE * 0x20) & ~word)) & HIGH_BITS) != 0;
}

/* The position behind a string whose quotation mark is at `at`; NULL if it is not valid. */
static Text
skip_string(const Walk *walk, Text at)
{
    at++;
    while (at < walk->end) {
        uint64_t word;
        while (walk->end - at >= 8 && (memcpy(&word, at, 8), !has_special(word)))
            at += 8;
        while (at < walk->end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\')
            at++;
        if (at == walk->end || *at < 0x20)
            return NULL;
        if (*at == '"')
            return at + 1;
        at = *at == '\\' ? skip_escape(walk, at) : skip_wide(walk, at);
        if (at == NULL)
            return NULL;
    }
    return NULL;
}

/* The position behind at least one digit; NULL if there is none. */
static Text
skip_digits(const Walk *walk, Text at)
{
    Text first = at;
    while (at < walk->end && IS_DIGIT(*at))
        at++;
    return at > first ? at : NULL;
}

/* The position behind a number; NULL if it is not valid, too long or too big. */
static Text
skip_number(const Walk *walk, Text at)
{
    Text first = at, exponent;
    int may_be_big = 0;
    if (*at == '-')
        at++;
    if (at < walk->end && *at == '0')
        at++;
    else if ((at = skip_digits(walk, at)) == NULL)
        return NULL;
    if (at < walk->end && *at == '.' && (at = skip_digits(walk, at + 1)) == NULL)
        return NULL;
    if (at < walk->end && IS_E(*at)) {
        exponent = ++at;
        if (at < walk->end && (*at == '+' || *at == '-'))
            at++;
        if ((at = skip_digits(walk, at)) == NULL)
            return NULL;
        may_be_big = *exponent != '-' && at - exponent >= 3;
    }
    if (at - first > walk->chars_max)
        return NULL;
    if ((may_be_big || at - first > SAFE_CHARS) && is_beyond_double(first, at - first))
        return NULL;
    return at;
}

/* The position behind a value that begins at `at`, `depth` brackets deep; NULL if it is not valid. */
static Text
skip_value(const Walk *walk, Text at, Py_ssize_t depth)
{
    if (at >= walk->end)
        return NULL;
    switch (*at) {
    case '"':
        return skip_string(walk, at);
    case 't':
        return walk->end - at >= 4 && memcmp(at, "true", 4) == 0 ? at + 4 : NULL;
    case 'n':
        return walk->end - at >= 4 && memcmp(at, "null", 4) == 0 ? at + 4 : NULL;
    case 'f':
        return walk->end - at >= 5 && memcmp(at, "false", 5) == 0 ? at + 5 : NULL;
    case '{':
    case '[':
        break;
    default:
        return IS_DIGIT(*at) || *at == '-' ? skip_number(walk, at) : NULL;
    }
    int is_object = *at == '{';
    unsigned char closing = is_object ? '}' : ']';
    if (depth >= walk->depth_max)
        return NULL;
    at = skip_spaces(walk, at + 1);
    if (at < walk->end && *at == closing)
        return at + 1;
    for (;;) {
        if (is_object) {
            if (at >= walk->end || *at != '"' || (at = skip_string(walk, at)) == NULL)
                return NULL;
            at = skip_spaces(walk, at);
            if (at >= walk->end || *at != ':')
                return NULL;
            at = skip_spaces(walk, at + 1);
        }
        if ((at = skip_value(walk, at, depth + 1)) == NULL)
            return NULL;
        at = skip_spaces(walk, at);
        if (at >= walk->end || (*at != ',' && *at != closing))
            return NULL;
        if (*at == closing)
            return at + 1;
        at = skip_spaces(walk, at + 1);
    }
}

/* -- messages */

typedef struct {
    const char *text;
    size_t size;
} Name;
#define NAME(text) {text, sizeof(text) - 1}

enum {
    MEMBER_ID,
    MEMBER_METHOD,
    MEMBER_PARAMS,
    MEMBER_RESULT,
    MEMBER_ERROR,
    MEMBER_JSONRPC,
    MEMBERS,
};
static const Name MEMBER_NAMES[MEMBERS] = {
    NAME("id"), NAME("method"), NAME("params"), NAME("result"), NAME("error"), NAME("jsonrpc"),
};

/* In the order of the fields of jsonrpc.Params, then of jsonrpc.MetaParams. */
enum {
    PARAM_PATH,
    PARAM_VALUE,
    PARAM_ARGS,
    PARAM_TIMEOUT,
    PARAM_VALUE_AS_RESULT,
    PARAM_FETCH_ONLY,
    PARAM_ACCESS,
    PARAM_SCHEMA,
    PARAM_ELEMENT,
    PARAM_TS,
    PARAM_QUALITY,
    PARAM_PAST,
    PARAM_CHECK,
    PARAMS,
};
#define META_PARAMS (PARAMS - PARAM_TS)
static const Name PARAM_NAMES[PARAMS] = {
    NAME("path"),   NAME("value"),  NAME("args"),    NAME("timeout"), NAME("valueAsResult"), NAME("fetchOnly"),
    NAME("access"), NAME("schema"), NAME("element"), NAME("ts"),      NAME("quality"),       NAME("past"),
    NAME("check"),
};

/* The services whose parameters are handed out one by one; those of others stay one text. */
enum { FREQUENT = 5 };
static const Name FREQUENT_NAMES[FREQUENT] = {NAME("change"), NAME("set"), NAME("call"), NAME("add"), NAME("remove")};

typedef struct {
    Text start; /* NULL: not given */
    Text end;
} Part;

typedef struct {
    Part member[MEMBERS];
    Part param[PARAMS];
} Found;

/* The index of a text among names, or their count. */
static int
find_name(const Name *names, int count, Text text, size_t size)
{
    int index = 0;
    while (index < count && (names[index].size != size || memcmp(names[index].text, text, size) != 0))
        index++;
    return index;
}

/* Keys without a name here. An object with more of them is left to Python. */
#define OTHERS_MAX 16
typedef struct {
    Part key[OTHERS_MAX];
    int count;
} Others;

/* Note a key; 0 if it is there already, or cannot be compared because of its escapes. */
static int
note_other(Others *others, Text key, size_t size)
{
    if (others->count == OTHERS_MAX || memchr(key, '\\', size) != NULL)
        return 0;
    for (int index = 0; index < others->count; index++) {
        const Part *other = &others->key[index];
        if ((size_t)(other->end - other->start) == size && memcmp(other->start, key, size) == 0)
            return 0;
    }
    others->key[others->count++] = (Part){key, key + size};
    return 1;
}

/* Walk through an object and note its parts that have names, and those of the parameters in it if `found` is given.
 * NULL if it is not valid or has a key twice. */
static Text
walk_object(const Walk *walk, Text at, Py_ssize_t depth, const Name *names, int count, Part *parts, Found *found)
{
    Others others = {.count = 0};
    if (depth >= walk->depth_max)
        return NULL;
    at = skip_spaces(walk, at + 1);
    if (at < walk->end && *at == '}')
        return at + 1;
    for (;;) {
        Text key = at + 1;
        if (at >= walk->end || *at != '"' || (at = skip_string(walk, at)) == NULL)
            return NULL;
        size_t size = at - 1 - key;
        int index = find_name(names, count, key, size);
        if (index < count ? parts[index].start != NULL : !note_other(&others, key, size))
            return NULL;
        at = skip_spaces(walk, at);
        if (at >= walk->end || *at != ':')
            return NULL;
        Text start = at = skip_spaces(walk, at + 1);
        if (found != NULL && index == MEMBER_PARAMS && at < walk->end && *at == '{')
            at = walk_object(walk, at, depth + 1, PARAM_NAMES, PARAMS, found->param, NULL);
        else
            at = skip_value(walk, at, depth + 1);
        if (at == NULL)
            return NULL;
        if (index < count)
            parts[index] = (Part){start, at};
        at = skip_spaces(walk, at);
        if (at >= walk->end || (*at != ',' && *at != '}'))
            return NULL;
        if (*at == '}')
            return at + 1;
        at = skip_spaces(walk, at + 1);
    }
}

/* Check a text and find the parts of its message; 0 if it has a fault or a rare form. */
static int
find_parts(Text text, Py_ssize_t size, Py_ssize_t depth_max, Py_ssize_t chars_max, Found *found)
{
    Walk walk = {text + size, depth_max, chars_max};
    memset(found, 0, sizeof *found);
    Text at = skip_spaces(&walk, text);
    if (at == walk.end || *at != '{')
        return 0;
    at = walk_object(&walk, at, 0, MEMBER_NAMES, MEMBERS, found->member, found);
    if (at == NULL || skip_spaces(&walk, at) != walk.end)
        return 0;
    Part *id = &found->member[MEMBER_ID], *method = &found->member[MEMBER_METHOD];
    if (id->start != NULL && *id->start == 'n')
        id->start = NULL; /* null */
    if (method->start != NULL && *method->start == 'n')
        method->start = NULL;
    /* Whatever the id of a response is, it is that of an open request or of none. */
    if (method->start == NULL)
        return found->member[MEMBER_RESULT].start != NULL || found->member[MEMBER_ERROR].start != NULL;
    if (id->start != NULL && *id->start != '"' && *id->start != '-' && !IS_DIGIT(*id->start))
        return 0;
    return *method->start == '"' && memchr(method->start, '\\', method->end - method->start) == NULL;
}

/* -- messages as Python objects */

typedef struct {
    PyObject_HEAD
    PyObject *message; /* types of messages and parameters */
    PyObject *params;
    PyObject *meta;
    PyObject *unset; /* in place of a missing path */
    PyObject *decode_text;
    PyObject *look_again; /* reads a text that has a fault or a rare form */
    PyObject *absent;
    PyObject *frequent[FREQUENT];
    Py_ssize_t depth_max;
    Py_ssize_t chars_max;
} Reader;

/* A part as bytes, empty if it is not given. */
static PyObject *
make_bytes(const Reader *reader, const Part *part)
{
    if (part->start == NULL)
        return Py_NewRef(reader->absent);
    return PyBytes_FromStringAndSize((const char *)part->start, part->end - part->start);
}

/* A part that is a string, as str. */
static PyObject *
make_text(const Reader *reader, const Part *part)
{
    Py_ssize_t size = part->end - part->start;
    if (memchr(part->start, '\\', size) == NULL)
        return PyUnicode_DecodeUTF8((const char *)part->start + 1, size - 2, "strict");
    PyObject *text = make_bytes(reader, part);
    PyObject *decoded = text == NULL ? NULL : PyObject_CallFunctionObjArgs(reader->decode_text, text, NULL);
    Py_XDECREF(text);
    return decoded;
}

static PyObject *
make_meta(const Reader *reader, const Found *found)
{
    PyObject *parts[META_PARAMS] = {NULL}, *meta = NULL;
    int index = 0;
    while (index < META_PARAMS && (parts[index] = make_bytes(reader, &found->param[PARAM_TS + index])) != NULL)
        index++;
    if (index == META_PARAMS)
        meta = PyObject_CallFunctionObjArgs(reader->meta, parts[0], parts[1], parts[2], parts[3], NULL);
    for (index = 0; index < META_PARAMS; index++)
        Py_XDECREF(parts[index]);
    return meta;
}

static PyObject *
make_params(const Reader *reader, const Found *found)
{
    PyObject *parts[PARAM_TS + 2] = {NULL}, *params = NULL; /* of jsonrpc.Params, in its order */
    int index, has_details = 0;
    for (index = PARAM_TIMEOUT; index < PARAMS; index++)
        has_details |= found->param[index].start != NULL;
    int count = has_details ? PARAM_TS : PARAM_TIMEOUT;
    parts[0] = found->param[PARAM_PATH].start == NULL ? Py_NewRef(reader->unset)
                                                      : make_text(reader, &found->param[PARAM_PATH]);
    int failed = parts[0] == NULL;
    for (index = 1; index < count && !failed; index++)
        failed = (parts[index] = make_bytes(reader, &found->param[index])) == NULL;
    if (!failed && has_details) {
        failed = (parts[count++] = make_meta(reader, found)) == NULL;
        parts[count++] = Py_NewRef(Py_True);
    }
    if (!failed)
        /* The first NULL ends the arguments. */
        params = PyObject_CallFunctionObjArgs(reader->params, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5],
                                              parts[6], parts[7], parts[8], parts[9], parts[10], NULL);
    for (index = 0; index < count; index++)
        Py_XDECREF(parts[index]);
    return params;
}

static PyObject *
make_response(const Reader *reader, const Found *found)
{
    PyObject *id = make_bytes(reader, &found->member[MEMBER_ID]);
    PyObject *result = make_bytes(reader, &found->member[MEMBER_RESULT]);
    PyObject *error = make_bytes(reader, &found->member[MEMBER_ERROR]);
    PyObject *version = make_bytes(reader, &found->member[MEMBER_JSONRPC]);
    PyObject *response = NULL;
    if (id != NULL && result != NULL && error != NULL && version != NULL)
        response = PyObject_CallFunctionObjArgs(reader->message, id, Py_None, Py_None, version, reader->absent, result,
                                                error, NULL);
    Py_XDECREF(id);
    Py_XDECREF(result);
    Py_XDECREF(error);
    Py_XDECREF(version);
    return response;
}

static PyObject *
make_request(const Reader *reader, const Found *found, PyObject *method, PyObject *params, const Part *body_part)
{
    PyObject *id = make_bytes(reader, &found->member[MEMBER_ID]);
    PyObject *version = make_bytes(reader, &found->member[MEMBER_JSONRPC]);
    PyObject *body = make_bytes(reader, body_part);
    PyObject *request = NULL;
    if (id != NULL && version != NULL && body != NULL)
        request = PyObject_CallFunctionObjArgs(reader->message, id, method, params, version, body, NULL);
    Py_XDECREF(id);
    Py_XDECREF(version);
    Py_XDECREF(body);
    return request;
}

/* A request or notification; None if its service is frequent and its parameters have a rare form. */
static PyObject *
make_frequent(const Reader *reader, const Found *found, int index)
{
    static const Part none = {NULL, NULL};
    const Part *params = &found->member[MEMBER_PARAMS], *path = &found->param[PARAM_PATH];
    if (params->start == NULL || *params->start == 'n')
        return make_request(reader, found, reader->frequent[index], Py_None, &none);
    if (*params->start != '{' || (path->start != NULL && *path->start != '"'))
        Py_RETURN_NONE;
    PyObject *made = make_params(reader, found);
    if (made == NULL)
        return NULL;
    PyObject *request = make_request(reader, found, reader->frequent[index], made, &none);
    Py_DECREF(made);
    return request;
}

/* The message of the parts that were found; None for a rare form. */
static PyObject *
make_message(const Reader *reader, const Found *found)
{
    const Part *method = &found->member[MEMBER_METHOD], *body = &found->member[MEMBER_PARAMS];
    if (method->start == NULL)
        return make_response(reader, found);
    int index = find_name(FREQUENT_NAMES, FREQUENT, method->start + 1, method->end - method->start - 2);
    if (index < FREQUENT)
        return make_frequent(reader, found, index);
    if (body->start != NULL && *body->start == '[')
        Py_RETURN_NONE; /* perhaps by position */
    PyObject *name = make_text(reader, method);
    if (name == NULL)
        return NULL;
    PyObject *request = make_request(reader, found, name, Py_None, body);
    Py_DECREF(name);
    return request;
}

static PyObject *
reader_read(PyObject *self, PyObject *text)
{
    const Reader *reader = (const Reader *)self;
    char *bytes;
    Py_ssize_t size;
    Found found;
    if (PyBytes_AsStringAndSize(text, &bytes, &size) < 0)
        return NULL;
    if (find_parts((Text)bytes, size, reader->depth_max, reader->chars_max, &found)) {
        PyObject *message = make_message(reader, &found);
        if (message != Py_None)
            return message;
        Py_DECREF(message);
    }
    return PyObject_CallFunctionObjArgs(reader->look_again, text, NULL);
}

static int
reader_clear(PyObject *self)
{
    Reader *reader = (Reader *)self;
    Py_CLEAR(reader->message);
    Py_CLEAR(reader->params);
    Py_CLEAR(reader->meta);
    Py_CLEAR(reader->unset);
    Py_CLEAR(reader->decode_text);
    Py_CLEAR(reader->look_again);
    Py_CLEAR(reader->absent);
    for (int index = 0; index < FREQUENT; index++)
        Py_CLEAR(reader->frequent[index]);
    return 0;
}

static int
reader_traverse(PyObject *self, visitproc visit, void *arg)
{
    Reader *reader = (Reader *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reader->message);
    Py_VISIT(reader->params);
    Py_VISIT(reader->meta);
    Py_VISIT(reader->unset);
    Py_VISIT(reader->decode_text);
    Py_VISIT(reader->look_again);
    return 0;
}

static void
reader_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *
reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *message, *params, *meta, *unset, *decode_text, *look_again;
    Py_ssize_t depth_max, chars_max;
    if (!PyArg_ParseTuple(args, "OOOOOOnn:Reader", &message, &params, &meta, &unset, &decode_text, &look_again,
                          &depth_max, &chars_max))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *reader = (Reader *)allocate(type, 0); /* all zero */
    if (reader == NULL)
        return NULL;
    reader->message = Py_NewRef(message);
    reader->params = Py_NewRef(params);
    reader->meta = Py_NewRef(meta);
    reader->unset = Py_NewRef(unset);
    reader->decode_text = Py_NewRef(decode_text);
    reader->look_again = Py_NewRef(look_again);
    reader->depth_max = depth_max;
    reader->chars_max = chars_max;
    reader->absent = PyBytes_FromStringAndSize(NULL, 0);
    int failed = reader->absent == NULL;
    for (int index = 0; index < FREQUENT && !failed; index++)
        failed = (reader->frequent[index] = PyUnicode_InternFromString(FREQUENT_NAMES[index].text)) == NULL;
    if (failed)
        Py_CLEAR(reader);
    return (PyObject *)reader;
}

static PyMethodDef reader_methods[] = {
    {"read", reader_read, METH_O, "Return the checked message of a text, or what look_again makes of the text."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "Reads and checks texts of messages."},
    {Py_tp_new, (void *)reader_new},
    {Py_tp_dealloc, (void *)reader_dealloc},
    {Py_tp_traverse, (void *)reader_traverse},
    {Py_tp_clear, (void *)reader_clear},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "jetbus.wire._scan.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

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
    .m_name = "_scan",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModuleDef_Init(&definition);
}
