/* fault_spec.c - reads and prints fault specifications. */
#include "engine/fault_spec.h"

#include "engine/config_parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* In the order of tb_frame_type (protocol/wire.h), from 1. */
static const char *const types[] = {"data", "open", "receipt", "grant", "error", "probe", "goodbye", "view"};
enum { TYPES = sizeof types / sizeof *types };

static int refuse(char *error, size_t n, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(error, n, fmt, args);
  va_end(args);
  return -EINVAL;
}

static int parse_type(const char *text, int *out) {
  uint64_t number;
  for (int i = 0; i < TYPES; i++)
    if (strcmp(text, types[i]) == 0) {
      *out = i + 1;
      return 0;
    }
  if (tb_parse_count(text, &number) || number > 255) return -EINVAL;
  *out = (int)number;
  return 0;
}

static int parse_rank(const char *text, int *out) {
  uint64_t number;
  if (tb_parse_count(text, &number) || number > 65535) return -EINVAL;
  *out = (int)number;
  return 0;
}

/* A time here needs its unit: "delay=2" would be read as two of anything. */
static int parse_span(const char *text, uint64_t *out) {
  size_t n = strlen(text);
  if (n == 0 || (text[n - 1] >= '0' && text[n - 1] <= '9') || tb_parse_time(text, out)) return -EINVAL;
  return *out > 3600ull * 1000000000ull ? -EINVAL : 0;
}

static int parse_item(tb_fault_clause *c, const char *name, char *value, char *error, size_t n) {
  const char *form = NULL;
  char *second = strchr(value, ':');
  if (strcmp(name, "drop") == 0) {
    c->acts = true;
    if (tb_parse_share(value, &c->drop)) form = "a probability, such as 0.02 or 2%";
  } else if (strcmp(name, "dup") == 0) {
    c->acts = true;
    if (tb_parse_share(value, &c->dup)) form = "a probability, such as 0.001";
  } else if (strcmp(name, "corrupt") == 0) {
    c->acts = true;
    if (tb_parse_share(value, &c->corrupt)) form = "a probability, such as 0.0001";
  } else if (strcmp(name, "delay") == 0) {
    c->acts = true;
    if (second) *second++ = 0;
    c->delay = 1;
    if (parse_span(value, &c->delay_ns) || (second && tb_parse_share(second, &c->delay)))
      form = "TIME or TIME:PROBABILITY, such as 2ms or 2ms:0.01";
  } else if (strcmp(name, "reorder") == 0) {
    c->acts = true;
    if (second) *second++ = 0;
    if (tb_parse_share(value, &c->reorder) || (second && parse_span(second, &c->reorder_ns)))
      form = "PROBABILITY or PROBABILITY:TIME, such as 0.01 or 0.01:500us";
  } else if (strcmp(name, "rank") == 0) {
    if (parse_rank(value, &c->rank)) form = "a rank";
  } else if (strcmp(name, "peer") == 0) {
    if (parse_rank(value, &c->peer)) form = "a rank";
  } else if (strcmp(name, "type") == 0) {
    if (parse_type(value, &c->type)) form = "data, open, receipt, grant, error, probe, goodbye, view or a number";
  } else if (strcmp(name, "side") == 0) {
    c->tx = strcmp(value, "tx") == 0;
    if (!c->tx && strcmp(value, "rx") != 0) form = "rx or tx";
  } else if (strcmp(name, "after") == 0) {
    if (tb_parse_count(value, &c->after)) form = "a number of frames";
  } else if (strcmp(name, "count") == 0) {
    if (tb_parse_count(value, &c->count)) form = "a number of frames";
  } else if (strcmp(name, "seed") == 0) {
    if (tb_parse_count(value, &c->seed)) form = "a whole number";
  } else {
    return refuse(error, n,
                  "fault: no item '%s'; there are drop dup delay reorder corrupt rank peer type side after count seed",
                  name);
  }
  if (form) {
    if (second && second > value && second[-1] == 0) second[-1] = ':';
    return refuse(error, n, "fault: %s=%s: must be %s", name, value, form);
  }
  return 0;
}

