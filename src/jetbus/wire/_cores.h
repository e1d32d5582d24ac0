/* Cores: base types of the bus's classes, with the attributes that the lane reads and writes. For _lane.c.
 *
 * The classes of the bus (Element, Session, Audience, Route) and the outbox of the daemon are written in Python. Each
 * inherits from a core, which stores some of its attributes as C members. Without the extension, they inherit from the
 * cores of lane.py, which have the same attributes.
 *
 * Elements and sessions carry *flags*, which say what the lane may do with them. The lane knows nothing of the reasons:
 * Python judges an element or session when the lane meets it for the first time. An assignment to an attribute that the
 * judgement depends on (a judged attribute, below) clears the flags, so that it is judged again.
 */

#include <structmember.h>

enum {
    JUDGED = 1,
    /* of a state */
    CHANGES = 2, /* its owner's changes need no Python */
    /* of a state or method */
    ASKED = 4, /* sets or calls can be forwarded to its owner in the classic form */
    /* of a session */
    SENDS = 2,      /* its messages may be handled by the lane */
    ASKS = 4,       /* its sets and calls, too */
    STREAM = 8,     /* a frame with a length of four bytes may be put into its outbox */
    WEBSOCKET = 16, /* a frame of a WebSocket, likewise */
    OWNS = 32,      /* requests may be put into its outbox in the classic form */
    READY = 64,     /* its next message need not wait */
};

enum { FLAGS = 8 };
static const struct {
    const char *name;
    int flag;
} FLAG_NAMES[FLAGS] = {
    {"CHANGES", CHANGES}, {"ASKED", ASKED},         {"SENDS", SENDS}, {"ASKS", ASKS},
    {"STREAM", STREAM},   {"WEBSOCKET", WEBSOCKET}, {"OWNS", OWNS},   {"READY", READY},
};

/* What elements and sessions have in common, so that one setter serves both. */
typedef struct {
    PyObject_HEAD
    unsigned char flags;
} Flagged;

typedef struct {
    PyObject_HEAD
    unsigned char flags;
    char is_method, fetch_only;
    unsigned int room; /* 32 bits, as lengths of frames have */
    PyObject *path;
    PyObject *path_json; /* NULL if it is the path in quotation marks, as it nearly always is */
    PyObject *value, *owner, *audiences;
    PyObject *access, *timeout_s, *description, *meta, *dialect;
    Py_ssize_t number;
} ElementCore;

typedef struct {
    PyObject_HEAD
    unsigned char flags;
    PyObject *outbox, *routes, *label, *account;
    PyObject *condition, *dialect, *framing, *batches, *fresh, *speaks_jsonrpc, *wants_outcome;
} SessionCore;

typedef struct {
    PyObject_HEAD
    char lane_framing;            /* STREAM, WEBSOCKET, or 0 if the lane cannot frame its events */
    PyObject *head, *open_pieces; /* open_pieces: a list, or None */
    PyObject *framed;             /* header and head before a tail of so many bytes */
    Py_ssize_t framed_bytes;
} AudienceCore;

typedef struct {
    PyObject_HEAD
    PyObject *slow, *parts, *last;
    Py_ssize_t gathered_bytes, gather_max;
} OutboxCore;

typedef struct {
    PyObject_HEAD
    char is_set, by_jsonrpc;
    PyObject *requester, *request_id, *owner, *message, *path, *asked, *requested, *id, *bucket;
    Py_ssize_t opened_us, kept_bytes;
} RouteCore;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    double deadline;
    PyObject *bucket; /* of this deadline */
} RoutesCore;

typedef struct {
    PyObject_HEAD
    Py_ssize_t kept_bytes;
} LevelCore;

typedef struct {
    PyObject_HEAD
    PyObject *peer, *address, *all;
} AccountCore;

/* -- judged attributes */

#define FIELD(self, offset) (*(PyObject **)((char *)(self) + (offset)))

/* Names of the attributes of elements and sessions that judgements depend on, and of class attributes with what most
 * elements have. They are interned, and live as long as the process. */
enum { USUAL_ROOM, USUAL_DESCRIPTION, USUAL_DIALECT, JUDGED_FROM, NAMES_KEPT = JUDGED_FROM + 13 };
static PyObject *kept_name[NAMES_KEPT];

