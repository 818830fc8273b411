/* config_value.c - one option's text to its value; an error names the variable, the value and the allowed form. */
#include "engine/config_parse.h"
#include "engine/config_table.h"
#include "engine/error.h"
#include "engine/fault.h"
#include "engine/logring.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The unit of a tunable decides how it is written. */
tb_option_kind tb_option_kind_of(const tb_option *o) {
  if (o->tunable == SIZE_MAX || o->choices) return o->kind;
  return strcmp(o->unit, "ns") == 0 ? TB_OPT_TIME : strcmp(o->unit, "bytes") == 0 ? TB_OPT_SIZE : TB_OPT_COUNT;
}

const char *tb_option_unit(const tb_option *o) {
  switch (tb_option_kind_of(o)) {
    case TB_OPT_TIME: return "time: ns us ms s min h, bare number = seconds";
    case TB_OPT_SIZE: return "bytes: k M G T = powers of 1024";
    default: return o->unit;
  }
}

void tb_option_format(tb_option_kind kind, uint64_t number, char *out, size_t n) {
  if (kind == TB_OPT_TIME)
    tb_format_time(number, out, n);
  else if (kind == TB_OPT_SIZE)
    tb_format_size(number, out, n);
  else
    snprintf(out, n, "%" PRIu64, number);
}

void tb_option_env(const char *option, char *out, size_t n) {
  snprintf(out, n, "TAILBOUND_%s", option);
  for (char *c = out; *c; c++) *c = (char)toupper((unsigned char)*c);
}

static int choice(const char *text, const char *choices, uint64_t *out) {
  size_t n = strlen(text);
  uint64_t place = 0;
  for (const char *p = choices; *p; place++) {
    size_t word = strcspn(p, " ");
    if (word == n && strncmp(p, text, n) == 0) {
      *out = place;
      return 0;
    }
    p += word + (p[word] == ' ');
  }
  return -EINVAL;
}

static int level(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    int level;
  } levels[] = {{"off", TB_LOG_OFF},
                {"error", TB_LOG_ERROR},
                {"warning", TB_LOG_WARNING},
                {"info", TB_LOG_INFO},
                {"debug", TB_LOG_DEBUG}};
  for (unsigned i = 0; i < sizeof levels / sizeof *levels; i++)
    if (strcasecmp(text, levels[i].name) == 0) {
      *out = (uint64_t)levels[i].level;
      return 0;
    }
  return -EINVAL;
}

static int deadline(const char *text, uint64_t *out) {
  if (strcmp(text, "auto") == 0)
    *out = 0;
  else if (strcmp(text, "exact") == 0 || strcasecmp(text, "inf") == 0 || strcasecmp(text, "infinity") == 0)
    *out = UINT64_MAX;
  else
    return tb_parse_time(text, out);
  return 0;
}

static int printable(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 32 || *text == 127) return 0;
  return 1;
}

/* "host:port" is the usual slip; IPv6 addresses have more than one colon. */
static int has_port(const char *text) {
  const char *colon = strrchr(text, ':');
  if (!colon || (strchr(text, ':') != colon && colon[-1] != ']')) return 0;
  return colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
}

/* `where` is what the reader must change: a variable's or an option's name. */
int tb_option_parse(const tb_option *o, const char *where, const char *text, tb_option_value *out) {
  tb_option_kind kind = tb_option_kind_of(o);
  char lo[32], hi[32], detail[256];
  int err = 0;
  uint64_t v = 0;
  switch (kind) {
    case TB_OPT_TEXT:
    case TB_OPT_HOST:
    case TB_OPT_FAULT:
      if (strlen(text) > o->hi || !printable(text))
        return tb_fail(-EINVAL, "%s: at most %" PRIu64 " printable characters", where, o->hi);
      if (kind == TB_OPT_HOST && strpbrk(text, " \t/,"))
        return tb_fail(-EINVAL, "%s=%s: one host name or address, such as node1, 10.0.0.1 or fe80::1%%eth0", where,
                       text);
      if (kind == TB_OPT_HOST && has_port(text))
        return tb_fail(-EINVAL, "%s=%s: give the address alone; the port has its own variable (TAILBOUND_MASTER_PORT)",
                       where, text);
      if (kind == TB_OPT_FAULT && tb_fault_check(text, detail, sizeof detail))
        return tb_fail(-EINVAL, "%s=%s: %s", where, text, detail);
      break;
    case TB_OPT_COUNT: err = tb_parse_count(text, &v); break;
    case TB_OPT_SIZE: err = tb_parse_size(text, &v); break;
    case TB_OPT_TIME: err = tb_parse_time(text, &v); break;
    case TB_OPT_SWITCH: err = tb_parse_switch(text, &v); break;
    case TB_OPT_CHOICE: err = choice(text, o->choices, &v); break;
    case TB_OPT_LEVEL: err = level(text, &v); break;
    case TB_OPT_PORTS: err = tb_parse_ports(text, &v); break;
    case TB_OPT_SHARE: err = tb_parse_share(text, &out->share); break;
    case TB_OPT_DEADLINE:
      err = deadline(text, &v);
      if (!err && v != 0 && v != UINT64_MAX && (v < o->lo || v > o->hi)) err = -EINVAL;
      if (!err && v == 0 && strcmp(text, "auto") != 0) err = -EINVAL;
      break;
  }
  if (kind == TB_OPT_COUNT || kind == TB_OPT_SIZE || kind == TB_OPT_TIME) {
    if (!err && v >= o->lo && v <= o->hi) {
      out->number = v;
      return 0;
    }
    tb_option_format(kind, o->lo, lo, sizeof lo);
    tb_option_format(kind, o->hi, hi, sizeof hi);
    return tb_fail(-EINVAL, "%s=%s: %s from %s to %s (%s)", where, text,
                   kind == TB_OPT_TIME   ? "a time"
                   : kind == TB_OPT_SIZE ? "a size"
                                         : "a whole number",
                   lo, hi, tb_option_unit(o));
  }
  if (err && kind == TB_OPT_DEADLINE)
    return tb_fail(-EINVAL,
                   "%s=%s: auto, exact (or inf), or a time from 1us to 3600s such as 50ms; a bare number is seconds",
                   where, text);
  if (err) return tb_fail(-EINVAL, "%s=%s: allowed is %s", where, text, tb_option_unit(o));
  out->number = v;
  return 0;
}