static int parse_clause(tb_fault_clause *c, char *text, char *error, size_t n) {
  *c = (tb_fault_clause){.rank = -1, .peer = -1, .type = -1, .count = UINT64_MAX, .seed = 1, .reorder_ns = 1000000};
  char *rest;
  for (char *item = strtok_r(text, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
    char *value = strchr(item, '=');
    if (!value) return refuse(error, n, "fault: '%s' has no value; items are name=value, such as drop=0.02", item);
    *value++ = 0;
    int err = parse_item(c, item, value, error, n);
    if (err) return err;
  }
  if (!c->acts) return refuse(error, n, "fault: a clause without drop, dup, delay, reorder or corrupt does nothing");
  if (c->tx && (c->delay > 0 || c->reorder > 0 || c->corrupt > 0))
    return refuse(error, n,
                  "fault: side=tx knows drop and dup only; delay, reorder and corrupt act on the receiver's side");
  return 0;
}

int tb_fault_spec_parse(const char *text, int rank, tb_fault_spec *out, char *error, size_t error_len) {
  char copy[1024];
  tb_fault_spec spec = {.clauses = 0};
  char *rest;
  if (!text) text = "";
  if (strlen(text) >= sizeof copy)
    return refuse(error, error_len, "fault: longer than %zu characters", sizeof copy - 1);
  memcpy(copy, text, strlen(text) + 1);
  for (char *part = strtok_r(copy, ";", &rest); part; part = strtok_r(NULL, ";", &rest)) {
    tb_fault_clause c;
    if (part[strspn(part, " ,")] == 0) continue;
    int err = parse_clause(&c, part, error, error_len);
    if (err) return err;
    if (rank >= 0 && c.rank >= 0 && c.rank != rank) continue;
    if (spec.clauses == TB_FAULT_CLAUSES)
      return refuse(error, error_len, "fault: more than %d clauses", TB_FAULT_CLAUSES);
    spec.clause[spec.clauses++] = c;
  }
  *out = spec;
  return 0;
}

static void add(char *out, size_t n, const char *fmt, ...) {
  size_t used = strlen(out);
  va_list args;
  va_start(args, fmt);
  vsnprintf(out + used, n - used, fmt, args);
  va_end(args);
}

void tb_fault_spec_describe(const tb_fault_spec *spec, int rank, char *out, size_t n) {
  char span[32];
  out[0] = 0;
  for (uint32_t i = 0; i < spec->clauses; i++) {
    const tb_fault_clause *c = &spec->clause[i];
    if (i == 0)
      add(out, n, "fault injection is on for rank %d:", rank);
    else
      add(out, n, ";");
    if (c->drop > 0) add(out, n, " drop %g%%", c->drop * 100);
    if (c->dup > 0) add(out, n, " duplicate %g%%", c->dup * 100);
    if (c->corrupt > 0) add(out, n, " corrupt %g%%", c->corrupt * 100);
    if (c->delay > 0) {
      tb_format_time(c->delay_ns, span, sizeof span);
      add(out, n, " delay %g%% by %s", c->delay * 100, span);
    }
    if (c->reorder > 0) {
      tb_format_time(c->reorder_ns, span, sizeof span);
      add(out, n, " reorder %g%% by %s", c->reorder * 100, span);
    }
    if (c->type > 0 && c->type <= TYPES)
      add(out, n, " of the %s frames", types[c->type - 1]);
    else if (c->type >= 0)
      add(out, n, " of the frames of type %d", c->type);
    else
      add(out, n, " of all frames");
    add(out, n, c->tx ? " sent" : " received");
    if (c->peer >= 0) add(out, n, " %s rank %d", c->tx ? "to" : "from", c->peer);
    if (c->after) add(out, n, " after the first %" PRIu64, c->after);
    if (c->count != UINT64_MAX) add(out, n, ", %" PRIu64 " times", c->count);
    add(out, n, " (seed %" PRIu64 ")", c->seed);
  }
}