static int
intern_names(void)
{
    static const char *const texts[NAMES_KEPT] = {
        "usual_room", "usual_description", "usual_dialect",
        /* of elements */
        "fetch_only", "audiences", "access", "timeout_s", "description", "meta",
        /* of both */
        "dialect",
        /* of sessions */
        "condition", "framing", "batches", "fresh", "speaks_jsonrpc", "wants_outcome",
    };
    for (int index = 0; index < NAMES_KEPT; index++)
        if (kept_name[index] == NULL && (kept_name[index] = PyUnicode_InternFromString(texts[index])) == NULL)
            return -1;
    return 0;
}

/* Assign to an attribute; Python has interned its name. The attributes have no getters and setters of their own, since
 * Python reads plain members several times as fast. */
static int
set_flagged(PyObject *self, PyObject *name, PyObject *now)
{
    Flagged *flagged = (Flagged *)self;
    for (int index = JUDGED_FROM; index < NAMES_KEPT && flagged->flags; index++)
        if (kept_name[index] == name)
            flagged->flags = 0;
    return PyObject_GenericSetAttr(self, name, now);
}

/* -- tables of attributes */

#define OBJECT(Core, name) {#name, T_OBJECT_EX, offsetof(Core, name), 0, NULL}
#define BOOL(Core, name) {#name, T_BOOL, offsetof(Core, name), 0, NULL}

