/* The walk through a text: checks a JSON message in one pass and finds its parts. For _lane.c; makes no Python objects.
 *
 * On the way it checks all that a message must keep to: UTF-8, the grammar of JSON, the depth of nesting, the size of
 * numbers, and that no key is given twice in the message or its parameters. It notes where the parts are:
 *
 *     {"id":7,"method":"set","params":{"path":"a/b","value":[1,2]}}
 *           ^           ^             ^        ^            ^
 *       MEMBER_ID  MEMBER_METHOD  MEMBER_PARAMS PARAM_PATH  PARAM_VALUE
 *
 * A text that fails a check, or that has a rare form (a batch, parameters by position, a key with escapes), is left to
 * Python: intake.py looks at it again and finds out which of these it is. So nothing here knows how a text is refused.
 */

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

#define CHANGE_START "{\"method\":\"change\",\"params\":{\"path\":"
#define CHANGE_MIDDLE ",\"value\":"
#define CHANGE_END "}}"

/* Check a text that has the layout of nearly all changes; 0 if it has another one, or a fault. Most messages are such
 * texts, so this is worth having beside find_parts, which reads every layout. */
static int
find_change(Text text, Py_ssize_t size, Py_ssize_t depth_max, Py_ssize_t chars_max, Part *path, Part *value)
{
    Walk walk = {text + size, depth_max, chars_max};
    const Py_ssize_t start = sizeof CHANGE_START - 1, middle = sizeof CHANGE_MIDDLE - 1, end = sizeof CHANGE_END - 1;
    if (size <= start || memcmp(text, CHANGE_START, start) != 0 || text[start] != '"' || depth_max < 2)
        return 0;
    path->start = text + start;
    path->end = skip_string(&walk, path->start);
    if (path->end == NULL || walk.end - path->end <= middle || memcmp(path->end, CHANGE_MIDDLE, middle) != 0)
        return 0;
    value->start = path->end + middle;
    value->end = skip_value(&walk, value->start, 2);
    return value->end != NULL && walk.end - value->end == end && memcmp(value->end, CHANGE_END, end) == 0;
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
