/* The lane: handles the usual messages of a connection in one pass over its buffer, without Python.
 *
 * A connection gives the lane all that it has read. The lane cuts the frames, checks each message in full and does the
 * whole work of the usual ones. The first message that is not usual is made a Message for Python, which handles it and
 * calls the lane again for what follows. Python has the whole of the bus: all that the lane does, it does as Python
 * would, down to the bytes that are sent.
 *
 *     buffer   | change | change | set | add | change | chan
 *                 lane     lane    lane  |      |       waits for its other half
 *                                     Python   lane
 *
 *     change   element.value = value -> rows of the journal -> open chunks of the element's audiences
 *     set      open a route -> outbox of the owner                     call alike
 *     result   close the route -> outbox of the requester
 *
 * The lane knows one form of events and requests, that of the classic dialect. It knows no rights, no schemas, no rules
 * and no dialects: whether it may serve an element or a session is what their flags say, see _cores.h.
 *
 *     _walk.h     checks texts and finds the parts of a message
 *     _reader.h   makes a Message of the parts
 *     _cores.h    base types of the bus's classes
 *     _lane.c     the lane; scans of texts for _texts.py; the module
 *
 * A call into Python may change anything: lists, tuples, flags, the journal's rows. So the lane keeps counted references
 * across such a call and nothing else, apart from positions in the text, which is an immutable bytes object that the
 * caller holds. Only the stable ABI of Python 3.11 is used: one build does for all versions from there on.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_walk.h"

#include "_reader.h"

#include "_cores.h"

/* -- the lane */

#define HEADER_BYTES 4
/* Texts up to this length are handled without a look at the clock, as in serving.py. */
#define SHORT_BYTES 200
/* Messages and events between two looks at the clock. */
#define WORK_UNSEEN 32

enum { NAME_OPEN, NAME_PUT, NAME_NOTE, NAME_ROWS, NAME_CHANGE, NAME_BUCKET_OF, NAME_NOW_US, NAMES };
static const char *const NAME_TEXTS[NAMES] = {"open", "put",    "note",      "rows",
                                                "change", "bucket_of", "now_us"};

/* Limits and sizes that the lane is given. */
enum {
    ROOM_KEPT,   /* room for a value that is not given back when shorter values follow */
    ROUTE_BYTES, /* what a route takes beside its texts */
    FREE_BYTES,  /* what a peer may keep also while all together keep too much */
    LIMIT_ROUTES,
    LIMIT_PEER,
    LIMIT_ADDRESS,
    LIMIT_ALL,
    LIMITS,
};
enum { LEVELS = 3 };

typedef struct {
    PyObject_HEAD
    PyObject *reader, *elements, *judge_element, *judge_session, *clock, *route_type, *routes;
    PyObject *element_core, *session_core, *audience_core, *outbox_core, *route_core, *level_core, *account_core,
        *routes_core;
    PyObject *name[NAMES];
    Py_ssize_t limit[LIMITS];
    double timeout_s;
} Lane;

/* One call of the lane. */
typedef struct {
    Lane *lane;
    SessionCore *session;
    PyObject *record; /* the writer of the journal, or None */
    PyObject *rows;   /* its list of changes, None if it wants to be called; NULL if not looked up yet */
    double now;
    int work;         /* since the last look at the clock */
} Call;

/* A call into Python may have replaced the rows. */
static void
forget_rows(Call *call)
{
    Py_CLEAR(call->rows);
}

#define IS_A(thing, core) PyObject_TypeCheck(thing, (PyTypeObject *)(core))

/* The flags of an element or session, judged if they are not known; -1 with an error. */
static int
flags_of(PyObject *core, PyObject *judge)
{
    Flagged *flagged = (Flagged *)core;
    if (flagged->flags == 0) {
        PyObject *found = PyObject_CallFunctionObjArgs(judge, core, NULL);
        long flags = found == NULL ? -1 : PyLong_AsLong(found);
        Py_XDECREF(found);
        if (flags < 0)
            return -1;
        flagged->flags = (unsigned char)(flags | JUDGED);
    }
    return flagged->flags;
}

/* -- frames */

#define LITERAL_BYTES(text) (sizeof(text) - 1)

static char *
add_bytes(char *at, const void *bytes, Py_ssize_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}
#define ADD_LITERAL(at, text) add_bytes(at, text, LITERAL_BYTES(text))
#define ADD_OBJECT(at, bytes) add_bytes(at, PyBytes_AsString(bytes), PyBytes_Size(bytes))
#define ADD_PART(at, part) add_bytes(at, (part)->start, (part)->end - (part)->start)

