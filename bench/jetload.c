/*
 * jetload - a load generator for Jet daemons.
 *
 * Speaks Jet's "trivial" protocol (4 byte big endian length + JSON-RPC) or its
 * binary protocol over TCP, one thread, epoll, no dependencies:
 *
 *     cc -O2 -Wall -o jetload jetload.c
 *     ./jetload HOST:PORT SCENARIO [--option value ...]
 *
 * It never builds a JSON tree: frames are counted and searched for a few keys,
 * so that the generator is not what is measured. One JSON line per run:
 *
 *     {"scenario":..,"params":{..},"msgs_per_s":..,"p50_us":..,"p99_us":..,
 *      "seconds":..,"ok":true, ...}
 *
 * Scenarios (all bounded by --n messages and by --t seconds):
 *   fanout   1 owner, 1 state, K fetchers; owner sends `change` notifications,
 *            never more than W ahead of the slowest fetcher. --sameid 1: all
 *            fetchers use the same fetch id, as peers of one library do.
 *   states   S states, one fetch-all fetcher, changes round robin.
 *   rules    F startsWith rules over C connections, S states, each state is
 *            matched by exactly one rule; the rules exist before the adds.
 *   adds     S adds, 500 in flight or in batches of --batch. --f F: under F
 *            startsWith rules over C connections, each state is matched by
 *            exactly one; it ends when every add is confirmed and notified.
 *   set      client sets, owner answers true; --change 1 adds a change
 *            notification that the client fetches. Window W.
 *   call     the same with a method and args [1,2].
 *   bigvalue fanout with an object value of about --size bytes.
 *   large    fanout with a value of about --size bytes that nobody needs to look
 *            into: a string in JSON, an octet-stream in binary.
 *   connect  C connections, one info (or config) request each, all kept open.
 *   crowd    S states, C connections with F startsWith rules, changes at --rate
 *            a second; meanwhile one otherwise idle connection sends info and
 *            set requests in turn, one every 2 ms whether or not the last one
 *            was answered. Latencies count from the moment a message was due.
 *
 * With --pid the daemon's CPU time and memory are read from /proc: per_cpu_s is
 * messages per second of daemon CPU, the figure to trust on a busy machine.
 *
 * --proto binary is Jet's binary protocol: all of it but connect, crowd, bigvalue
 * and batches. --proto redis|nats|mqtt run only `fanout`, as plain
 * publish/subscribe. What a protocol is made of is the table `protocols`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct conn;
typedef void handler(struct conn *, const char *, size_t);

struct protocol {
	const char *name;
	/* Cuts one protocol unit off p[0..n); gives its length, or 0 when incomplete and at least *need bytes are wanted.
	 * *body and *blen are what the handler sees; *body NULL means nothing to hand on. */
	size_t (*cut)(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need);
	void (*change)(const char *path, const char *num, size_t nl); /* the owner tells that a state has a new value */
	size_t (*subscribe)(struct conn *c); /* plain publish/subscribe only: asks, gives how many confirmations to await */
	/* Jet only */
	void (*add)(struct conn *c, uint64_t id, const char *path, bool method);
	void (*fetch)(struct conn *c, uint64_t id, int number, const char *op, const char *path);
	void (*request)(struct conn *c, uint64_t id, const char *path); /* set or call */
	handler *on_results, *on_fetcher, *on_owner, *on_client;
};

struct conn {
	int fd, idx;
	uint8_t *rb, *wb;
	size_t rl, rc, ws, wl, wc;
	bool want_write, dead, connected;
	handler *on;
	uint64_t last;     /* newest sequence number seen */
	uint64_t expect;   /* newest sequence number sent towards this one */
	uint64_t notif;    /* notifications seen */
	uint64_t results;  /* results seen */
	uint64_t acks;     /* pub/sub: subscription confirmed */
};

/* ---- options -------------------------------------------------------- */
static const char *host = "127.0.0.1", *port = "11122", *scenario;
static const struct protocol *proto;
static uint64_t opt_n = 100000000, opt_w = 1000;
static int opt_k = 1, opt_s = 10000, opt_f = -1, opt_c = -1, opt_batch = 1;
static int opt_change, opt_size = 2000, opt_pid, opt_equals = 1, opt_retain, opt_trace, opt_sameid;
static double opt_t = 2.0, opt_warm = 0.3, opt_rate = 10000;

/* ---- globals -------------------------------------------------------- */
static int ep;
static uint64_t now_ns;
static uint64_t errors, disorder;
static char first_error[200];
static char base[32];
static uint64_t closed_conns;

static uint64_t clock_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* makes a text fit between JSON's quotes */
static char *plain(char *text)
{
	for (char *p = text; *p; p++)
		if (*p == '"' || *p == '\\' || (unsigned char)*p < 32 || (unsigned char)*p > 126) *p = '\'';
	return text;
}

static void die(const char *fmt, ...)
{
	va_list ap;
	char buf[400];
	va_start(ap, fmt);
	vsnprintf(buf, sizeof buf, fmt, ap);
	va_end(ap);
	printf("{\"scenario\":\"%s\",\"ok\":false,\"why\":\"%s\",\"errors\":%llu,\"first_error\":\"%s\"}\n",
	       scenario ? scenario : "?", plain(buf), (unsigned long long)errors, plain(first_error));
	fflush(stdout);
	exit(1);
}

static void note_error(const char *p, size_t n)
{
	if (!errors++) {
		if (n > sizeof first_error - 1) n = sizeof first_error - 1;
		memcpy(first_error, p, n);
		first_error[n] = 0;
	}
}

/* ---- latency histograms: 32 buckets per power of two ----------------- */
struct hist {
	uint64_t bucket[64 * 32], n;
};
static struct hist lat, lat_info, lat_set; /* what is measured; crowd's two probes */
static bool measuring;

static void hist_add(struct hist *h, uint64_t ns)
{
	if (!measuring) return;
	int e = 63 - __builtin_clzll(ns | 1), b;
	b = e < 5 ? (int)ns : (e - 4) * 32 + (int)((ns >> (e - 5)) & 31);
	h->bucket[b]++;
	h->n++;
}

static double hist_us(const struct hist *h, double q)
{
	uint64_t want = (uint64_t)(q * h->n), seen = 0;
	for (int b = 0; b < 64 * 32; b++) {
		seen += h->bucket[b];
		if (seen > want) {
			double v = b < 32 ? b : (32.0 + (b & 31) + 0.5) * (double)(1ull << (b / 32 - 1));
			return v / 1000.0;
		}
	}
	return 0;
}

/* ---- /proc ------------------------------------------------------------ */
static long rss_kb(int pid)
{
	char path[64], line[256];
	long kb = -1;
	if (!pid) return -1;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *f = fopen(path, "r");
	if (!f) return -1;
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, "VmRSS:", 6)) kb = atol(line + 6);
	fclose(f);
	return kb;
}

/* CPU seconds of all threads: schedstat (ns) where the kernel has it, else stat (ticks) */
static double cpu_s(int pid)
{
	char path[320], line[1024], *p;
	unsigned long u = 0, s = 0;
	double sum = 0;
	struct dirent *d;
	if (!pid) return 0;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *dir = opendir(path);
	while (dir && (d = readdir(dir))) {
		unsigned long long ns;
		if (d->d_name[0] == '.') continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, d->d_name);
		FILE *f = fopen(path, "r");
		if (!f) continue;
		if (fscanf(f, "%llu", &ns) == 1) sum += ns / 1e9;
		fclose(f);
	}
	if (dir) closedir(dir);
	if (sum > 0) return sum;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f) return 0;
	if (fgets(line, sizeof line, f) && (p = strrchr(line, ')')))
		sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &s);
	fclose(f);
	return (double)(u + s) / sysconf(_SC_CLK_TCK);
}