static PyMemberDef element_members[] = {
    OBJECT(ElementCore, path),
    OBJECT(ElementCore, value),
    OBJECT(ElementCore, owner),
    OBJECT(ElementCore, audiences),
    OBJECT(ElementCore, access),
    OBJECT(ElementCore, timeout_s),
    OBJECT(ElementCore, description),
    OBJECT(ElementCore, meta),
    OBJECT(ElementCore, dialect),
    BOOL(ElementCore, is_method),
    BOOL(ElementCore, fetch_only),
    {"number", T_PYSSIZET, offsetof(ElementCore, number), 0, NULL},
    {"room", T_UINT, offsetof(ElementCore, room), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
/* The length of a path as JSON, which is put together anew each time: it would take as much memory as the path. */
static Py_ssize_t
path_json_bytes(const ElementCore *element)
{
    Py_ssize_t size = 0;
    if (element->path_json != NULL)
        return PyBytes_Size(element->path_json);
    return PyUnicode_AsUTF8AndSize(element->path, &size) == NULL ? -1 : size + 2;
}

static char *
add_path_json(char *at, const ElementCore *element)
{
    Py_ssize_t size;
    if (element->path_json != NULL) {
        size = PyBytes_Size(element->path_json);
        memcpy(at, PyBytes_AsString(element->path_json), size);
        return at + size;
    }
    const char *path = PyUnicode_AsUTF8AndSize(element->path, &size);
    *at++ = '"';
    memcpy(at, path, size);
    at += size;
    *at++ = '"';
    return at;
}

static PyObject *
get_path_json(PyObject *self, void *Py_UNUSED(closure))
{
    const ElementCore *element = (ElementCore *)self;
    if (element->path == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the element has no path yet");
        return NULL;
    }
    if (element->path_json != NULL)
        return Py_NewRef(element->path_json);
    Py_ssize_t size = path_json_bytes(element);
    PyObject *text = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (text != NULL)
        add_path_json(PyBytes_AsString(text), element);
    return text;
}

static PyGetSetDef element_made[] = {
    {"path_json", get_path_json, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static const Py_ssize_t element_fields[] = {
    offsetof(ElementCore, path),        offsetof(ElementCore, path_json), offsetof(ElementCore, value),
    offsetof(ElementCore, owner),       offsetof(ElementCore, audiences), offsetof(ElementCore, access),
    offsetof(ElementCore, timeout_s),   offsetof(ElementCore, description), offsetof(ElementCore, meta),
    offsetof(ElementCore, dialect),     0,
};

static PyMemberDef session_members[] = {
    OBJECT(SessionCore, outbox),
    OBJECT(SessionCore, routes),
    OBJECT(SessionCore, label),
    OBJECT(SessionCore, account),
    OBJECT(SessionCore, condition),
    OBJECT(SessionCore, dialect),
    OBJECT(SessionCore, framing),
    OBJECT(SessionCore, batches),
    OBJECT(SessionCore, fresh),
    OBJECT(SessionCore, speaks_jsonrpc),
    OBJECT(SessionCore, wants_outcome),
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t session_fields[] = {
    offsetof(SessionCore, outbox),         offsetof(SessionCore, routes),        offsetof(SessionCore, label),
    offsetof(SessionCore, account),
    offsetof(SessionCore, condition),      offsetof(SessionCore, dialect),       offsetof(SessionCore, framing),
    offsetof(SessionCore, batches),        offsetof(SessionCore, fresh),         offsetof(SessionCore, speaks_jsonrpc),
    offsetof(SessionCore, wants_outcome),  0,
};

static PyMemberDef audience_members[] = {
    OBJECT(AudienceCore, head),
    OBJECT(AudienceCore, open_pieces),
    {"lane_framing", T_BYTE, offsetof(AudienceCore, lane_framing), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t audience_fields[] = {
    offsetof(AudienceCore, head), offsetof(AudienceCore, open_pieces), offsetof(AudienceCore, framed), 0,
};

static PyMemberDef outbox_members[] = {
    OBJECT(OutboxCore, slow),
    {"_parts", T_OBJECT_EX, offsetof(OutboxCore, parts), 0, NULL},
    {"_last", T_OBJECT_EX, offsetof(OutboxCore, last), 0, NULL},
    {"_gathered_bytes", T_PYSSIZET, offsetof(OutboxCore, gathered_bytes), 0, NULL},
    {"_gather_max", T_PYSSIZET, offsetof(OutboxCore, gather_max), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t outbox_fields[] = {
    offsetof(OutboxCore, slow), offsetof(OutboxCore, parts), offsetof(OutboxCore, last), 0,
};

static PyMemberDef route_members[] = {
    OBJECT(RouteCore, requester),
    OBJECT(RouteCore, request_id),
    OBJECT(RouteCore, owner),
    OBJECT(RouteCore, message),
    OBJECT(RouteCore, path),
    OBJECT(RouteCore, asked),
    OBJECT(RouteCore, requested),
    OBJECT(RouteCore, id),
    OBJECT(RouteCore, bucket),
    BOOL(RouteCore, is_set),
    BOOL(RouteCore, by_jsonrpc),
    {"opened_us", T_PYSSIZET, offsetof(RouteCore, opened_us), 0, NULL},
    {"kept_bytes", T_PYSSIZET, offsetof(RouteCore, kept_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t route_fields[] = {
    offsetof(RouteCore, requester), offsetof(RouteCore, request_id), offsetof(RouteCore, owner),
    offsetof(RouteCore, message),   offsetof(RouteCore, path),       offsetof(RouteCore, asked),
    offsetof(RouteCore, requested), offsetof(RouteCore, id),         offsetof(RouteCore, bucket),
    0,
};

static PyMemberDef routes_members[] = {
    {"_count", T_PYSSIZET, offsetof(RoutesCore, count), 0, NULL},
    {"_deadline", T_DOUBLE, offsetof(RoutesCore, deadline), 0, NULL},
    {"_bucket", T_OBJECT_EX, offsetof(RoutesCore, bucket), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t routes_fields[] = {offsetof(RoutesCore, bucket), 0};

static PyMemberDef level_members[] = {
    {"kept_bytes", T_PYSSIZET, offsetof(LevelCore, kept_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t level_fields[] = {0};

static PyMemberDef account_members[] = {
    OBJECT(AccountCore, peer),
    OBJECT(AccountCore, address),
    OBJECT(AccountCore, all),
    {NULL, 0, 0, 0, NULL},
};
static const Py_ssize_t account_fields[] = {
    offsetof(AccountCore, peer), offsetof(AccountCore, address), offsetof(AccountCore, all), 0,
};

/* -- a new element */

/* What most elements have; a new reference. It is looked up once: all classes of elements inherit it from one. */
static PyObject *
usual(PyObject *self, int index)
{
    static PyObject *found[JUDGED_FROM];
    if (found[index] == NULL)
        found[index] = PyObject_GetAttr((PyObject *)Py_TYPE(self), kept_name[index]);
    return Py_XNewRef(found[index]);
}

static void
replace_field(PyObject **field, PyObject *now)
{
    PyObject *before = *field;
    *field = now;
    Py_XDECREF(before);
}

/* The argument at an index, else the one that is usual. */
static PyObject *
argument(PyObject *args, Py_ssize_t index, PyObject *otherwise)
{
    return index < PyTuple_Size(args) ? PyTuple_GetItem(args, index) : otherwise;
}

/* As ElementCore.__init__ of lane.py. */
static int
element_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    ElementCore *element = (ElementCore *)self;
    Py_ssize_t count = PyTuple_Size(args);
    if (count < 4 || count > 8 || (keywords != NULL && PyDict_Size(keywords) > 0) ||
        !PyUnicode_Check(PyTuple_GetItem(args, 0)) || !PyBytes_Check(PyTuple_GetItem(args, 1))) {
        PyErr_SetString(PyExc_TypeError, "an element takes path, path as JSON, value and owner, and four more at most");
        return -1;
    }
    PyObject *dialect = argument(args, 7, Py_None), *room = usual(self, USUAL_ROOM);
    int is_method = PyObject_IsTrue(argument(args, 4, Py_False));
    int fetch_only = PyObject_IsTrue(argument(args, 5, Py_False));
    unsigned long room_bytes = room == NULL ? 0 : PyLong_AsUnsignedLong(room);
    Py_XDECREF(room);
    if (PyErr_Occurred())
        return -1;
    element->room = (unsigned int)room_bytes;
    element->flags = 0;
    element->is_method = (char)is_method;
    element->fetch_only = (char)fetch_only;
    element->number = 0;
    replace_field(&element->path, Py_NewRef(PyTuple_GetItem(args, 0)));
    Py_ssize_t path_bytes;
    if (PyUnicode_AsUTF8AndSize(element->path, &path_bytes) == NULL)
        return -1;
    /* Escapes make it longer. */
    PyObject *path_json = PyTuple_GetItem(args, 1);
    replace_field(&element->path_json, PyBytes_Size(path_json) == path_bytes + 2 ? NULL : Py_NewRef(path_json));
    replace_field(&element->value, Py_NewRef(PyTuple_GetItem(args, 2)));
    replace_field(&element->owner, Py_NewRef(PyTuple_GetItem(args, 3)));
    replace_field(&element->access, Py_NewRef(argument(args, 6, Py_None)));
    replace_field(&element->timeout_s, Py_NewRef(Py_None));
    replace_field(&element->meta, Py_NewRef(Py_None));
    replace_field(&element->dialect, dialect == Py_None ? usual(self, USUAL_DIALECT) : Py_NewRef(dialect));
    replace_field(&element->description, usual(self, USUAL_DESCRIPTION));
    replace_field(&element->audiences, PyTuple_New(0));
    return element->dialect == NULL || element->description == NULL || element->audiences == NULL ? -1 : 0;
}

/* -- types */

static int
visit_fields(PyObject *self, const Py_ssize_t *fields, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (; *fields; fields++)
        Py_VISIT(FIELD(self, *fields));
    return 0;
}

static int
clear_fields(PyObject *self, const Py_ssize_t *fields)
{
    for (; *fields; fields++)
        Py_CLEAR(FIELD(self, *fields));
    return 0;
}

static void
free_core(PyObject *self, const Py_ssize_t *fields)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_fields(self, fields);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Functions and spec of a core, which lets Python classes inherit from it. */
#define DEFINE_CORE(Core, word, fields, ...)                                                                           \
    static int word##_traverse(PyObject *self, visitproc visit, void *arg)                                             \
    {                                                                                                                  \
        return visit_fields(self, fields, visit, arg);                                                                 \
    }                                                                                                                  \
    static int word##_clear(PyObject *self) { return clear_fields(self, fields); }                                     \
    static void word##_dealloc(PyObject *self) { free_core(self, fields); }                                            \
    static PyType_Slot word##_slots[] = {                                                                              \
        {Py_tp_traverse, (void *)word##_traverse},                                                                     \
        {Py_tp_clear, (void *)word##_clear},                                                                           \
        {Py_tp_dealloc, (void *)word##_dealloc},                                                                       \
        {Py_tp_members, word##_members},                                                                               \
        __VA_ARGS__ {0, NULL},                                                                                         \
    };                                                                                                                 \
    static PyType_Spec word##_spec = {                                                                                 \
        .name = "jetbus.wire._lane." #Core,                                                                            \
        .basicsize = sizeof(Core),                                                                                     \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,                                        \
        .slots = word##_slots,                                                                                         \
    };

DEFINE_CORE(ElementCore, element, element_fields, {Py_tp_getset, element_made}, {Py_tp_init, (void *)element_init},
            {Py_tp_setattro, (void *)set_flagged}, )
DEFINE_CORE(SessionCore, session, session_fields, {Py_tp_setattro, (void *)set_flagged}, )
DEFINE_CORE(AudienceCore, audience, audience_fields, )
DEFINE_CORE(OutboxCore, outbox, outbox_fields, )
DEFINE_CORE(RouteCore, route, route_fields, )
DEFINE_CORE(RoutesCore, routes, routes_fields, )
DEFINE_CORE(LevelCore, level, level_fields, )
DEFINE_CORE(AccountCore, account, account_fields, )