/* The length of the header of a message, by the flag of a framing; as framing.py has it. */
static Py_ssize_t
header_bytes(int framing, Py_ssize_t size)
{
    if (framing & STREAM)
        return HEADER_BYTES;
    return size < 126 ? 2 : size < 65536 ? 4 : 10;
}

static char *
add_header(char *at, int framing, Py_ssize_t size)
{
    int digits = 4;
    if (!(framing & STREAM)) {
        digits = size < 126 ? 0 : size < 65536 ? 2 : 8;
        *at++ = (char)0x81; /* a text, whole */
        *at++ = (char)(size < 126 ? size : size < 65536 ? 126 : 127);
    }
    while (digits-- > 0)
        *at++ = (char)((uint64_t)size >> (8 * digits));
    return at;
}

/* A new frame for a message of so many bytes, which are to be written at *at. */
static PyObject *
new_frame(int framing, Py_ssize_t size, char **at)
{
    PyObject *frame = PyBytes_FromStringAndSize(NULL, header_bytes(framing, size) + size);
    if (frame != NULL)
        *at = add_header(PyBytes_AsString(frame), framing, size);
    return frame;
}

/* Put a frame into the outbox of a session. Steals the frame. */
static int
put(Call *call, SessionCore *session, PyObject *frame)
{
    Lane *lane = call->lane;
    if (IS_A(session->outbox, lane->outbox_core)) {
        OutboxCore *outbox = (OutboxCore *)session->outbox;
        Py_ssize_t gathered = outbox->gathered_bytes + PyBytes_Size(frame);
        /* Not the first of a turn, nothing to be closed before it, and no limit near. */
        if (outbox->slow == Py_False && outbox->last == Py_None && gathered <= outbox->gather_max &&
            PyList_Size(outbox->parts) > 0) {
            int failed = PyList_Append(outbox->parts, frame);
            Py_DECREF(frame);
            outbox->gathered_bytes = gathered;
            return failed;
        }
    }
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)session, lane->name[NAME_PUT], frame, NULL);
    Py_DECREF(frame);
    Py_XDECREF(done);
    forget_rows(call);
    return done == NULL ? -1 : 0;
}

/* -- changes */

#define TAIL_START "\"params\":{\"path\":"
#define TAIL_MIDDLE ",\"event\":\"change\",\"value\":"
#define TAIL_END "}}"

static Py_ssize_t
tail_bytes(const ElementCore *element, PyObject *value)
{
    return LITERAL_BYTES(TAIL_START) + path_json_bytes(element) + LITERAL_BYTES(TAIL_MIDDLE) +
           PyBytes_Size(value) + LITERAL_BYTES(TAIL_END);
}

static void
add_tail(char *at, const ElementCore *element, PyObject *value)
{
    at = ADD_LITERAL(at, TAIL_START);
    at = add_path_json(at, element);
    at = ADD_LITERAL(at, TAIL_MIDDLE);
    at = ADD_OBJECT(at, value);
    ADD_LITERAL(at, TAIL_END);
}

/* The pieces of the open chunk of an audience, to which the event with this tail is then added. A new reference. */
static PyObject *
open_pieces(Call *call, AudienceCore *audience, ElementCore *element, PyObject *tail)
{
    if (audience->open_pieces != Py_None)
        return Py_NewRef(audience->open_pieces);
    PyObject **name = call->lane->name;
    PyObject *pieces =
        PyObject_CallMethodObjArgs((PyObject *)audience, name[NAME_OPEN], name[NAME_CHANGE], element->path, tail, NULL);
    forget_rows(call);
    return pieces;
}

/* Header and head of an audience before a tail of so many bytes. Most tails have the length of the one before. */
static PyObject *
fit_head(AudienceCore *audience, Py_ssize_t size)
{
    if (audience->framed == NULL || audience->framed_bytes != size) {
        char *at;
        Py_ssize_t head = PyBytes_Size(audience->head), header = header_bytes(audience->lane_framing, head + size);
        PyObject *framed = PyBytes_FromStringAndSize(NULL, header + head);
        if (framed == NULL)
            return NULL;
        at = add_header(PyBytes_AsString(framed), audience->lane_framing, head + size);
        ADD_OBJECT(at, audience->head);
        Py_XDECREF(audience->framed);
        audience->framed = framed;
        audience->framed_bytes = size;
    }
    return Py_NewRef(audience->framed);
}