static double own_cpu_s(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* ---- output buffering --------------------------------------------------- */
static void *xrealloc(void *p, size_t n)
{
	p = realloc(p, n);
	if (!p) die("out of memory");
	return p;
}

static uint8_t *room(struct conn *c, size_t n)
{
	if (c->wl + n > c->wc) {
		c->wc = (c->wl + n) * 2 + 4096;
		c->wb = xrealloc(c->wb, c->wc);
	}
	return c->wb + c->wl;
}

static void put(struct conn *c, const void *p, size_t n)
{
	memcpy(room(c, n), p, n);
	c->wl += n;
}

static void flush(struct conn *c)
{
	if (c->dead || !c->connected) return;
	while (c->ws < c->wl) {
		ssize_t r = send(c->fd, c->wb + c->ws, c->wl - c->ws, MSG_NOSIGNAL);
		if (r < 0) {
			if (errno == EAGAIN) break;
			c->dead = true;
			closed_conns++;
			return;
		}
		c->ws += r;
	}
	bool more = c->ws < c->wl;
	if (!more) c->ws = c->wl = 0;
	if (more != c->want_write) {
		struct epoll_event e = {.events = EPOLLIN | (more ? EPOLLOUT : 0), .data.ptr = c};
		epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
		c->want_write = more;
	}
}

static void trace(const struct conn *c, char direction, const void *body, size_t n)
{
	if (!opt_trace) return;
	fprintf(stderr, "%d %c ", c->idx, direction);
	for (size_t i = 0; i < n && i < 300; i++) {
		uint8_t b = ((const uint8_t *)body)[i];
		if (b < 32 || b > 126) fprintf(stderr, "<%02x>", b);
		else fputc(b, stderr);
	}
	fputc('\n', stderr);
}

static void frame(struct conn *c, const char *p, size_t n)
{
	trace(c, '>', p, n);
	uint32_t be = htonl((uint32_t)n);
	put(c, &be, 4);
	put(c, p, n);
}

static void framef(struct conn *c, const char *fmt, ...)
{
	char buf[1024];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(buf, sizeof buf, fmt, ap);
	va_end(ap);
	frame(c, buf, n);
}

/* ---- input ------------------------------------------------------------ */
static size_t cut_frame(uint32_t len, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	*need = 4 + (size_t)len;
	if (n < *need) return 0;
	*body = (const char *)p + 4;
	*blen = len;
	return *need;
}

static size_t cut_json(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	(void)c;
	return cut_frame((uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3], p, n, body, blen, need);
}

static inline uint32_t u32(const uint8_t *p)
{
	return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t cut_binary(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	(void)c;
	return cut_frame(u32(p), p, n, body, blen, need);
}

static size_t cut_redis(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	(void)c, (void)need;
	size_t i = 0;
	const uint8_t *e = memchr(p, '\n', n);
	*body = NULL;
	if (!e) return 0;
	i = e - p + 1;
	if (p[0] == '-') { *body = (const char *)p; *blen = i; return i; }
	if (p[0] != '*') return i;
	int parts = atoi((const char *)p + 1);
	bool is_message = false;
	for (int k = 0; k < parts; k++) {
		if (i >= n || !(e = memchr(p + i, '\n', n - i))) return 0;
		if (p[i] == '$') {
			size_t len = strtoul((const char *)p + i + 1, NULL, 10), at = e - p + 1;
			if (at + len + 2 > n) return 0;
			if (k == 0) is_message = len == 7 && !memcmp(p + at, "message", 7);
			if (k == 2 && is_message) { *body = (const char *)p + at; *blen = len; }
			i = at + len + 2;
		} else {
			i = e - p + 1;
		}
	}
	if (!is_message) { *body = "sub"; *blen = 3; }
	return i;
}

static size_t cut_nats(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	(void)need;
	const uint8_t *e = memchr(p, '\n', n);
	*body = NULL;
	if (!e) return 0;
	size_t i = e - p + 1;
	if (!memcmp(p, "MSG ", 4)) {
		const uint8_t *q = e - 1;
		while (isdigit(q[-1])) q--;
		size_t len = strtoul((const char *)q, NULL, 10);
		if (i + len + 2 > n) return 0;
		*body = (const char *)p + i;
		*blen = len;
		return i + len + 2;
	}
	if (!memcmp(p, "PING", 4)) { put(c, "PONG\r\n", 6); flush(c); }
	else if (!memcmp(p, "PONG", 4)) { *body = "sub"; *blen = 3; }
	else if (p[0] == '-') { *body = (const char *)p; *blen = i; }
	return i;
}

static size_t cut_mqtt(struct conn *c, const uint8_t *p, size_t n, const char **body, size_t *blen, size_t *need)
{
	(void)c, (void)need;
	size_t len = 0, i = 1;
	int shift = 0;
	*body = NULL;
	do {
		if (i >= n) return 0;
		len |= (size_t)(p[i] & 127) << shift;
		shift += 7;
	} while (p[i++] & 128);
	if (i + len > n) return 0;
	if ((p[0] & 0xf0) == 0x30) {
		size_t tl = (size_t)p[i] << 8 | p[i + 1];
		*body = (const char *)p + i + 2 + tl;
		*blen = len - 2 - tl;
	} else if ((p[0] & 0xf0) == 0x20 || (p[0] & 0xf0) == 0x90) {
		*body = "sub";
		*blen = 3;
	}
	return i + len;
}

static void drop(struct conn *c)
{
	if (!c->dead) closed_conns++;
	c->dead = true;
	epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
}

static void do_read(struct conn *c)
{
	if (c->rc - c->rl < 65536) {
		c->rc = c->rl + 131072;
		c->rb = xrealloc(c->rb, c->rc);
	}
	ssize_t r = recv(c->fd, c->rb + c->rl, c->rc - c->rl, 0);
	if (r <= 0) {
		if (r < 0 && errno == EAGAIN) return;
		drop(c);
		return;
	}
	now_ns = clock_ns();
	c->rl += r;
	size_t at = 0;
	while (c->rl - at >= 4) {
		const uint8_t *p = c->rb + at;
		const char *body = NULL;
		size_t blen = 0, need = 0, used = proto->cut(c, p, c->rl - at, &body, &blen, &need);
		if (!used) {
			if (c->rc < need + at) c->rb = xrealloc(c->rb, c->rc = need + at + 65536);
			break;
		}
		if (body) trace(c, '<', body, blen);
		if (body && blen && c->on) c->on(c, body, blen);
		at += used;
	}
	if (at) {
		memmove(c->rb, c->rb + at, c->rl - at);
		c->rl -= at;
	}
}

static void pump(int timeout_ms)
{
	struct epoll_event ev[256];
	int n = epoll_wait(ep, ev, 256, timeout_ms);
	for (int i = 0; i < n; i++) {
		struct conn *c = ev[i].data.ptr;
		if (c->dead) continue;
		if (!c->connected) {
			int err = 0;
			socklen_t l = sizeof err;
			getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &l);
			if (err) { drop(c); continue; }
			c->connected = true;
			c->want_write = true;
			flush(c);
		}
		if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) do_read(c);
		if (!c->dead && (ev[i].events & EPOLLOUT)) flush(c);
	}
	now_ns = clock_ns();
}

