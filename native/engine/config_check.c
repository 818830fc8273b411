/* config_check.c - what one option alone cannot tell, and names that are almost an option. */
#include "engine/config.h"
#include "engine/config_table.h"
#include "engine/error.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

extern char **environ;

int64_t tb_option_find(const char *name) {
  for (uint32_t i = 0; i < tb_option_count; i++)
    if (strcmp(tb_options[i].name, name) == 0) return i;
  return -1;
}

/* Edit distance of two short names, for "did you mean". */
static unsigned distance(const char *a, const char *b) {
  unsigned row[64];
  size_t n = strlen(b);
  if (n >= 64) return 64;
  for (size_t j = 0; j <= n; j++) row[j] = (unsigned)j;
  for (; *a; a++) {
    unsigned diagonal = row[0]++;
    for (size_t j = 1; j <= n; j++) {
      unsigned best = diagonal + (*a != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  return row[n];
}

const char *tb_option_nearest(const char *name) {
  const char *best = NULL;
  unsigned least = 4; /* further away is another word, not a slip */
  for (uint32_t i = 0; i < tb_option_count; i++) {
    unsigned d = distance(name, tb_options[i].name);
    if (d < least) least = d, best = tb_options[i].name;
  }
  return best;
}

static const char *source_of(const tb_config *cfg, const char *name) {
  const char *source = "";
  tb_config_row(cfg, (uint32_t)tb_option_find(name), NULL, NULL, NULL, &source, NULL, NULL);
  return source;
}

static int is_default(const tb_config *cfg, const char *name) { return strcmp(source_of(cfg, name), "default") == 0; }

static int ordered(const tb_config *cfg, const char *low, const char *high) {
  if (tb_config_u64(cfg, low) <= tb_config_u64(cfg, high)) return 0;
  return tb_fail(-EINVAL, "%s=%s (%s) is above %s=%s (%s)", low, tb_config_str(cfg, low), source_of(cfg, low), high,
                 tb_config_str(cfg, high), source_of(cfg, high));
}

int tb_config_check(const tb_config *cfg) {
  uint64_t rank = tb_config_u64(cfg, "rank"), size = tb_config_u64(cfg, "size"),
           local = tb_config_u64(cfg, "local_size");
  if (size > 1 && is_default(cfg, "rank"))
    return tb_fail(-EINVAL,
                   "size is %" PRIu64 " (%s) but no rank is given: set RANK (0 to %" PRIu64
                   "), or start the job with torchrun, srun, mpirun or `tailbound launch`",
                   size, source_of(cfg, "size"), size - 1);
  if (rank >= size && is_default(cfg, "size"))
    return tb_fail(-EINVAL, "rank is %" PRIu64 " (%s) but no size is given: set WORLD_SIZE", rank,
                   source_of(cfg, "rank"));
  if (rank >= size)
    return tb_fail(-EINVAL, "rank %" PRIu64 " (%s) is not below size %" PRIu64 " (%s): ranks count from 0", rank,
                   source_of(cfg, "rank"), size, source_of(cfg, "size"));
  if (size > 1 && local > 0 && local < size && is_default(cfg, "master_addr"))
    return tb_fail(-EINVAL,
                   "only %" PRIu64 " of %" PRIu64
                   " ranks are on this host and no address of rank 0 is given: set MASTER_ADDR to rank 0's host",
                   local, size);
  if (!strcmp(tb_config_str(cfg, "missing"), "carry") && !strcmp(tb_config_str(cfg, "consistency"), "agree"))
    return tb_fail(-EINVAL, "missing=carry (%s) cannot go with consistency=agree (%s): use consistency=local, or "
                   "missing=renormalise", source_of(cfg, "missing"), source_of(cfg, "consistency"));
  int err = ordered(cfg, "rto_min", "rto_max");
  if (!err) err = ordered(cfg, "deadline_floor", "deadline_ceiling");
  if (!err) err = ordered(cfg, "window_min", "window_max");
  return err;
}

void tb_config_job(const tb_config *cfg, char *out, size_t n) {
  snprintf(out, n, "%s#%" PRIu64, tb_config_str(cfg, "job"), tb_config_u64(cfg, "restart"));
}

int tb_config_stranger(char *out, size_t n) {
  char variable[96], lower[64];
  for (char **e = environ; e && *e; e++) {
    size_t length = strcspn(*e, "=");
    if (strncmp(*e, "TAILBOUND_", 10) != 0 || length - 10 >= sizeof lower) continue;
    for (size_t i = 10; i < length; i++) lower[i - 10] = (char)tolower((unsigned char)(*e)[i]);
    lower[length - 10] = 0;
    const char *meant = tb_option_find(lower) < 0 ? tb_option_nearest(lower) : NULL;
    if (!meant) continue; /* unlike any option: some other program's business */
    tb_option_env(meant, variable, sizeof variable);
    snprintf(out, n, "environment variable %.*s is not an option and has no effect: did you mean %s?", (int)length, *e,
             variable);
    return 1;
  }
  return 0;
}