/* Add an event to the open chunk of an audience. */
static int
send_tail(Call *call, AudienceCore *audience, ElementCore *element, PyObject *tail)
{
    PyObject *pieces = open_pieces(call, audience, element, tail), *head = NULL;
    int failed = pieces == NULL || (head = fit_head(audience, PyBytes_Size(tail))) == NULL ||
                 PyList_Append(pieces, head) < 0 || PyList_Append(pieces, tail) < 0;
    Py_XDECREF(head);
    Py_XDECREF(pieces);
    return failed ? -1 : 0;
}

/* Add an event to the open chunk of the only audience, in one piece. */
static int
send_frame(AudienceCore *audience, const ElementCore *element, PyObject *value)
{
    char *at;
    PyObject *frame = new_frame(audience->lane_framing, PyBytes_Size(audience->head) + tail_bytes(element, value), &at);
    if (frame == NULL)
        return -1;
    add_tail(ADD_OBJECT(at, audience->head), element, value);
    int failed = PyList_Append(audience->open_pieces, frame);
    Py_DECREF(frame);
    return failed;
}

/* Announce a new value to the audiences of an element. */
static int
announce(Call *call, ElementCore *element, PyObject *value)
{
    PyObject *audiences = Py_NewRef(element->audiences);
    Py_ssize_t count = PyTuple_Size(audiences), index = 0;
    AudienceCore *only = count == 1 ? (AudienceCore *)PyTuple_GetItem(audiences, 0) : NULL;
    int failed = 0;
    call->work += (int)count;
    if (only != NULL && only->open_pieces != Py_None)
        failed = send_frame(only, element, value);
    else if (count > 0) {
        PyObject *tail = PyBytes_FromStringAndSize(NULL, tail_bytes(element, value));
        if ((failed = tail == NULL) == 0)
            add_tail(PyBytes_AsString(tail), element, value);
        for (; index < count && !failed; index++)
            failed = send_tail(call, (AudienceCore *)PyTuple_GetItem(audiences, index), element, tail);
        Py_XDECREF(tail);
    }
    Py_DECREF(audiences);
    return failed ? -1 : 0;
}

