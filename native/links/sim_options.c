/* sim_options.c - the simulator's option table, its parser, and the parameters of each direction. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "links/sim_internal.h"

typedef enum { KIND_COUNT, KIND_BOOL, KIND_RATE, KIND_BYTES, KIND_TIME, KIND_TIME_NEVER, KIND_CHANCE, KIND_REF } kind;
typedef enum { GLOBAL, DIRECTION, ENDPOINT } scope;

typedef struct {
  const char *name;
  scope scope;
  kind kind;
  /* offset in tb_sim (GLOBAL), tb_sim_params (DIRECTION) or tb_sim_source (ENDPOINT, but for pause) */
  size_t at;
  uint64_t lo, hi;     /* limits of integers */
} option;

#define TIME_MAX 1000000000000000000u /* 31 years: sums of a few cannot overflow */
#define G(name, kind, lo, hi) {#name, GLOBAL, kind, offsetof(tb_sim, name), lo, hi}
#define D(name, kind, lo, hi) {#name, DIRECTION, kind, offsetof(tb_sim_params, name), lo, hi}

#define B(name, field, kind, lo, hi) {#name, ENDPOINT, kind, offsetof(tb_sim_source, field), lo, hi}

static const option table[] = {
  G(seed, KIND_COUNT, 0, UINT64_MAX),
  {"log", GLOBAL, KIND_BOOL, offsetof(tb_sim, log_on), 0, 1},
  G(poison, KIND_BOOL, 0, 1),
  G(mtu, KIND_BYTES, 64, 65535),
  G(tx_ring, KIND_COUNT, 1, 1u << 20),
  G(rx_buffer, KIND_BYTES, 1, 1ull << 40),
  G(ref, KIND_REF, 0, 0),
  G(reap_delay, KIND_TIME_NEVER, 0, TIME_MAX),
  G(csum, KIND_BOOL, 0, 1),
  D(rate, KIND_RATE, 0, 100000000000000u),
  D(queue, KIND_BYTES, 0, 1ull << 40),
  D(delay, KIND_TIME, 0, TIME_MAX),
  D(jitter, KIND_TIME, 0, TIME_MAX),
  D(tail_p, KIND_CHANCE, 0, 0),
  D(tail, KIND_TIME, 0, TIME_MAX / 64), /* an exponential draw is at most 37 means */
  D(loss, KIND_CHANCE, 0, 0),
  D(ge_p, KIND_CHANCE, 0, 0),
  D(ge_r, KIND_CHANCE, 0, 0),
  D(ge_loss, KIND_CHANCE, 0, 0),
  D(dup, KIND_CHANCE, 0, 0),
  D(corrupt, KIND_CHANCE, 0, 0),
  D(truncate, KIND_CHANCE, 0, 0),
  D(reorder, KIND_CHANCE, 0, 0),
  D(reorder_by, KIND_TIME, 0, TIME_MAX),
  D(blackhole, KIND_BOOL, 0, 1),
  B(bg_rate, rate, KIND_RATE, 0, 100000000000000u),
  B(bg_on, on, KIND_TIME, 1000, TIME_MAX / 64),
  B(bg_off, off, KIND_TIME, 0, TIME_MAX / 64),
  {"pause", ENDPOINT, KIND_TIME_NEVER, 0, 0, TIME_MAX},
};
#define OPTIONS (sizeof table / sizeof table[0])
#define ASSIGNMENTS 64
#define SEPARATORS ", ;\t\n"

typedef struct { const option *opt; uint64_t u; double d; } assignment;
typedef struct { assignment a[ASSIGNMENTS]; int n; } assignments;
typedef struct { char *text; size_t len; } message;

