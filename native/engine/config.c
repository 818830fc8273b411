/* config.c - the values of the table: from the environment, from the caller, and out again. */
#include "engine/config.h"

#include "engine/config_parse.h"
#include "engine/config_table.h"
#include "engine/error.h"
#include "engine/logring.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Strings a caller may still hold (tb_config_row) stay until the configuration is freed. */
typedef struct kept {
  struct kept *next;
  char text[];
} kept;

struct tb_config {
  atomic_int cancelled;
  pthread_mutex_t log_lock;
  tb_logring *log; /* of the last tb_init with it */
  kept *strings;
  tb_tunables tunables;
  const char **env; /* per row: names in order of precedence, separated by one space */
  tb_option_value *values;
};

static const char *keep(tb_config *cfg, const char *text) {
  size_t n = strlen(text) + 1;
  kept *k = malloc(sizeof *k + n);
  if (!k) return NULL;
  memcpy(k->text, text, n);
  k->next = cfg->strings;
  cfg->strings = k;
  return k->text;
}

static bool has_word(const char *words, const char *word) {
  size_t n = strlen(word);
  for (const char *p = words; (p = strstr(p, word)); p += n)
    if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
  return false;
}

/* Whatever can be on or off is so in all the words that a switch takes: who writes 1 or true means on. */
static const char *as_switch(const tb_option *o, const char *text) {
  uint64_t on;
  if (tb_parse_switch(text, &on)) return text;
  if (o->choices && has_word(o->choices, "on") && has_word(o->choices, "off")) return on ? "on" : "off";
  if (tb_option_kind_of(o) == TB_OPT_COUNT && !o->lo && o->hi == 1) return on ? "1" : "0";
  return text;
}

static int assign(tb_config *cfg, uint32_t i, const char *where, const char *text, const char *source) {
  const tb_option *o = &tb_options[i];
  tb_option_value value = {0};
  text = as_switch(o, text);
  int err = tb_option_parse(o, where, text, &value);
  if (err) return err;
  value.text = keep(cfg, text);
  value.source = keep(cfg, source);
  if (!value.text || !value.source) return tb_fail(-ENOMEM, "no memory for the option %s", o->name);
  cfg->values[i] = value;
  if (o->tunable != SIZE_MAX) memcpy((char *)&cfg->tunables + o->tunable, &value.number, sizeof value.number);
  return 0;
}

static int assign_env(tb_config *cfg, uint32_t i, const char *variable, const char *text) {
  char source[128];
  snprintf(source, sizeof source, "env %s", variable);
  return assign(cfg, i, variable, text, source);
}

/* First the default, so that every value is valid even if the environment is not. */
static int fill(tb_config *cfg, uint32_t i) {
  const tb_option *o = &tb_options[i];
  char variable[96], text[512], names[512];
  tb_option_env(o->name, variable, sizeof variable);
  snprintf(names, sizeof names, "%s%s%s", variable, o->launchers ? " " : "", o->launchers ? o->launchers : "");
  if (!(cfg->env[i] = keep(cfg, names))) return tb_fail(-ENOMEM, "no memory for the configuration");
  if (o->def)
    snprintf(text, sizeof text, "%s", o->def);
  else
    tb_option_format(tb_option_kind_of(o), o->number, text, sizeof text);
  int err = assign(cfg, i, o->name, text, "default");
  if (err) return err;

  const char *found = o->code ? secure_getenv(variable) : getenv(variable);
  if (found && *found) return assign_env(cfg, i, variable, found);
  if (o->derived) {
    int said = tb_launcher_derive(o->name, text, sizeof text, variable, sizeof variable);
    return said == 1 ? assign_env(cfg, i, variable, text) : said;
  }
  for (const char *p = o->launchers; p && *p;) {
    size_t n = strcspn(p, " ");
    snprintf(variable, sizeof variable, "%.*s", (int)n, p);
    found = getenv(variable);
    if (found && *found) return assign_env(cfg, i, variable, found);
    p += n + (p[n] == ' ');
  }
  return 0;
}

static tb_config *empty(void) {
  tb_config *cfg = calloc(1, sizeof *cfg);
  if (!cfg) return NULL;
  pthread_mutex_init(&cfg->log_lock, NULL);
  cfg->env = calloc(tb_option_count, sizeof *cfg->env);
  cfg->values = calloc(tb_option_count, sizeof *cfg->values);
  if (cfg->env && cfg->values) return cfg;
  tb_config_free(cfg);
  return NULL;
}