/* Append a change to the rows of the journal. */
static int
record_change(Call *call, const ElementCore *element, PyObject *value)
{
    PyObject *label = call->session->label;
    if (call->record == Py_None)
        return 0;
    if (call->rows == NULL && (call->rows = PyObject_GetAttr(call->record, call->lane->name[NAME_ROWS])) == NULL)
        return -1;
    if (call->rows != Py_None)
        return PyList_Append(call->rows, element->path) < 0 || PyList_Append(call->rows, value) < 0 ||
                       PyList_Append(call->rows, label) < 0
                   ? -1
                   : 0;
    PyObject *row = PyTuple_Pack(3, element->path, value, label);
    PyObject *done = row == NULL ? NULL
                                 : PyObject_CallMethodObjArgs(call->record, call->lane->name[NAME_NOTE], row, NULL);
    Py_XDECREF(row);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The element at a path: a new reference, NULL if there is none or, with an error set, if that fails. */
static ElementCore *
find_element(const Lane *lane, const Part *path)
{
    PyObject *text = make_text((Reader *)lane->reader, path);
    PyObject *element = text == NULL ? NULL : PyDict_GetItemWithError(lane->elements, text);
    Py_XDECREF(text);
    return element != NULL && IS_A(element, lane->element_core) ? (ElementCore *)Py_NewRef(element) : NULL;
}

static int
has_details(const Found *found)
{
    int index = PARAM_TIMEOUT;
    while (index < PARAMS && found->param[index].start == NULL)
        index++;
    return index < PARAMS;
}

/* Tell whether a value needs no other room than the one before; as in Bus.charge_value. */
static int
fits_room(const Lane *lane, const ElementCore *element, Py_ssize_t size)
{
    Py_ssize_t room = element->room;
    return size <= room && (room <= lane->limit[ROOM_KEPT] || size >= room / 4);
}

/* Handle a change: 1 if it is done, 0 if it is one for Python, -1 with an error. */
static int
change(Call *call, const Part *path, const Part *given)
{
    const Lane *lane = call->lane;
    ElementCore *element = find_element(lane, path);
    if (element == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int done = flags_of((PyObject *)element, lane->judge_element);
    if (done >= 0)
        done = (done & CHANGES) && element->owner == (PyObject *)call->session &&
               fits_room(lane, element, given->end - given->start);
    PyObject *value = NULL;
    if (done > 0 && (value = PyBytes_FromStringAndSize((const char *)given->start, given->end - given->start)) == NULL)
        done = -1;
    if (done > 0) {
        PyObject *before = element->value;
        element->value = Py_NewRef(value);
        Py_XDECREF(before);
        if (record_change(call, element, value) < 0 || announce(call, element, value) < 0)
            done = -1;
    }
    Py_XDECREF(value);
    Py_DECREF(element);
    return done;
}

/* -- sets and calls */

/* The request as its owner receives it, under the id of a route. */
static PyObject *
encode_request(int framing, PyObject *id, const ElementCore *element, int is_set, const Part *given)
{
    static const char empty[] = "{}";
    Part args = *given;
    if (args.start == NULL)
        args = (Part){(Text)empty, (Text)empty + LITERAL_BYTES(empty)};
    Py_ssize_t fixed = is_set ? LITERAL_BYTES("{\"id\":,\"method\":,\"params\":{\"value\":}}")
                              : LITERAL_BYTES("{\"id\":,\"method\":,\"params\":}");
    char *at;
    Py_ssize_t size = fixed + PyBytes_Size(id) + path_json_bytes(element) + (args.end - args.start);
    PyObject *frame = new_frame(framing, size, &at);
    if (frame == NULL)
        return NULL;
    at = ADD_LITERAL(at, "{\"id\":");
    at = ADD_OBJECT(at, id);
    at = ADD_LITERAL(at, ",\"method\":");
    at = add_path_json(at, element);
    at = is_set ? ADD_LITERAL(at, ",\"params\":{\"value\":") : ADD_LITERAL(at, ",\"params\":");
    at = ADD_PART(at, &args);
    if (is_set)
        ADD_LITERAL(at, "}}");
    else
        ADD_LITERAL(at, "}");
    return frame;
}

/* The levels of an account: of the peer, of its address and of all; 0 if this is no account. */
static int
find_levels(const Lane *lane, PyObject *account, LevelCore **levels)
{
    if (account == NULL || !IS_A(account, lane->account_core))
        return 0;
    const AccountCore *core = (AccountCore *)account;
    PyObject *found[LEVELS] = {core->peer, core->address, core->all};
    for (int index = 0; index < LEVELS; index++) {
        if (found[index] == NULL || !IS_A(found[index], lane->level_core))
            return 0;
        levels[index] = (LevelCore *)found[index];
    }
    return 1;
}

/* Tell whether a peer may keep so many more bytes, as Account.charge does. */
static int
may_keep(const Lane *lane, LevelCore *const *levels, Py_ssize_t more)
{
    const Py_ssize_t *limit = lane->limit;
    return levels[0]->kept_bytes + more <= limit[LIMIT_PEER] && levels[1]->kept_bytes + more <= limit[LIMIT_ADDRESS] &&
           (levels[2]->kept_bytes + more <= limit[LIMIT_ALL] || levels[0]->kept_bytes + more <= limit[FREE_BYTES]);
}

static void
note_bytes(LevelCore *const *levels, Py_ssize_t more)
{
    for (int index = 0; index < LEVELS; index++)
        levels[index]->kept_bytes += more;
}

/* The routes of a deadline. A new reference. */
static PyObject *
find_bucket(Call *call)
{
    RoutesCore *routes = (RoutesCore *)call->lane->routes;
    double deadline = call->now + call->lane->timeout_s;
    if (routes->deadline == deadline && routes->bucket != NULL)
        return Py_NewRef(routes->bucket);
    PyObject *number = PyFloat_FromDouble(deadline), *bucket = NULL;
    if (number != NULL)
        bucket = PyObject_CallMethodObjArgs((PyObject *)routes, call->lane->name[NAME_BUCKET_OF], number, NULL);
    Py_XDECREF(number);
    forget_rows(call);
    return bucket;
}

/* Open a route, as Routing._send and Routes.open do. A new reference; NULL if a limit is reached, or with an error. */
static RouteCore *
open_route(Call *call, ElementCore *element, Text text, Py_ssize_t size, const Part *id, int is_set, const Part *given)
{
    const Lane *lane = call->lane;
    PyObject *owned = ((SessionCore *)element->owner)->routes;
    int is_asked = call->record != Py_None && given->start != NULL; /* the journal wants to know */
    Py_ssize_t asked_bytes = is_asked ? given->end - given->start : 0;
    Py_ssize_t kept_bytes = lane->limit[ROUTE_BYTES] + size + asked_bytes;
    LevelCore *levels[LEVELS];
    if (owned == NULL || PyDict_Size(owned) >= lane->limit[LIMIT_ROUTES] ||
        !find_levels(lane, call->session->account, levels) || !may_keep(lane, levels, kept_bytes))
        return NULL;
    RouteCore *route = (RouteCore *)PyType_GenericAlloc((PyTypeObject *)lane->route_type, 0); /* all zero */
    if (route == NULL)
        return NULL;
    route->requester = Py_NewRef((PyObject *)call->session);
    route->owner = Py_NewRef(element->owner);
    route->path = Py_NewRef(element->path);
    route->is_set = (char)is_set;
    route->kept_bytes = kept_bytes;
    route->request_id = PyBytes_FromStringAndSize((const char *)id->start, id->end - id->start);
    route->message = PyBytes_FromStringAndSize((const char *)text, size);
    route->asked = PyBytes_FromStringAndSize(is_asked ? (const char *)given->start : "", asked_bytes);
    route->requested = PyBytes_FromStringAndSize(NULL, 0);
    route->bucket = find_bucket(call);
    if (call->record != Py_None) {
        PyObject *now_us = PyObject_GetAttr(call->record, lane->name[NAME_NOW_US]);
        route->opened_us = now_us == NULL ? -1 : PyLong_AsSsize_t(now_us);
        Py_XDECREF(now_us);
    }
    RoutesCore *routes = (RoutesCore *)lane->routes;
    route->id = PyBytes_FromFormat("\"r%zd\"", ++routes->count);
    if (route->request_id == NULL || route->message == NULL || route->asked == NULL || route->requested == NULL ||
        route->bucket == NULL || route->id == NULL || PyErr_Occurred() ||
        PyDict_SetItem(route->bucket, route->id, (PyObject *)route) < 0 ||
        PyDict_SetItem(((SessionCore *)route->owner)->routes, route->id, (PyObject *)route) < 0) {
        Py_DECREF((PyObject *)route);
        return NULL;
    }
    if (find_levels(lane, call->session->account, levels)) /* anew, after calls into Python */
        note_bytes(levels, kept_bytes);
    return route;
}

/* Handle a set or call, as `change` does. */
static int
request(Call *call, const Found *found, Text text, Py_ssize_t size, int is_set)
{
    const Lane *lane = call->lane;
    const Part *id = &found->member[MEMBER_ID], *path = &found->param[PARAM_PATH];
    const Part *given = &found->param[is_set ? PARAM_VALUE : PARAM_ARGS];
    if (!(call->session->flags & ASKS) || id->start == NULL || found->member[MEMBER_JSONRPC].start != NULL ||
        path->start == NULL || *path->start != '"' || (is_set && given->start == NULL) || has_details(found))
        return 0;
    ElementCore *element = find_element(lane, path);
    if (element == NULL)
        return PyErr_Occurred() ? -1 : 0;
    SessionCore *owner = (SessionCore *)Py_NewRef(element->owner);
    int flags = flags_of((PyObject *)element, lane->judge_element), framing = 0, done = -1;
    if (flags >= 0 && (!(flags & ASKED) || element->is_method == is_set))
        done = 0;
    else if (flags >= 0 && (framing = flags_of((PyObject *)owner, lane->judge_session)) >= 0) {
        done = 0;
        RouteCore *route = framing & OWNS ? open_route(call, element, text, size, id, is_set, given) : NULL;
        if (route != NULL) {
            PyObject *frame = encode_request(framing, route->id, element, is_set, given);
            done = frame == NULL || put(call, owner, frame) < 0 ? -1 : 1;
            Py_DECREF((PyObject *)route);
        } else if (PyErr_Occurred())
            done = -1;
    }
    Py_DECREF(owner);
    Py_DECREF(element);
    return done;
}

/* -- results */

static PyObject *
encode_result(int framing, PyObject *id, const Part *result)
{
    char *at;
    Py_ssize_t size = LITERAL_BYTES("{\"id\":,\"result\":}") + PyBytes_Size(id) + (result->end - result->start);
    PyObject *frame = new_frame(framing, size, &at);
    if (frame != NULL) {
        at = ADD_LITERAL(at, "{\"id\":");
        at = ADD_OBJECT(at, id);
        at = ADD_LITERAL(at, ",\"result\":");
        at = ADD_PART(at, result);
        ADD_LITERAL(at, "}");
    }
    return frame;
}

/* Close a route, as Routes.close does. */
static int
close_route(Call *call, RouteCore *route, SessionCore *requester, PyObject *id)
{
    LevelCore *levels[LEVELS];
    if (!find_levels(call->lane, requester->account, levels)) {
        PyErr_SetString(PyExc_TypeError, "a session has an account");
        return -1;
    }
    if (PyDict_DelItem(call->session->routes, id) < 0 || PyDict_DelItem(route->bucket, id) < 0)
        return -1;
    note_bytes(levels, -route->kept_bytes);
    return 0;
}

/* Handle the result of a set or call, as `change` does. */
static int
response(Call *call, const Found *found)
{
    const Lane *lane = call->lane;
    const Part *given = &found->member[MEMBER_ID], *result = &found->member[MEMBER_RESULT];
    /* The journal wants to know the outcome. */
    if (call->record != Py_None || given->start == NULL || result->start == NULL ||
        found->member[MEMBER_ERROR].start != NULL)
        return 0;
    PyObject *id = PyBytes_FromStringAndSize((const char *)given->start, given->end - given->start);
    if (id == NULL)
        return -1;
    int done = 0, framing;
    RouteCore *route = (RouteCore *)PyDict_GetItemWithError(call->session->routes, id);
    if (route == NULL)
        done = PyErr_Occurred() ? -1 : 0;
    else if (IS_A((PyObject *)route, lane->route_core) && !route->by_jsonrpc && PyBytes_Size(route->requested) == 0) {
        Py_INCREF((PyObject *)route);
        SessionCore *requester = (SessionCore *)Py_NewRef(route->requester);
        if ((framing = flags_of((PyObject *)requester, lane->judge_session)) < 0)
            done = -1;
        else if (framing & (STREAM | WEBSOCKET)) {
            PyObject *frame = encode_result(framing, route->request_id, result);
            if (frame == NULL || close_route(call, route, requester, id) < 0) {
                Py_XDECREF(frame);
                done = -1;
            } else
                done = put(call, requester, frame) < 0 ? -1 : 1;
        }
        Py_DECREF(requester);
        Py_DECREF((PyObject *)route);
    }
    Py_DECREF(id);
    return done;
}

/* -- messages and buffers */

#define IS_NAME(part, text)                                                                                            \
    ((part)->end - (part)->start == (Py_ssize_t)LITERAL_BYTES(text) + 2 &&                                             \
     memcmp((part)->start + 1, text, LITERAL_BYTES(text)) == 0)

/* Handle a message if it is usual, as `change` does. */
static int
handle(Call *call, const Found *found, Text text, Py_ssize_t size)
{
    const Part *method = &found->member[MEMBER_METHOD], *params = &found->member[MEMBER_PARAMS];
    const Part *path = &found->param[PARAM_PATH], *value = &found->param[PARAM_VALUE];
    if (!(call->session->flags & SENDS))
        return 0;
    if (method->start == NULL)
        return response(call, found);
    if (params->start == NULL || *params->start != '{')
        return 0;
    if (IS_NAME(method, "change"))
        return found->member[MEMBER_ID].start == NULL && path->start != NULL && *path->start == '"' &&
                       value->start != NULL && !has_details(found)
                   ? change(call, path, value)
                   : 0;
    if (IS_NAME(method, "set"))
        return request(call, found, text, size, 1);
    if (IS_NAME(method, "call"))
        return request(call, found, text, size, 0);
    return 0;
}

/* Tell whether a turn is over; -1 with an error. */
static int
is_over(Call *call, double turn_ends)
{
    PyObject *now = PyObject_CallFunctionObjArgs(call->lane->clock, NULL);
    double seconds = now == NULL ? -1.0 : PyFloat_AsDouble(now);
    Py_XDECREF(now);
    forget_rows(call);
    call->work = 0;
    return PyErr_Occurred() ? -1 : seconds > turn_ends;
}

/* The answer of `serve`. Steals text and message. */
static PyObject *
answer(Py_ssize_t at, Py_ssize_t handled, PyObject *text, PyObject *message)
{
    PyObject *numbers[] = {PyLong_FromSsize_t(at), PyLong_FromSsize_t(handled)};
    PyObject *all = text == NULL || message == NULL || numbers[0] == NULL || numbers[1] == NULL
                        ? NULL
                        : PyTuple_Pack(4, numbers[0], numbers[1], text, message);
    Py_XDECREF(numbers[0]);
    Py_XDECREF(numbers[1]);
    Py_XDECREF(text);
    Py_XDECREF(message);
    return all;
}

/* Handle the usual messages of a buffer from `at` on. Returns what `serve` of lane.py does. */
static PyObject *
serve(Call *call, PyObject *data, Py_ssize_t at, double turn_ends, Py_ssize_t bytes_max, Py_ssize_t long_bytes)
{
    const Reader *reader = (Reader *)call->lane->reader;
    char *start;
    Py_ssize_t end, handled = 0;
    if (PyBytes_AsStringAndSize(data, &start, &end) < 0)
        return NULL;
    while (end - at >= HEADER_BYTES) {
        Text header = (Text)start + at, text = header + HEADER_BYTES;
        Py_ssize_t size = (Py_ssize_t)header[0] << 24 | header[1] << 16 | header[2] << 8 | header[3];
        Found found;
        if (size > bytes_max || size > end - at - HEADER_BYTES)
            break;
        int flags = flags_of((PyObject *)call->session, call->lane->judge_session);
        if (flags < 0)
            return NULL;
        if (!(flags & READY))
            break; /* something has happened to the session meanwhile */
        Part path, value;
        int done = 0, is_sound = 0, over = 0;
        call->work++;
        if (size > SHORT_BYTES || call->work >= WORK_UNSEEN)
            over = is_over(call, turn_ends);
        if (over < 0)
            return NULL;
        if (!over && size <= long_bytes && (flags & SENDS) &&
            find_change(text, size, reader->depth_max, reader->chars_max, &path, &value) &&
            (done = change(call, &path, &value)) < 0)
            return NULL;
        if (!over && size <= long_bytes && !done) {
            is_sound = find_parts(text, size, reader->depth_max, reader->chars_max, &found);
            if (is_sound && (done = handle(call, &found, text, size)) < 0)
                return NULL;
        }
        at += HEADER_BYTES + size;
        if (done) {
            handled++;
            continue;
        }
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)text, size), *message = NULL;
        if (over)
            message = Py_NewRef(Py_True);
        else if (size > long_bytes)
            message = Py_NewRef(Py_None);
        else if (bytes != NULL)
            message = read_parts(reader, bytes, is_sound ? &found : NULL);
        return answer(at, handled, bytes, message);
    }
    return answer(at, handled, Py_NewRef(Py_None), Py_NewRef(Py_None));
}