static int fail(message m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(message m, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  if (m.text && m.len) vsnprintf(m.text, m.len, fmt, args);
  va_end(args);
  return -EINVAL;
}

static bool unit_factor(kind k, const char *s, double *factor) {
  static const struct { kind kind; const char *unit; double factor; } units[] = {
    {KIND_RATE, "k", 1e3}, {KIND_RATE, "M", 1e6}, {KIND_RATE, "G", 1e9}, {KIND_RATE, "T", 1e12},
    {KIND_BYTES, "k", 1024}, {KIND_BYTES, "M", 1048576}, {KIND_BYTES, "G", 1073741824},
    {KIND_TIME, "ns", 1}, {KIND_TIME, "us", 1e3}, {KIND_TIME, "ms", 1e6}, {KIND_TIME, "s", 1e9},
  };
  *factor = 1;
  if (!*s) return true;
  if (k == KIND_TIME_NEVER) k = KIND_TIME;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (units[i].kind == k && !strcmp(units[i].unit, s)) return *factor = units[i].factor, true;
  return false;
}

static const char *expected(kind k) {
  switch (k) {
    case KIND_COUNT: return "a whole number";
    case KIND_BOOL: return "0 or 1";
    case KIND_RATE: return "bits per second with k, M, G or T, 0 = infinite";
    case KIND_BYTES: return "bytes with k, M or G";
    case KIND_TIME: return "a time with ns, us, ms or s";
    case KIND_TIME_NEVER: return "a time with ns, us, ms or s, or never";
    case KIND_CHANCE: return "a probability from 0 to 1";
    default: return "none, sync or prompt";
  }
}

/* Decimal digits only: no sign, no hexadecimal, no nan, and the same in every locale. */
static bool decimal(const char *s, const char **end, double *out) {
  double v = 0, place = 0.1;
  if ((*s < '0' || *s > '9') && !(*s == '.' && s[1] >= '0' && s[1] <= '9')) return false;
  for (; *s >= '0' && *s <= '9'; s++) v = v * 10 + (*s - '0');
  if (*s == '.')
    for (s++; *s >= '0' && *s <= '9'; s++, place /= 10) v += (*s - '0') * place;
  if ((*s == 'e' || *s == 'E') && ((s[1] >= '0' && s[1] <= '9') || (s[1] == '-' && s[2] >= '0' && s[2] <= '9'))) {
    bool minus = *++s == '-';
    int e = 0;
    for (s += minus; *s >= '0' && *s <= '9'; s++) e = e < 400 ? e * 10 + (*s - '0') : e;
    for (; e > 0; e--) v = minus ? v / 10 : v * 10;
  }
  *end = s;
  *out = v;
  return true;
}

static bool parse_value(const option *o, const char *s, assignment *out) {
  if (o->kind == KIND_REF) {
    static const char *const names[] = {"none", "sync", "prompt"};
    for (unsigned i = 0; i < 3; i++)
      if (!strcmp(s, names[i])) return out->u = i, true;
    return false;
  }
  if (o->kind == KIND_COUNT || o->kind == KIND_BOOL) {
    char *end;
    errno = 0;
    out->u = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno && out->u >= o->lo && out->u <= o->hi;
  }
  if (o->kind == KIND_TIME_NEVER && !strcmp(s, "never")) return out->u = TB_SIM_NEVER, true;
  const char *rest;
  double v, factor;
  if (!decimal(s, &rest, &v) || !unit_factor(o->kind, rest, &factor)) return false;
  v *= factor;
  if (o->kind == KIND_CHANCE) return out->d = v, v <= 1;
  if (!(v <= (double)o->hi) || v + 0.5 < (double)o->lo) return false;
  out->u = (uint64_t)(v + 0.5);
  return true;
}

static int parse(const char *options, assignments *out, message m) {
  out->n = 0;
  for (const char *s = options ? options : ""; *(s += strspn(s, SEPARATORS));) {
    size_t len = strcspn(s, SEPARATORS);
    char item[96];
    if (len >= sizeof item) return fail(m, "sim option '%.40s...': too long; write name=value", s);
    memcpy(item, s, len);
    item[len] = 0;
    s += len;
    char *value = strchr(item, '=');
    if (!value) return fail(m, "sim option '%s': no value; write name=value", item);
    *value++ = 0;
    const option *o = NULL;
    for (size_t i = 0; i < OPTIONS; i++)
      if (!strcmp(table[i].name, item)) o = &table[i];
    if (!o) {
      char names[400] = "";
      for (size_t i = 0, at = 0; i < OPTIONS; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", table[i].name);
      return fail(m, "sim option '%s' is unknown; there are: %s", item, names);
    }
    if (out->n == ASSIGNMENTS) return fail(m, "sim options: more than %d in one text", ASSIGNMENTS);
    assignment *a = &out->a[out->n++];
    *a = (assignment){.opt = o};
    if (parse_value(o, value, a)) continue;
    if (o->lo || (o->hi && o->kind == KIND_COUNT))
      return fail(m, "sim option %s=%s: want %s from %llu to %llu", item, value, expected(o->kind),
                  (unsigned long long)o->lo, (unsigned long long)o->hi);
    return fail(m, "sim option %s=%s: want %s", item, value, expected(o->kind));
  }
  return 0;
}

static void assign_params(tb_sim_params *p, const assignments *as) {
  for (int i = 0; i < as->n; i++) {
    const assignment *a = &as->a[i];
    if (a->opt->scope != DIRECTION) continue;
    char *field = (char *)p + a->opt->at;
    if (a->opt->kind == KIND_CHANCE) memcpy(field, &a->d, sizeof a->d);
    else if (a->opt->kind == KIND_BOOL) *(bool *)field = a->u != 0;
    else memcpy(field, &a->u, sizeof a->u);
  }
  p->random = p->jitter || p->tail_p > 0 || p->loss > 0 || p->ge_p > 0 || p->dup > 0 || p->corrupt > 0 ||
              p->truncate > 0 || p->reorder > 0;
}

int tb_sim_options_new(tb_sim *net, const char *options, char *error, size_t error_len) {
  message m = {error, error_len};
  assignments as;
  net->seed = 1;
  net->mtu = 1472;
  net->tx_ring = 64; /* what a device with byte queue limits holds: more is only delay */
  net->rx_buffer = 4u << 20;
  net->ref = TB_REF_PROMPT;
  net->defaults = (tb_sim_params){.rate = 10000000000u, .queue = 512u << 10, .delay = 20000, .ge_r = 1, .ge_loss = 1};
  int rc = parse(options, &as, m);
  if (rc) return rc;
  for (int i = 0; i < as.n; i++) {
    if (as.a[i].opt->scope == ENDPOINT)
      return fail(m, "sim option %s belongs to one endpoint; set it with tb_sim_set(src, -1)", as.a[i].opt->name);
    if (as.a[i].opt->scope == GLOBAL) memcpy((char *)net + as.a[i].opt->at, &as.a[i].u, sizeof as.a[i].u);
  }
  assign_params(&net->defaults, &as);
  return 0;
}

const tb_sim_params *tb_sim_params_of(const tb_sim *net, uint32_t src, uint32_t dst) {
  /* Entry 0 of dirs stands for "nothing of its own". */
  const tb_sim_dir *dir = &net->dirs[net->dir_of[(size_t)src * net->n + dst]];
  return dir->params ? &net->own_params[dir->params] : &net->defaults;
}

tb_sim_dir *tb_sim_dir_own(tb_sim *net, uint32_t src, uint32_t dst) {
  uint32_t *index = &net->dir_of[(size_t)src * net->n + dst];
  if (*index) return &net->dirs[*index];
  if (net->dirs_n == net->dirs_cap) {
    tb_sim_dir *dirs = realloc(net->dirs, (size_t)net->dirs_cap * 2 * sizeof *dirs);
    if (!dirs) return NULL;
    net->dirs = dirs;
    net->dirs_cap *= 2;
  }
  net->dirs[net->dirs_n] = (tb_sim_dir){0};
  *index = net->dirs_n++;
  return &net->dirs[*index];
}

static tb_sim_params *params_own(tb_sim *net, uint32_t src, uint32_t dst) {
  tb_sim_dir *dir = tb_sim_dir_own(net, src, dst);
  if (!dir) return NULL;
  if (dir->params) return &net->own_params[dir->params];
  if (net->params_n == net->params_cap) {
    tb_sim_params *own = realloc(net->own_params, (size_t)net->params_cap * 2 * sizeof *own);
    if (!own) return NULL;
    net->own_params = own;
    net->params_cap *= 2;
  }
  net->own_params[net->params_n] = net->defaults;
  dir->params = net->params_n++;
  return &net->own_params[dir->params];
}

static void pause_endpoint(tb_sim *net, tb_link *e, uint64_t until) {
  if (e->paused_until > net->now && e->paused_until != TB_SIM_NEVER) tb_sim_cancel(net, TB_SIM_RESUME, e);
  e->paused_until = until;
  tb_sim_stir(e);
  if (until > net->now && until != TB_SIM_NEVER) tb_sim_push(net, until, TB_SIM_RESUME, e);
}

static void assign_endpoint(tb_link *e, const assignments *as) {
  bool background = false;
  for (int i = 0; i < as->n; i++) {
    const assignment *a = &as->a[i];
    if (a->opt->scope != ENDPOINT) continue;
    if (a->opt->kind == KIND_TIME_NEVER) {
      pause_endpoint(e->net, e, a->u);
      continue;
    }
    memcpy((char *)&e->background + a->opt->at, &a->u, sizeof a->u);
    background = true;
  }
  if (background) tb_sim_background_start(e);
}

int tb_sim_set(tb_sim *net, int src, int dst, const char *options, char *error, size_t error_len) {
  message m = {error, error_len};
  assignments as;
  bool directions = false;
  int rc = parse(options, &as, m), n = (int)net->n;
  if (rc) return rc;
  if (src < -1 || src >= n || dst < -1 || dst >= n)
    return fail(m, "sim direction %d -> %d: endpoints are 0 to %d, -1 = all", src, dst, n - 1);
  for (int i = 0; i < as.n; i++) {
    const option *o = as.a[i].opt;
    if (o->scope == GLOBAL) return fail(m, "sim option %s is fixed when the network is made", o->name);
    if (o->scope == ENDPOINT && dst != -1)
      return fail(m, "sim option %s belongs to an endpoint, not to a direction; give dst -1", o->name);
    directions |= o->scope == DIRECTION;
  }
  int s0 = src < 0 ? 0 : src, s1 = src < 0 ? n : src + 1, d0 = dst < 0 ? 0 : dst, d1 = dst < 0 ? n : dst + 1;
  bool all = src < 0 && dst < 0;
  if (directions && !all) { /* make room first, so that a lack of memory changes nothing */
    for (int s = s0; s < s1; s++)
      for (int d = d0; d < d1; d++)
        if (!params_own(net, (uint32_t)s, (uint32_t)d)) {
          fail(m, "no memory for the parameters of direction %d -> %d", s, d);
          return -ENOMEM;
        }
    for (int s = s0; s < s1; s++)
      for (int d = d0; d < d1; d++) assign_params(params_own(net, (uint32_t)s, (uint32_t)d), &as);
  } else if (directions) {
    assign_params(&net->defaults, &as);
    for (uint32_t i = 1; i < net->params_n; i++) assign_params(&net->own_params[i], &as);
  }
  for (int s = s0; s < s1; s++) assign_endpoint(&net->ends[s], &as);
  return 0;
}
