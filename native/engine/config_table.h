/* config_table.h - the rows behind config.h. To add an option of the protocol add a row to TB_TUNABLES or TB_CHOICES;
 * any other option is a row in config_table.c. Nothing else has to change. */
#ifndef TB_CONFIG_TABLE_H
#define TB_CONFIG_TABLE_H
#include <stddef.h>
#include <stdint.h>

typedef enum {
  TB_OPT_TEXT,  /* at most hi bytes, printable */
  TB_OPT_HOST,  /* host name or address, no port */
  TB_OPT_COUNT, /* lo..hi */
  TB_OPT_SIZE,  /* bytes, lo..hi */
  TB_OPT_TIME,  /* ns, lo..hi */
  TB_OPT_SHARE, /* 0..1 */
  TB_OPT_SWITCH,
  TB_OPT_CHOICE,   /* one word of `choices`; its number is its place in the list */
  TB_OPT_LEVEL,    /* off error warning info debug; its number is the level of engine/logring.h */
  TB_OPT_PORTS,    /* lo << 16 | hi */
  TB_OPT_DEADLINE, /* 0 = auto, UINT64_MAX = exact, else ns */
  TB_OPT_FAULT     /* checked by engine/fault.c */
} tb_option_kind;

typedef struct {
  const char *name;
  tb_option_kind kind;
  const char *def; /* NULL: `number` in the kind's own form */
  uint64_t number;
  uint64_t lo, hi;
  const char *choices;   /* separated by one space */
  const char *launchers; /* other environment variables in order of precedence, separated by one space */
  int derived;           /* the launchers' variables mean something else: ask tb_launcher_derive */
  int code;              /* it chooses code that is loaded: not read from the environment of whoever lacks our rights */
  const char *unit, *why;
  size_t tunable; /* offset in tb_tunables; SIZE_MAX = none */
} tb_option;

extern const tb_option tb_options[];
extern const uint32_t tb_option_count;

/* One option's value. text and source belong to the configuration. */
typedef struct {
  const char *text, *source;
  uint64_t number;
  double share;
} tb_option_value;

int64_t tb_option_find(const char *name);        /* row, -1 = no such option */
const char *tb_option_nearest(const char *name); /* the option probably meant, NULL = none is close */
tb_option_kind tb_option_kind_of(const tb_option *o);
const char *tb_option_unit(const tb_option *o);              /* for people */
void tb_option_env(const char *option, char *out, size_t n); /* TAILBOUND_<NAME> */
void tb_option_format(tb_option_kind kind, uint64_t number, char *out, size_t n);
/* Sets number or share. `where` names what the reader must change: a variable or an option. */
int tb_option_parse(const tb_option *o, const char *where, const char *text, tb_option_value *out);

/* What a launcher says about `option` in a form of its own (a node list, a job number).
 * 1 = value and source (a variable's name) are set, 0 = it says nothing, -EINVAL with tb_last_error() set. */
int tb_launcher_derive(const char *option, char *value, size_t value_len, char *source, size_t source_len);
/* First host of a SLURM node list: "node[001-004,7],x" -> "node001". -EINVAL when it is not one. */
int tb_nodelist_first(const char *list, char *host, size_t n);
/* Entry `node` of SLURM's tasks per node: "2(x3),1" -> 2, 2, 2, 1. -EINVAL when it is not one or is too short. */
int tb_tasks_on_node(const char *list, uint64_t node, uint64_t *tasks);

#endif