static int
check_arguments(const Lane *lane, PyObject *const *args, Py_ssize_t count, Py_ssize_t expected)
{
    if (count == expected && IS_A(args[0], lane->session_core))
        return 1;
    PyErr_Format(PyExc_TypeError, "the lane takes a session and %zd more arguments", expected - 1);
    return 0;
}

static PyObject *
lane_serve(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Call call = {.lane = (Lane *)self};
    if (!check_arguments(call.lane, args, count, 8))
        return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(args[2]), bytes_max = PyLong_AsSsize_t(args[6]);
    Py_ssize_t long_bytes = PyLong_AsSsize_t(args[7]);
    double turn_ends = PyFloat_AsDouble(args[3]);
    call.now = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (at < 0) {
        PyErr_SetString(PyExc_ValueError, "a position in a buffer is not negative");
        return NULL;
    }
    call.session = (SessionCore *)args[0];
    call.record = args[5];
    PyObject *found = serve(&call, args[1], at, turn_ends, bytes_max, long_bytes);
    forget_rows(&call);
    return found;
}

static PyObject *
lane_take(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Call call = {.lane = (Lane *)self};
    const Reader *reader = (Reader *)call.lane->reader;
    char *start;
    Py_ssize_t size;
    Found found;
    if (!check_arguments(call.lane, args, count, 4))
        return NULL;
    PyObject *text = args[1];
    call.session = (SessionCore *)args[0];
    call.now = PyFloat_AsDouble(args[2]);
    call.record = args[3];
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(text, &start, &size) < 0 ||
        flags_of((PyObject *)call.session, call.lane->judge_session) < 0)
        return NULL;
    int is_sound = find_parts((Text)start, size, reader->depth_max, reader->chars_max, &found);
    int done = is_sound ? handle(&call, &found, (Text)start, size) : 0;
    forget_rows(&call);
    if (done)
        return done < 0 ? NULL : Py_NewRef(Py_None);
    return read_parts(reader, text, is_sound ? &found : NULL);
}