static struct addrinfo *addr;

static void open_conn(struct conn *c, int idx, handler *on)
{
	memset(c, 0, sizeof *c);
	c->idx = idx;
	c->on = on;
	c->fd = socket(addr->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (c->fd < 0) die("socket: %s", strerror(errno));
	int one = 1;
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(c->fd, addr->ai_addr, addr->ai_addrlen) < 0 && errno != EINPROGRESS)
		die("connect: %s", strerror(errno));
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
	epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

/* Pump until cond; give up after `secs` without success. */
#define WAIT(cond, secs, what)                                                  \
	do {                                                                    \
		uint64_t until_ = clock_ns() + (uint64_t)((secs)*1e9);          \
		while (!(cond)) {                                               \
			pump(100);                                              \
			if (closed_conns) die("daemon closed a connection: " what); \
			if (now_ns > until_) die("timeout: " what);             \
		}                                                               \
	} while (0)

/* ---- cheap JSON ---------------------------------------------------------- */
static inline const char *find(const char *p, const char *end, const char *key, size_t kl)
{
	return memmem(p, end - p, key, kl);
}
#define FIND(p, end, key) find(p, end, key, sizeof(key) - 1)

static inline const char *after_colon(const char *p, const char *end)
{
	while (p < end && (*p == ':' || *p == ' ')) p++;
	return p;
}

static inline uint64_t number(const char *p, const char *end)
{
	uint64_t v = 0;
	while (p < end && *p >= '0' && *p <= '9') v = v * 10 + (*p++ - '0');
	return v;
}

/* ---- handlers -------------------------------------------------------------- */
#define RING 131072
static uint64_t sent_at[RING];
static const char *seq_key = "\"value\"";
static size_t seq_key_len = 7;

static inline void seen(struct conn *c, uint64_t v)
{
	c->notif++;
	if (!v) return; /* the initial add */
	if (v <= c->last) disorder++;
	else c->last = v;
	hist_add(&lat, now_ns - sent_at[v % RING]);
}

/* ---- reporting ------------------------------------------------------------- */
static double r_t0, r_cpu0, r_own0;

static void measure_start(void)
{
	memset(&lat, 0, sizeof lat);
	memset(&lat_info, 0, sizeof lat_info);
	memset(&lat_set, 0, sizeof lat_set);
	measuring = true;
	r_cpu0 = cpu_s(opt_pid);
	r_own0 = own_cpu_s();
	r_t0 = clock_ns() / 1e9;
}

static void report(double msgs, bool ok, const char *params, const char *extra)
{
	double secs = clock_ns() / 1e9 - r_t0;
	double dcpu = cpu_s(opt_pid) - r_cpu0, ocpu = own_cpu_s() - r_own0;
	printf("{\"scenario\":\"%s\",\"params\":{%s},\"msgs_per_s\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,"
	       "\"seconds\":%.3f,\"ok\":%s,\"msgs\":%.0f,\"per_cpu_s\":%.0f,\"daemon_cpu\":%.2f,\"gen_cpu\":%.2f,"
	       "\"errors\":%llu,\"disorder\":%llu,\"first_error\":\"%s\"%s%s}\n",
	       scenario, params, msgs / secs, hist_us(&lat, 0.5), hist_us(&lat, 0.99), secs,
	       ok && !errors && !disorder && !closed_conns ? "true" : "false", msgs,
	       dcpu > 0 ? msgs / dcpu : 0, dcpu / secs, ocpu / secs, (unsigned long long)errors, (unsigned long long)disorder,
	       plain(first_error), *extra ? "," : "", extra);
	fflush(stdout);
}

/* ---- who takes part -------------------------------------------------------- */
static struct conn *owner, *peers;
static int npeers;
static char **paths;
static int npaths;

/* What a state holds: `head`, the sequence number, `tail`; `type` is the binary protocol's. */
enum { NO_VALUE = 0, JSON_VALUE = 1, BYTES_VALUE = 3 };
static struct {
	const char *head, *tail;
	size_t head_len, tail_len;
	int type;
} value = {"", "", 0, 0, JSON_VALUE};

static int target_of(uint64_t seq) /* -1: every peer */
{
	if (strcmp(scenario, "rules") && strcmp(scenario, "crowd")) return -1;
	return (int)((seq % npaths) % opt_f % npeers);
}

/* ---- Jet in JSON --------------------------------------------------------------- */
static uint64_t answered;
static bool is_call;

static void on_fetcher(struct conn *c, const char *p, size_t n)
{
	const char *end = p + n, *q = p;
	bool many = *p == '[', any = false;
	while ((q = find(q, end, seq_key, seq_key_len))) {
		q = after_colon(q + seq_key_len, end);
		seen(c, number(q, end));
		any = true;
		if (!many) return;
	}
	if (many || !any) {
		q = p;
		while ((q = FIND(q, end, "\"result\""))) {
			c->results++;
			any = true;
			q += 8;
		}
	}
	if (!any && FIND(p, end, "\"error\"")) note_error(p, n);
}

static void on_results(struct conn *c, const char *p, size_t n)
{
	const char *end = p + n, *q = p;
	bool any = false;
	while ((q = FIND(q, end, "\"result\""))) {
		c->results++;
		any = true;
		q += 8;
		if (*p != '[') return;
	}
	if ((!any || *p == '[') && FIND(p, end, "\"error\"")) note_error(p, n);
}

static void on_owner_request(struct conn *c, const char *p, size_t n)
{
	const char *end = p + n, *q = p, *e;
	if (!c->acks) { on_results(c, p, n); return; } /* still in setup */
	if (FIND(p, end, "\"error\"")) { note_error(p, n); return; }
	if (!FIND(p, end, "\"method\"")) return; /* unsolicited result of a change */
	while ((q = FIND(q, end, "\"id\""))) {
		q = after_colon(q + 4, end);
		e = q;
		if (*e == '"') { e++; while (e < end && *e != '"') e += *e == '\\' ? 2 : 1; e++; }
		else while (e < end && *e != ',' && *e != '}') e++;
		answered++;
		if (opt_change)
			framef(c, "{\"method\":\"change\",\"params\":{\"path\":\"%s\",\"value\":%llu}}",
			       paths[0], (unsigned long long)answered);
		framef(c, "{\"id\":%.*s,\"result\":true}", (int)(e - q), q);
		q = e;
		if (*p != '[') break;
	}
}

static void on_client(struct conn *c, const char *p, size_t n)
{
	const char *end = p + n, *q = p;
	if (!c->acks) { on_fetcher(c, p, n); return; }
	if (opt_change && FIND(p, end, "\"method\"")) { /* the notification of a change */
		c->notif++;
		if (*p != '[') return;
	}
	if (FIND(p, end, "\"error\"")) { note_error(p, n); c->results++; return; }
	while ((q = FIND(q, end, "\"id\""))) {
		q = after_colon(q + 4, end);
		uint64_t id = number(q, end);
		c->results++;
		hist_add(&lat, now_ns - sent_at[id % RING]);
		if (*p != '[') break;
	}
}

static void json_change(const char *path, const char *num, size_t nl)
{
	static const char a[] = "{\"method\":\"change\",\"params\":{\"path\":\"", b[] = "\",\"value\":";
	size_t pl = strlen(path);
	size_t n = sizeof a - 1 + pl + sizeof b - 1 + value.head_len + nl + value.tail_len + 2;
	uint8_t *w = room(owner, n + 4), *s = w;
	uint32_t be = htonl((uint32_t)n);
#define CP(x, l) (memcpy(w, x, l), w += (l))
	CP(&be, 4);
	CP(a, sizeof a - 1);
	CP(path, pl);
	CP(b, sizeof b - 1);
	CP(value.head, value.head_len);
	CP(num, nl);
	CP(value.tail, value.tail_len);
	CP("}}", 2);
	owner->wl += w - s;
	trace(owner, '>', s + 4, n);
}

/* writes one add into buf, which has room for it */
static size_t json_add_text(char *buf, uint64_t id, const char *path, bool method)
{
	size_t l = sprintf(buf, "{\"id\":%llu,\"method\":\"add\",\"params\":{\"path\":\"%s\"", (unsigned long long)id, path);
	if (!method) l += sprintf(buf + l, ",\"value\":%s0%s", value.head, value.tail);
	return l + sprintf(buf + l, "}}");
}

static void json_add(struct conn *c, uint64_t id, const char *path, bool method)
{
	char *buf = xrealloc(NULL, 1024 + value.tail_len);
	frame(c, buf, json_add_text(buf, id, path, method));
	free(buf);
}

/* one frame with up to `batch` adds, from path number `first` on; gives how many */
static int json_add_batch(struct conn *c, uint64_t first, int batch, bool method)
{
	char *buf = xrealloc(NULL, (size_t)batch * (1024 + value.tail_len));
	size_t l = 0;
	int n = 0;
	for (; n < batch && first + n < (uint64_t)npaths; n++) {
		buf[l++] = n ? ',' : '[';
		l += json_add_text(buf + l, first + n + 1, paths[first + n], method);
	}
	buf[l++] = ']';
	frame(c, buf, l);
	free(buf);
	return n;
}

static void json_fetch(struct conn *c, uint64_t id, int number, const char *op, const char *path)
{
	framef(c, "{\"id\":%llu,\"method\":\"fetch\",\"params\":{\"id\":\"f%d\",\"path\":{\"%s\":\"%s\"}}}",
	       (unsigned long long)id, number, op, path);
}

static void json_request(struct conn *c, uint64_t id, const char *path)
{
	unsigned long long n = id;
	if (is_call) framef(c, "{\"id\":%llu,\"method\":\"call\",\"params\":{\"path\":\"%s\",\"args\":[1,2]}}", n, path);
	else framef(c, "{\"id\":%llu,\"method\":\"set\",\"params\":{\"path\":\"%s\",\"value\":%llu}}", n, path, n);
}

/* ---- Jet in binary, docs/binary-protocol.md --------------------------------------- */
enum { INFO = 1, REQUEST, RESPONSE, EVENT };
enum { ADD_STATE = 1, SET_STATE = 3, ADD_METHOD = 4, CALL_METHOD = 6, NOTIFY_STATE = 7, FETCH_STATES = 8 };
enum { TOLD_ADD = 0x10, TOLD_CHANGE, TOLD_REMOVE, TOLD_SORTED, TOLD_SEVERAL };

static inline uint8_t *put_number(uint8_t *w, uint32_t v, int bytes)
{
	while (bytes--) {
		*w++ = (uint8_t)v;
		v >>= 8;
	}
	return w;
}

/* A request, or with id 0 an event: function and path. `more` bytes follow, for which it leaves room and gives the place. */
static uint8_t *binary_begin(struct conn *c, uint32_t id, int function, const char *path, size_t more)
{
	size_t pl = strlen(path), n = (id ? 6 : 2) + 2 + pl + more;
	uint8_t *w = put_number(room(c, 4 + n), (uint32_t)n, 4);
	*w++ = id ? REQUEST : EVENT;
	if (id) w = put_number(w, id, 4);
	*w++ = (uint8_t)function;
	w = put_number(w, (uint32_t)pl, 2);
	memcpy(w, path, pl);
	c->wl += 4 + n;
	return w + pl;
}

static void binary_put(struct conn *c, uint32_t id, int function, const char *path, const char *num, size_t nl)
{
	size_t n = value.head_len + nl + value.tail_len;
	uint8_t *w = binary_begin(c, id, function, path, 5 + n);
	*w++ = (uint8_t)value.type;
	w = put_number(w, (uint32_t)n, 4);
	CP(value.head, value.head_len);
	CP(num, nl);
	CP(value.tail, value.tail_len);
}

static void binary_change(const char *path, const char *num, size_t nl)
{
	binary_put(owner, 0, NOTIFY_STATE, path, num, nl);
}

static void binary_add(struct conn *c, uint64_t id, const char *path, bool method)
{
	if (method) binary_begin(c, (uint32_t)id, ADD_METHOD, path, 0);
	else binary_put(c, (uint32_t)id, ADD_STATE, path, "0", 1);
}

static void binary_fetch(struct conn *c, uint64_t id, int number, const char *op, const char *path)
{
	(void)number, (void)op; /* the daemon chooses the id; no path of a run begins with another one, so startsWith will do */
	binary_begin(c, (uint32_t)id, FETCH_STATES, path, 0);
}

static void binary_request(struct conn *c, uint64_t id, const char *path)
{
	char num[24];
	if (is_call) binary_put(c, (uint32_t)id, CALL_METHOD, path, "[1,2]", 5);
	else binary_put(c, (uint32_t)id, SET_STATE, path, num, snprintf(num, sizeof num, "%llu", (unsigned long long)id));
}

/* reads key and value of one told event; gives where they end, NULL when the message is too short for them */
static const uint8_t *binary_told(struct conn *c, const uint8_t *p, const uint8_t *end)
{
	if (end - p < 7) return NULL;
	const uint8_t *at = p + 2 + (p[0] | p[1] << 8);
	if (end - at < 5 || (size_t)(end - at) - 5 < u32(at + 1)) return NULL;
	const uint8_t *stop = at + 5 + u32(at + 1);
	if (c->acks) c->notif++;
	else seen(c, number((const char *)at + 5, (const char *)stop));
	return stop;
}

static void on_binary_event(struct conn *c, const uint8_t *p, size_t n)
{
	const uint8_t *at = p + 6, *end = p + n;
	if (n < 7) at = NULL;
	else if (p[1] != TOLD_SEVERAL) at = binary_told(c, at, end);
	else while (at && at < end) at = binary_told(c, at + 1, end);
	if (at != end) note_error("an event of the wrong length", 28);
}

static void binary_answer(struct conn *c, const uint8_t *p)
{
	char num[24];
	answered++;
	if (opt_change) binary_change(paths[0], num, snprintf(num, sizeof num, "%llu", (unsigned long long)answered));
	uint8_t *w = put_number(room(c, 10), 6, 4);
	*w++ = RESPONSE;
	memcpy(w, p + 1, 4);
	w[4] = 0;
	c->wl += 10;
}

/* the message's type says what is to be done with it, whoever gets it */
static void on_binary(struct conn *c, const char *text, size_t n)
{
	const uint8_t *p = (const uint8_t *)text;
	if (*p == EVENT) {
		on_binary_event(c, p, n);
	} else if (*p == REQUEST) {
		binary_answer(c, p);
	} else if (*p == RESPONSE) {
		c->results++;
		if (n < 6 || p[5]) note_error(text + (n > 12 ? 12 : 0), n - (n > 12 ? 12 : 0)); /* after code and length */
		else if (c->acks) hist_add(&lat, now_ns - sent_at[u32(p + 1) % RING]);
	} else if (*p != INFO) {
		note_error("an unknown type of message", 26);
	}
}

/* ---- plain publish/subscribe ----------------------------------------------------- */
static void on_pubsub(struct conn *c, const char *p, size_t n)
{
	if (isdigit((unsigned char)*p)) seen(c, number(p, p + n));
	else if (n == 3 && !memcmp(p, "sub", 3)) c->acks++;
	else note_error(p, n);
}

static void redis_change(const char *path, const char *num, size_t nl)
{
	char buf[160];
	put(owner, buf, snprintf(buf, sizeof buf, "*3\r\n$7\r\nPUBLISH\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
				 strlen(path), path, nl, num));
}

static size_t redis_subscribe(struct conn *c)
{
	char b[200];
	if (c == owner) return 0;
	put(c, b, sprintf(b, "SUBSCRIBE %s\r\n", paths[0]));
	return 1;
}

static void nats_change(const char *path, const char *num, size_t nl)
{
	char buf[160];
	put(owner, buf, snprintf(buf, sizeof buf, "PUB %s %zu\r\n%s\r\n", path, nl, num));
}

static size_t nats_subscribe(struct conn *c)
{
	char b[200];
	put(c, b, sprintf(b, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"));
	if (c != owner) put(c, b, sprintf(b, "SUB %s 1\r\n", paths[0]));
	put(c, b, sprintf(b, "PING\r\n"));
	return 1;
}

static void mqtt_change(const char *path, const char *num, size_t nl)
{
	uint8_t h[4];
	size_t pl = strlen(path);
	h[0] = 0x30 | (opt_retain ? 1 : 0);
	h[1] = 2 + pl + nl; /* always below 128 here */
	h[2] = pl >> 8;
	h[3] = pl;
	put(owner, h, 4);
	put(owner, path, pl);
	put(owner, num, nl);
}

static void mqtt_connect(struct conn *c)
{
	uint8_t p[64] = {0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0};
	int n = 12;
	char id[64];
	int l = sprintf(id, "%s%d", base + 1, c->idx + 1);
	p[n++] = 0;
	p[n++] = l;
	memcpy(p + n, id, l);
	n += l;
	p[1] = n - 2;
	put(c, p, n);
}

static size_t mqtt_subscribe(struct conn *c)
{
	mqtt_connect(c);
	if (c == owner) return 1;
	size_t pl = strlen(paths[0]);
	uint8_t h[6] = {0x82, 2 + 2 + pl + 1, 0, 1, pl >> 8, pl};
	put(c, h, 6);
	put(c, paths[0], pl);
	put(c, "\0", 1);
	return 2;
}

/* ---- the protocols ---------------------------------------------------------------- */
#define PUBSUB .on_results = on_pubsub, .on_fetcher = on_pubsub
static const struct protocol protocols[] = {
	{"json", cut_json, json_change, NULL, json_add, json_fetch, json_request, on_results, on_fetcher, on_owner_request, on_client},
	{"binary", cut_binary, binary_change, NULL, binary_add, binary_fetch, binary_request, on_binary, on_binary, on_binary, on_binary},
	{"redis", cut_redis, redis_change, redis_subscribe, PUBSUB},
	{"nats", cut_nats, nats_change, nats_subscribe, PUBSUB},
	{"mqtt", cut_mqtt, mqtt_change, mqtt_subscribe, PUBSUB},
};
#define N_PROTOCOLS (sizeof protocols / sizeof *protocols)

static const struct protocol *protocol_named(const char *name)
{
	for (size_t i = 0; i < N_PROTOCOLS; i++)
		if (!strcmp(protocols[i].name, name)) return &protocols[i];
	die("unknown protocol %s", name);
	return NULL;
}

/* ---- the engine: setup, changes, counting ------------------------------------------ */
static void send_change(uint64_t seq)
{
	char num[24];
	int nl = snprintf(num, sizeof num, "%llu", (unsigned long long)seq);
	sent_at[seq % RING] = now_ns;
	proto->change(paths[seq % npaths], num, nl);
}

static uint64_t total_notif(void)
{
	uint64_t t = 0;
	for (int i = 0; i < npeers; i++) t += peers[i].notif;
	return t;
}

static void run_changes(const char *params, const char *extra, uint64_t expect_per_change)
{
	uint64_t sent = 0, before, stall_at, n0 = 0, sent0 = 0;
	uint64_t start = clock_ns(), stop_at = start + (uint64_t)((opt_t + opt_warm) * 1e9);
	uint64_t warm_at = start + (uint64_t)(opt_warm * 1e9), last_total = total_notif();
	bool warm = false, stop = false;
	before = last_total;
	measure_start(); /* again after the warm-up */
	now_ns = stall_at = start;
	for (int i = 0; i < npeers; i++) peers[i].last = peers[i].expect = 0;
	if (opt_w > RING / 2) die("window too large");
	for (;;) {
		uint64_t low = sent;
		bool behind = false;
		for (int i = 0; i < npeers; i++)
			if (peers[i].last < peers[i].expect) {
				behind = true;
				if (peers[i].last < low) low = peers[i].last;
			}
		if ((stop || sent >= opt_n) && !behind) break;
		while (!stop && sent < opt_n && sent - low < opt_w) {
			sent++;
			send_change(sent);
			int t = target_of(sent);
			if (t >= 0) peers[t].expect = sent;
			else for (int i = 0; i < npeers; i++) peers[i].expect = sent;
		}
		if (!owner->want_write) flush(owner);
		pump(50);
		if (closed_conns) {
			note_error("daemon closed a connection", 26);
			break;
		}
		uint64_t total = total_notif();
		if (total != last_total) { last_total = total; stall_at = now_ns; }
		else if (now_ns - stall_at > 5000000000ull) { note_error("stalled for 5 s", 15); break; }
		if (!warm && now_ns >= warm_at) {
			warm = true;
			n0 = total;
			sent0 = sent;
			measure_start();
		}
		if (now_ns >= stop_at) stop = true;
	}
	if (!warm) n0 = before;
	uint64_t total = total_notif();
	bool ok = total - before == sent * expect_per_change;
	char x[600];
	snprintf(x, sizeof x, "\"changes_per_s\":%.0f,\"sent\":%llu,\"delivered\":%llu%s%s",
		 (sent - sent0) / (clock_ns() / 1e9 - r_t0), (unsigned long long)sent,
		 (unsigned long long)(total - before), *extra ? "," : "", extra);
	report((double)(total - n0), ok, params, x);
}

static void wait_results(struct conn *c, uint64_t n, double secs)
{
	WAIT(c->results >= n || errors, secs, "setup request not answered");
	if (errors) die("setup request refused");
}

/* adds all paths through one connection, batches of JSON or one by one; returns seconds */
static double add_all(struct conn *c, bool method, int batch)
{
	double t = clock_ns() / 1e9;
	uint64_t base_r = c->results, sent = 0, until = clock_ns() + 60000000000ull;
	if (batch > 1 && strcmp(proto->name, "json")) die("there are no batches in this protocol");
	while (c->results - base_r < (uint64_t)npaths) {
		while (sent < (uint64_t)npaths && sent - (c->results - base_r) < (uint64_t)(batch > 500 ? batch : 500)) {
			if (batch > 1) {
				sent += json_add_batch(c, sent, batch, method);
				continue;
			}
			proto->add(c, sent + 1, paths[sent], method);
			sent++;
		}
		if (!c->want_write) flush(c);
		pump(50);
		if (errors) die("add refused");
		if (closed_conns) die("daemon closed a connection during adds");
		if (now_ns > until) die("timeout during adds");
	}
	return clock_ns() / 1e9 - t;
}

static void make_paths(int n, const char *fmt, int mod)
{
	npaths = n;
	paths = xrealloc(NULL, n * sizeof *paths);
	for (int i = 0; i < n; i++) {
		char b[128];
		snprintf(b, sizeof b, fmt, base, mod ? i % mod : i, mod ? i / mod : 0);
		paths[i] = strdup(b);
	}
}

static void open_all(int n, handler *on)
{
	npeers = n;
	peers = xrealloc(NULL, n * sizeof *peers);
	for (int i = 0; i < n; i++) {
		open_conn(&peers[i], i, on);
		if (i >= 64) WAIT(peers[i - 64].connected, 10, "connect"); /* a listener's backlog is short */
	}
	for (int i = 0; i < n; i++) WAIT(peers[i].connected, 10, "connect");
}

static void open_owner(void)
{
	owner = xrealloc(NULL, sizeof *owner);
	open_conn(owner, -1, proto->on_results);
	WAIT(owner->connected, 10, "connect owner");
}

static void subscribe_all(void)
{
	for (int i = -1; i < npeers; i++) {
		struct conn *c = i < 0 ? owner : &peers[i];
		size_t need = proto->subscribe(c);
		flush(c);
		WAIT(c->acks >= need || errors, 5, "subscribe");
		if (errors) die("subscribe refused");
	}
}

/* a nested object of about opt_size bytes, like a device description */
static void hold_objects(void)
{
	char *text = xrealloc(NULL, opt_size + 512);
	size_t l = sprintf(text, ",\"channels\":[");
	for (int i = 0; (int)l < opt_size - 110; i++)
		l += sprintf(text + l, "%s{\"name\":\"channel %d\",\"unit\":\"mV\",\"gain\":%d.5,\"on\":%s,\"range\":[-10,10],\"tag\":null}",
			     i ? "," : "", i, i, i & 1 ? "true" : "false");
	l += sprintf(text + l, "]}");
	value.head = "{\"seq\":";
	value.head_len = 7;
	value.tail = text;
	value.tail_len = l;
	seq_key = "\"seq\"";
	seq_key_len = 5;
}

/* opt_size bytes behind the sequence number: every byte there is, or between quotes those that JSON does not escape */
static void hold_bytes(void)
{
	bool quoted = !strcmp(proto->name, "json");
	char *bytes = xrealloc(NULL, opt_size + 1);
	for (int i = 0; i < opt_size; i++) bytes[i] = quoted ? 'a' + i % 26 : (char)i;
	if (quoted) {
		bytes[opt_size - 1] = '"';
		value.head = "\"";
		value.head_len = 1;
		seq_key = "\"value\":\"";
		seq_key_len = 9;
	} else {
		value.type = BYTES_VALUE;
	}
	value.tail = bytes;
	value.tail_len = opt_size;
}

static void sc_fanout(void)
{
	char params[200], extra[200] = "";
	double t;
	make_paths(1, "%s/state", 0);
	open_owner();
	open_all(opt_k, proto->on_fetcher);
	if (proto->fetch) {
		add_all(owner, false, 1);
		t = clock_ns() / 1e9;
		for (int i = 0; i < npeers; i++) {
			proto->fetch(&peers[i], 1, opt_sameid ? 1 : i, opt_equals ? "equals" : "startsWith", paths[0]);
			flush(&peers[i]);
		}
		for (int i = 0; i < npeers; i++) {
			WAIT((peers[i].notif >= 1 && peers[i].results >= 1) || errors, 10, "initial add");
			if (errors) die("fetch refused");
		}
		snprintf(extra, sizeof extra, "\"fetch_s\":%.4f", clock_ns() / 1e9 - t);
	} else {
		subscribe_all();
	}
	snprintf(params, sizeof params, "\"k\":%d,\"w\":%llu", opt_k, (unsigned long long)opt_w);
	if (value.tail_len) sprintf(params + strlen(params), ",\"size\":%zu", value.head_len + 1 + value.tail_len);
	run_changes(params, extra, opt_k);
}

static void sc_bigvalue(void)
{
	hold_objects();
	sc_fanout();
}

static void sc_large(void)
{
	hold_bytes();
	sc_fanout();
}

static void sc_states(void)
{
	char params[200], extra[200];
	make_paths(opt_s, "%s/state/%06d", 0);
	open_owner();
	open_all(1, proto->on_fetcher);
	double ta = add_all(owner, false, opt_batch), tf = clock_ns() / 1e9;
	char all[64];
	snprintf(all, sizeof all, "%s/", base);
	proto->fetch(&peers[0], 1, 1, "startsWith", all);
	flush(&peers[0]);
	WAIT((peers[0].notif >= (uint64_t)npaths && peers[0].results) || errors, 30, "initial adds");
	if (errors) die("fetch refused");
	tf = clock_ns() / 1e9 - tf;
	snprintf(params, sizeof params, "\"s\":%d,\"w\":%llu", opt_s, (unsigned long long)opt_w);
	snprintf(extra, sizeof extra, "\"adds_per_s\":%.0f,\"fetch_s\":%.4f,\"fetched_per_s\":%.0f",
		 npaths / ta, tf, npaths / tf);
	run_changes(params, extra, 1);
}

/* opens C connections and fetches F rules over them, one for every F-th path; returns the seconds of the fetches */
static double fetch_rules(int c)
{
	if (opt_f < c) c = opt_f;
	open_all(c, proto->on_fetcher);
	double t = clock_ns() / 1e9;
	for (int r = 0; r < opt_f; r++) {
		struct conn *p = &peers[r % c];
		char prefix[64];
		snprintf(prefix, sizeof prefix, "%s/r%06d/", base, r);
		proto->fetch(p, r + 1, r, "startsWith", prefix);
		p->expect++;
	}
	for (int i = 0; i < c; i++) flush(&peers[i]);
	for (int i = 0; i < c; i++) wait_results(&peers[i], peers[i].expect, 60);
	return clock_ns() / 1e9 - t;
}

static void wait_all_notified(void)
{
	WAIT(total_notif() >= (uint64_t)npaths || errors, 30, "adds not notified");
	if (errors) die("fetch refused");
}

static void sc_rules(void)
{
	char params[200], extra[300];
	if (opt_f < 1) opt_f = 1000;
	make_paths(opt_s, "%s/r%06d/%d", opt_f);
	open_owner();
	double tf = fetch_rules(opt_c > 0 ? opt_c : 10);
	double ta = add_all(owner, false, opt_batch);
	wait_all_notified();
	snprintf(params, sizeof params, "\"f\":%d,\"s\":%d,\"c\":%d,\"w\":%llu", opt_f, opt_s, npeers, (unsigned long long)opt_w);
	snprintf(extra, sizeof extra, "\"adds_per_s\":%.0f,\"fetches_per_s\":%.0f", npaths / ta, opt_f / tf);
	run_changes(params, extra, 1);
}

static void sc_adds(void)
{
	char params[100], extra[100];
	/* --f 0 has the paths of --f 1000, so that the rules are the only difference */
	if (opt_f < 0) make_paths(opt_s, "%s/state/%06d", 0);
	else make_paths(opt_s, "%s/r%06d/%d", opt_f ? opt_f : 1000);
	open_owner();
	if (opt_f > 0) fetch_rules(opt_c > 0 ? opt_c : 10);
	long rss0 = rss_kb(opt_pid);
	measure_start();
	add_all(owner, false, opt_batch);
	if (opt_f > 0) wait_all_notified();
	long rss1 = rss_kb(opt_pid);
	snprintf(params, sizeof params, "\"s\":%d,\"batch\":%d,\"f\":%d", opt_s, opt_batch, opt_f < 0 ? 0 : opt_f);
	snprintf(extra, sizeof extra, "\"rss_kb\":%ld,\"bytes_per_state\":%.0f", rss1, opt_pid ? (rss1 - rss0) * 1024.0 / opt_s : 0);
	report(npaths, owner->results == (uint64_t)npaths, params, extra);
}

/* ---- set / call ---------------------------------------------------------------- */
static void sc_request(void)
{
	char params[200], extra[100];
	struct conn *cl;
	is_call = !strcmp(scenario, "call");
	make_paths(1, "%s/target", 0);
	open_owner();
	owner->on = proto->on_owner;
	open_all(1, proto->on_client);
	cl = &peers[0];
	add_all(owner, is_call, 1);
	if (opt_change && !is_call) {
		proto->fetch(cl, 1, 1, "equals", paths[0]);
		flush(cl);
		WAIT((cl->notif && cl->results) || errors, 10, "initial add");
		if (errors) die("fetch refused");
	}
	owner->acks = cl->acks = 1;
	cl->results = cl->notif = 0;
	uint64_t sent = 0, r0 = 0, start = clock_ns(), stall = start, lastr = 0;
	uint64_t warm_at = start + opt_warm * 1e9, stop_at = start + (opt_warm + opt_t) * 1e9;
	bool warm = false, stop = false;
	measure_start(); /* again after the warm-up */
	now_ns = start;
	for (;;) {
		bool done = cl->results >= sent && (!opt_change || is_call || cl->notif >= sent);
		if ((stop || sent >= opt_n) && done) break;
		while (!stop && sent < opt_n && sent - cl->results < opt_w) {
			sent++;
			sent_at[sent % RING] = clock_ns();
			proto->request(cl, sent, paths[0]);
		}
		flush(cl);
		flush(owner);
		pump(50);
		flush(owner);
		if (closed_conns) { note_error("daemon closed a connection", 26); break; }
		if (cl->results != lastr) { lastr = cl->results; stall = now_ns; }
		else if (now_ns - stall > 7000000000ull) { note_error("stalled", 7); break; }
		if (!warm && now_ns >= warm_at) { warm = true; r0 = cl->results; measure_start(); }
		if (now_ns >= stop_at) stop = true;
	}
	snprintf(params, sizeof params, "\"w\":%llu%s", (unsigned long long)opt_w, opt_change && !is_call ? ",\"change\":1" : "");
	snprintf(extra, sizeof extra, "\"sent\":%llu,\"answered\":%llu", (unsigned long long)sent, (unsigned long long)answered);
	report((double)(cl->results - r0), cl->results == sent && answered == sent, params, extra);
}

/* ---- connect ---------------------------------------------------------------------- */
static const char *probe_name = "info", *probe_params = "{}";

static void send_probe(struct conn *c, uint64_t id)
{
	framef(c, "{\"id\":%llu,\"method\":\"%s\",\"params\":%s}", (unsigned long long)id, probe_name, probe_params);
}

/* finds out which harmless request this daemon answers */
static void choose_probe(struct conn *c)
{
	uint64_t before = c->results;
	send_probe(c, 1);
	flush(c);
	WAIT(c->results > before || errors, 5, "info");
	if (!errors) return;
	errors = 0;
	first_error[0] = 0;
	probe_name = "config";
	probe_params = "{\"name\":\"probe\"}";
	send_probe(c, 1);
	flush(c);
	WAIT(c->results > before || errors, 5, "config");
	if (errors) die("neither info nor config is answered");
}

static void sc_connect(void)
{
	char params[100], extra[300];
	int c = opt_c > 0 ? opt_c : 1000, opened = 0, done = 0, flight = opt_w < 64 ? (int)opt_w : 16;
	open_owner();
	choose_probe(owner);
	long rss0 = rss_kb(opt_pid);
	peers = calloc(c, sizeof *peers);
	uint64_t *t_open = calloc(c, sizeof *t_open);
	bool *ok = calloc(c, sizeof *ok);
	int low = 0;
	measure_start();
	uint64_t until = clock_ns() + 60000000000ull;
	while (done < c) {
		while (opened < c && opened - done < flight) {
			t_open[opened] = clock_ns();
			open_conn(&peers[opened], opened, proto->on_results);
			send_probe(&peers[opened], 1);
			opened++;
		}
		pump(50);
		for (int i = low; i < opened; i++)
			if (!ok[i] && peers[i].results) {
				ok[i] = true;
				done++;
				hist_add(&lat, now_ns - t_open[i]);
			}
		while (low < opened && ok[low]) low++;
		if (closed_conns) { note_error("daemon closed a connection", 26); break; }
		if (now_ns > until) { note_error("timeout", 7); break; }
	}
	long rss1 = rss_kb(opt_pid);
	snprintf(params, sizeof params, "\"c\":%d", c);
	snprintf(extra, sizeof extra, "\"rss_kb_before\":%ld,\"rss_kb_after\":%ld,\"kb_per_conn\":%.1f", rss0, rss1,
		 opt_pid ? (double)(rss1 - rss0) / c : 0);
	report(done, done == c, params, extra);
}

/* ---- crowd ------------------------------------------------------------------------- */
/* Both the changes and the probes keep their timetable when the daemon is late, and a latency counts from the
 * timetable: a daemon that stands still for a second has 500 late answers then, not one. */
#define PROBE_EVERY_NS 2000000ull
static uint64_t probe_due[RING];

static void on_probe(struct conn *c, const char *p, size_t n)
{
	const char *end = p + n, *q;
	if (!c->acks) { on_results(c, p, n); return; } /* still in setup */
	if (FIND(p, end, "\"error\"")) { note_error(p, n); return; }
	if (!(q = FIND(p, end, "\"id\""))) return;
	uint64_t id = number(after_colon(q + 4, end), end);
	c->results++;
	hist_add(id & 1 ? &lat_info : &lat_set, now_ns - probe_due[id % RING]);
}

static void sc_crowd(void)
{
	char params[200], extra[800];
	struct conn *target = xrealloc(NULL, sizeof *target), *probe = xrealloc(NULL, sizeof *probe);
	if (opt_f < 1) opt_f = 1000;
	open_owner();
	open_conn(target, -2, proto->on_owner);
	open_conn(probe, -3, on_probe);
	WAIT(target->connected && probe->connected, 10, "connect");
	make_paths(1, "%s/target", 0);
	const char *target_path = paths[0];
	add_all(target, false, 1);
	choose_probe(probe);
	make_paths(opt_s, "%s/r%06d/%d", opt_f);
	double ta = add_all(owner, false, opt_batch);
	double tf = fetch_rules(opt_c > 0 ? opt_c : 1000);
	wait_all_notified();
	long rss = rss_kb(opt_pid);

	target->acks = probe->acks = 1;
	probe->results = 0;
	for (int i = 0; i < npeers; i++) peers[i].last = peers[i].expect = 0;
	uint64_t sent = 0, asked = 0, sent0 = 0, n0 = 0, before = total_notif(), last_total = before;
	uint64_t start = clock_ns(), stall_at = start;
	uint64_t warm_at = start + (uint64_t)(opt_warm * 1e9), stop_at = start + (uint64_t)((opt_warm + opt_t) * 1e9);
	double took = 0; /* seconds in which changes were sent and measured */
	bool warm = false, stop = false;
	now_ns = start;
	for (;;) {
		uint64_t low = sent;
		bool behind = probe->results < asked;
		for (int i = 0; i < npeers; i++)
			if (peers[i].last < peers[i].expect) {
				behind = true;
				if (peers[i].last < low) low = peers[i].last;
			}
		if (stop && !behind) break;
		uint64_t elapsed = now_ns - start, due = (uint64_t)(elapsed / 1e9 * opt_rate);
		while (!stop && sent < due && sent - low < RING / 2) {
			sent++;
			send_change(sent);
			sent_at[sent % RING] = start + (uint64_t)(sent / opt_rate * 1e9);
			peers[target_of(sent)].expect = sent;
		}
		while (!stop && asked < elapsed / PROBE_EVERY_NS && asked - probe->results < RING / 2) {
			asked++;
			probe_due[asked % RING] = start + asked * PROBE_EVERY_NS;
			if (asked & 1) send_probe(probe, asked);
			else proto->request(probe, asked, target_path);
		}
		if (!owner->want_write) flush(owner);
		flush(probe);
		pump(1);
		flush(target);
		if (closed_conns) { note_error("daemon closed a connection", 26); break; }
		if (errors) break;
		uint64_t total = total_notif();
		if (total != last_total) { last_total = total; stall_at = now_ns; }
		else if (now_ns - stall_at > 5000000000ull) { note_error("stalled for 5 s", 15); break; }
		if (!warm && now_ns >= warm_at) { warm = true; n0 = total; sent0 = sent; measure_start(); }
		if (!stop && now_ns >= stop_at) { stop = true; took = now_ns / 1e9 - r_t0; }
	}
	snprintf(params, sizeof params, "\"s\":%d,\"f\":%d,\"c\":%d,\"rate\":%.0f", opt_s, opt_f, npeers, opt_rate);
	snprintf(extra, sizeof extra,
		 "\"adds_per_s\":%.0f,\"fetch_s\":%.4f,\"rss_kb\":%ld,\"changes_per_s\":%.0f,\"sent\":%llu,\"delivered\":%llu,"
		 "\"probes\":%llu,\"info_p50_us\":%.1f,\"info_p99_us\":%.1f,\"set_p50_us\":%.1f,\"set_p99_us\":%.1f",
		 npaths / ta, tf, rss, took > 0 ? (sent - sent0) / took : 0, (unsigned long long)sent,
		 (unsigned long long)(total_notif() - before), (unsigned long long)(lat_info.n + lat_set.n),
		 hist_us(&lat_info, 0.5), hist_us(&lat_info, 0.99), hist_us(&lat_set, 0.5), hist_us(&lat_set, 0.99));
	report((double)(total_notif() - n0), total_notif() - before == sent && probe->results == asked, params, extra);
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *speaks;
} scenarios[] = {
	{"fanout", sc_fanout, "json binary pubsub"},
	{"bigvalue", sc_bigvalue, "json"},
	{"large", sc_large, "json binary"},
	{"states", sc_states, "json binary"},
	{"rules", sc_rules, "json binary"},
	{"adds", sc_adds, "json binary"},
	{"set", sc_request, "json binary"},
	{"call", sc_request, "json binary"},
	{"connect", sc_connect, "json"},
	{"crowd", sc_crowd, "json"},
};

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: jetload HOST:PORT fanout|states|rules|adds|set|call|bigvalue|large|connect|crowd [--k N] [--w N]\n"
				"  [--n N] [--t SECONDS] [--warm SECONDS] [--s STATES] [--f RULES] [--c CONNS] [--batch N]\n"
				"  [--change 1] [--size BYTES] [--equals 0|1] [--sameid 0|1] [--rate N] [--pid PID]\n  [--proto json|binary|redis|nats|mqtt]\n");
		return 2;
	}
	char *colon = strrchr(argv[1], ':');
	if (colon) {
		*colon = 0;
		host = argv[1];
		port = colon + 1;
	}
	scenario = argv[2];
	proto = &protocols[0];
	for (int i = 3; i + 1 < argc; i += 2) {
		const char *o = argv[i], *v = argv[i + 1];
		if (!strcmp(o, "--k")) opt_k = atoi(v);
		else if (!strcmp(o, "--w")) opt_w = strtoull(v, NULL, 10);
		else if (!strcmp(o, "--n")) opt_n = strtoull(v, NULL, 10);
		else if (!strcmp(o, "--t")) opt_t = atof(v);
		else if (!strcmp(o, "--warm")) opt_warm = atof(v);
		else if (!strcmp(o, "--s")) opt_s = atoi(v);
		else if (!strcmp(o, "--f")) opt_f = atoi(v);
		else if (!strcmp(o, "--c")) opt_c = atoi(v);
		else if (!strcmp(o, "--batch")) opt_batch = atoi(v);
		else if (!strcmp(o, "--change")) opt_change = atoi(v);
		else if (!strcmp(o, "--size")) opt_size = atoi(v);
		else if (!strcmp(o, "--equals")) opt_equals = atoi(v);
		else if (!strcmp(o, "--sameid")) opt_sameid = atoi(v);
		else if (!strcmp(o, "--rate")) opt_rate = atof(v);
		else if (!strcmp(o, "--retain")) opt_retain = atoi(v);
		else if (!strcmp(o, "--pid")) opt_pid = atoi(v);
		else if (!strcmp(o, "--trace")) opt_trace = atoi(v);
		else if (!strcmp(o, "--proto")) proto = protocol_named(v);
		else die("unknown option %s", o);
	}
	struct rlimit rl;
	getrlimit(RLIMIT_NOFILE, &rl);
	rl.rlim_cur = rl.rlim_max;
	setrlimit(RLIMIT_NOFILE, &rl);
	signal(SIGPIPE, SIG_IGN);
	/* a path prefix of its own for every run: leftovers of the last run cannot clash */
	snprintf(base, sizeof base, "b%05d%02d", (int)getpid() % 100000, (int)(clock_ns() / 10000000 % 100));
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	if (getaddrinfo(host, port, &hints, &addr)) die("cannot resolve %s", host);
	ep = epoll_create1(0);
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		if (strcmp(scenarios[i].name, scenario)) continue;
		if (!strstr(scenarios[i].speaks, proto->add ? proto->name : "pubsub")) die("it does not run over this protocol");
		scenarios[i].run();
		return 0;
	}
	die("unknown scenario");
	return 0;
}