int tb_config_new(tb_config **out) {
  tb_config *cfg = empty();
  if (!cfg) return tb_fail(-ENOMEM, "no memory for the configuration");
  for (uint32_t i = 0; i < tb_option_count; i++) {
    int err = fill(cfg, i);
    if (err) {
      tb_config_free(cfg);
      return err;
    }
  }
  *out = cfg;
  return 0;
}

void tb_config_free(tb_config *cfg) {
  if (!cfg) return;
  for (kept *k = cfg->strings, *next; k; k = next) {
    next = k->next;
    free(k);
  }
  tb_logring_free(cfg->log);
  pthread_mutex_destroy(&cfg->log_lock);
  free(cfg->env);
  free(cfg->values);
  free(cfg);
}

tb_config *tb_config_dup(const tb_config *cfg) {
  tb_config *copy = empty();
  if (!copy) return NULL;
  copy->tunables = cfg->tunables;
  for (uint32_t i = 0; i < tb_option_count; i++) {
    copy->values[i] = cfg->values[i];
    copy->values[i].text = keep(copy, cfg->values[i].text);
    copy->values[i].source = keep(copy, cfg->values[i].source);
    copy->env[i] = keep(copy, cfg->env[i]);
    if (!copy->values[i].text || !copy->values[i].source || !copy->env[i]) {
      tb_config_free(copy);
      return NULL;
    }
  }
  return copy;
}

int tb_config_set(tb_config *cfg, const char *name, const char *value) {
  int64_t i = name ? tb_option_find(name) : -1;
  if (i < 0) {
    const char *meant = name ? tb_option_nearest(name) : NULL;
    return tb_fail(-ENOENT, "there is no option %s%s%s; `tailbound config` lists them all", name ? name : "(null)",
                   meant ? ": did you mean " : "", meant ? meant : "");
  }
  if (!value) return tb_fail(-EINVAL, "option %s: no value given", name);
  return assign(cfg, (uint32_t)i, name, value, "set");
}

const char *tb_config_get(const tb_config *cfg, const char *name) {
  int64_t i = tb_option_find(name);
  return i < 0 ? NULL : cfg->values[i].text;
}

int tb_config_row(const tb_config *cfg, uint32_t i, const char **name, const char **env, const char **value,
                  const char **source, const char **unit, const char **why) {
  if (i >= tb_option_count) return -ENOENT; /* the end of a loop, not a failure: the last sentence is left alone */
  if (name) *name = tb_options[i].name;
  if (env) *env = cfg->env[i];
  if (value) *value = cfg->values[i].text;
  if (source) *source = cfg->values[i].source;
  if (unit) *unit = tb_option_unit(&tb_options[i]);
  if (why) *why = tb_options[i].why;
  return 0;
}

void tb_init_cancel(tb_config *cfg) { atomic_store(&cfg->cancelled, 1); }
int tb_config_cancelled(const tb_config *cfg) { return atomic_load(&((tb_config *)cfg)->cancelled); }

void tb_config_log(const tb_config *cfg, tb_logring *log) {
  tb_config *c = (tb_config *)cfg;
  pthread_mutex_lock(&c->log_lock);
  tb_logring *before = c->log;
  tb_logring_hold(log);
  c->log = log;
  pthread_mutex_unlock(&c->log_lock);
  tb_logring_free(before);
}

int tb_init_log_next(tb_config *cfg, char *out, uint32_t n, int *level) {
  pthread_mutex_lock(&cfg->log_lock);
  int found = cfg->log ? tb_logring_next(cfg->log, out, n, level) : 0;
  pthread_mutex_unlock(&cfg->log_lock);
  return found;
}

const tb_tunables *tb_config_tunables(const tb_config *cfg) { return &cfg->tunables; }

/* A name that is not in the table is a mistake of ours, found by the first run. */
static const tb_option_value *must(const tb_config *cfg, const char *name) {
  int64_t i = tb_option_find(name);
  if (i < 0) {
    fprintf(stderr, "tailbound: no option %s in the table\n", name);
    abort();
  }
  return &cfg->values[i];
}

const char *tb_config_str(const tb_config *cfg, const char *name) { return must(cfg, name)->text; }
uint64_t tb_config_u64(const tb_config *cfg, const char *name) { return must(cfg, name)->number; }
double tb_config_share(const tb_config *cfg, const char *name) { return must(cfg, name)->share; }