static const Py_ssize_t lane_fields[] = {
    offsetof(Lane, reader),        offsetof(Lane, elements),      offsetof(Lane, judge_element),
    offsetof(Lane, judge_session), offsetof(Lane, clock),         offsetof(Lane, routes),
    offsetof(Lane, route_type),    offsetof(Lane, level_core),    offsetof(Lane, account_core),
    offsetof(Lane, routes_core),   offsetof(Lane, name[NAME_BUCKET_OF]), offsetof(Lane, name[NAME_NOW_US]),
    offsetof(Lane, element_core),  offsetof(Lane, session_core),  offsetof(Lane, audience_core),
    offsetof(Lane, outbox_core),   offsetof(Lane, route_core),    offsetof(Lane, name[NAME_OPEN]),
    offsetof(Lane, name[NAME_PUT]), offsetof(Lane, name[NAME_NOTE]), offsetof(Lane, name[NAME_ROWS]),
    offsetof(Lane, name[NAME_CHANGE]), 0,
};

static PyObject *
lane_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *reader, *elements, *judge_element, *judge_session, *clock, *route_type, *routes, *limits;
    PyObject *module = PyType_GetModule(type);
    double timeout_s;
    if (module == NULL ||
        !PyArg_ParseTuple(args, "OO!OOOO!OdO!:Lane", &reader, &PyDict_Type, &elements, &judge_element, &judge_session,
                          &clock, &PyType_Type, &route_type, &routes, &timeout_s, &PyTuple_Type, &limits))
        return NULL;
    if (PyTuple_Size(limits) != LIMITS) {
        PyErr_Format(PyExc_TypeError, "the lane takes %d limits", LIMITS);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Lane *lane = (Lane *)allocate(type, 0); /* all zero */
    if (lane == NULL)
        return NULL;
    lane->reader = Py_NewRef(reader);
    lane->elements = Py_NewRef(elements);
    lane->judge_element = Py_NewRef(judge_element);
    lane->judge_session = Py_NewRef(judge_session);
    lane->clock = Py_NewRef(clock);
    lane->route_type = Py_NewRef(route_type);
    lane->routes = Py_NewRef(routes);
    lane->timeout_s = timeout_s;
    for (int index = 0; index < LIMITS; index++)
        lane->limit[index] = PyLong_AsSsize_t(PyTuple_GetItem(limits, index));
    int failed = PyErr_Occurred() != NULL ||
                 (lane->element_core = PyObject_GetAttrString(module, "ElementCore")) == NULL ||
                 (lane->session_core = PyObject_GetAttrString(module, "SessionCore")) == NULL ||
                 (lane->audience_core = PyObject_GetAttrString(module, "AudienceCore")) == NULL ||
                 (lane->outbox_core = PyObject_GetAttrString(module, "OutboxCore")) == NULL ||
                 (lane->route_core = PyObject_GetAttrString(module, "RouteCore")) == NULL ||
                 (lane->level_core = PyObject_GetAttrString(module, "LevelCore")) == NULL ||
                 (lane->account_core = PyObject_GetAttrString(module, "AccountCore")) == NULL ||
                 (lane->routes_core = PyObject_GetAttrString(module, "RoutesCore")) == NULL;
    for (int index = 0; index < NAMES && !failed; index++)
        failed = (lane->name[index] = PyUnicode_InternFromString(NAME_TEXTS[index])) == NULL;
    PyObject *reader_type = failed ? NULL : PyObject_GetAttrString(module, "Reader");
    if (reader_type != NULL && !(IS_A(reader, reader_type) && IS_A(routes, lane->routes_core) &&
                                 PyType_IsSubtype((PyTypeObject *)route_type, (PyTypeObject *)lane->route_core))) {
        PyErr_SetString(PyExc_TypeError, "the lane needs a Reader, routes and a type of routes");
        failed = 1;
    }
    failed |= reader_type == NULL;
    Py_XDECREF(reader_type);
    if (failed)
        Py_CLEAR(lane);
    return (PyObject *)lane;
}

