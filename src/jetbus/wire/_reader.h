/* Messages as Python objects: the Reader checks texts for intake.py and makes a message of each. For _lane.c.
 *
 * The message is made from the parts that the walk has found. A text that the walk refuses is given to look_again.
 */

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

/* The message of the parts of a text, which is looked at again if it has a fault (no parts) or a rare form. */
static PyObject *
read_parts(const Reader *reader, PyObject *text, const Found *found)
{
    if (found != NULL) {
        PyObject *message = make_message(reader, found);
        if (message != Py_None)
            return message;
        Py_DECREF(message);
    }
    return PyObject_CallFunctionObjArgs(reader->look_again, text, NULL);
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
    int is_sound = find_parts((Text)bytes, size, reader->depth_max, reader->chars_max, &found);
    return read_parts(reader, text, is_sound ? &found : NULL);
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
    .name = "jetbus.wire._lane.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};