static PyMethodDef lane_methods[] = {
    {"serve", (PyCFunction)(void (*)(void))lane_serve, METH_FASTCALL,
     "Handle the usual messages of a buffer; return the first that is not usual."},
    {"take", (PyCFunction)(void (*)(void))lane_take, METH_FASTCALL,
     "Handle a message if it is usual and return None; else return it."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef lane_members[] = {{NULL, 0, 0, 0, NULL}};

DEFINE_CORE(Lane, lane, lane_fields, {Py_tp_new, (void *)lane_new}, {Py_tp_methods, lane_methods}, )

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
    static const struct {
        const char *name;
        PyType_Spec *spec;
    } types[] = {
        {"Reader", &reader_spec},          {"ElementCore", &element_spec},   {"SessionCore", &session_spec},
        {"AudienceCore", &audience_spec},  {"OutboxCore", &outbox_spec},     {"RouteCore", &route_spec},
        {"LevelCore", &level_spec},        {"AccountCore", &account_spec},   {"RoutesCore", &routes_spec},
        {"Lane", &lane_spec},
    };
    int failed = intern_names();
    for (size_t index = 0; index < sizeof types / sizeof *types && !failed; index++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[index].spec, NULL);
        failed = type == NULL ? -1 : PyModule_AddObjectRef(module, types[index].name, type);
        Py_XDECREF(type);
    }
    for (int index = 0; index < FLAGS && !failed; index++)
        failed = PyModule_AddIntConstant(module, FLAG_NAMES[index].name, FLAG_NAMES[index].flag);
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
