/* groups.c - the option `groups`, in words: off, auto, host, local_rank, so many ranks in each, or a list such as
 * 0-3/4-7 (groups apart by '/', their ranks by '+', a row of ranks with '-'). All ranks read the same text and the same
 * seats. */
#include "engine/groups.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/error.h"

enum { NOBODY = UINT16_MAX, RANKS = 1024 };

static bool number(const char **at, uint32_t n, uint32_t *out) {
  char *end;
  if (**at < '0' || **at > '9') return false;
  unsigned long v = strtoul(*at, &end, 10);
  *at = end;
  *out = (uint32_t)v;
  return v < n;
}

static int read_list(const char *text, uint32_t n, uint16_t *group_of, char *why, size_t len) {
  uint32_t group = 0, first, last;
  for (uint32_t r = 0; r < n; r++) group_of[r] = NOBODY;
  for (const char *at = text;; at++) {
    bool ok = number(&at, n, &first);
    last = first;
    if (ok && *at == '-') ok = (at++, number(&at, n, &last));
    if (!ok || last < first || (*at && *at != '+' && *at != '/')) {
      snprintf(why, len, "groups='%.40s': ranks below %u are needed, as in 0-3/4-7 or 0+2/1+3; or how many in each (at most "
               "%u), host, local_rank, auto, off", text, n, n);
      return -EINVAL;
    }
    for (uint32_t r = first; r <= last; r++) {
      if (group_of[r] != NOBODY) {
        snprintf(why, len, "groups: rank %u is in two of them", r);
        return -EINVAL;
      }
      group_of[r] = (uint16_t)group;
    }
    if (!*at) break;
    if (*at == '/') group++;
    if (group == n) break;
  }
  for (uint32_t r = 0; r < n; r++)
    if (group_of[r] == NOBODY) {
      snprintf(why, len, "groups: rank %u is in none of them", r);
      return -EINVAL;
    }
  return 1;
}

/* A host's group has the number of its first rank. */
static void by_host(uint32_t n, const tb_seat *seats, uint16_t *group_of) {
  for (uint32_t r = 0; r < n; r++)
    for (uint32_t p = 0; p <= r; p++)
      if (!strcmp(seats[p].host, seats[r].host)) {
        group_of[r] = (uint16_t)p;
        break;
      }
}

/* Launchers number hosts one after the other: each rank 0 of a host begins a group. */
static int by_local_rank(uint32_t n, const tb_seat *seats, uint16_t *group_of, char *why, size_t len) {
  uint32_t group = 0;
  for (uint32_t r = 0; r < n; r++) {
    uint32_t expected = r ? seats[r - 1].local_rank + 1 : 0;
    if (r && !seats[r].local_rank) group++;
    else if (seats[r].local_rank != expected) {
      snprintf(why, len, "groups=local_rank: rank %u has local rank %u, not %u or 0: ranks of a host must be numbered "
               "in a row; give a list", r, seats[r].local_rank, expected);
      return -EINVAL;
    }
    group_of[r] = (uint16_t)group;
  }
  return 1;
}

static bool even(uint32_t n, const uint16_t *group_of, uint32_t *groups) {
  uint16_t size[RANKS] = {0};
  *groups = 0;
  for (uint32_t r = 0; r < n; r++) *groups += size[group_of[r]]++ == 0;
  for (uint32_t r = 0; r < n; r++)
    if (size[group_of[r]] != size[group_of[0]]) return false;
  return true;
}

int tb_groups_read(const char *text, uint32_t n, const tb_seat *seats, uint16_t *group_of, char *why, size_t len) {
  bool automatic = !strcmp(text, "auto"), host = !strcmp(text, "host"), local = !strcmp(text, "local_rank");
  uint32_t size, groups;
  const char *at = text;
  *why = 0;
  if (!strcmp(text, "off") || !*text || n == 1 || n > RANKS) return 0;
  if ((automatic || host || local) && !seats) {
    snprintf(why, len, "groups=%s: a simulated world has no hosts: give the ranks in each group, or a list", text);
    return automatic ? 0 : -EINVAL;
  }
  int rc = 1;
  if (automatic || host) by_host(n, seats, group_of);
  else if (local) rc = by_local_rank(n, seats, group_of, why, len);
  else if (number(&at, n + 1, &size) && !*at) {
    for (uint32_t r = 0; r < n && size; r++) group_of[r] = (uint16_t)(r / size);
    if (!size) rc = -EINVAL;
    if (!size) snprintf(why, len, "groups=0: give the ranks in each group, or off");
  } else rc = read_list(text, n, group_of, why, len);
  if (rc < 0) return rc;
  if (!even(n, group_of, &groups)) {
    snprintf(why, len, "groups=%.40s: the groups of %u ranks are not of one size%s", text, n,
             automatic ? ": none are made" : "");
    return automatic ? 0 : -EINVAL;
  }
  if (groups > 1 && groups < n) return 1;
  snprintf(why, len, "groups=%.40s: %s of %u ranks: none are made", text, groups == 1 ? "one group" : "each a group",
           n);
  return 0;
}

int tb_groups_set(tb_comm *c, const tb_seat *seats) {
  char why[200];
  uint16_t *group_of = calloc(c->n, sizeof *group_of);
  if (!group_of) return -ENOMEM;
  int rc = tb_groups_read(tb_config_str(c->cfg, "groups"), c->n, seats, group_of, why, sizeof why);
  if (rc == 1) rc = tb_core_set_groups(c->core, group_of);
  else if (rc < 0) rc = tb_fail(rc, "%s", why);
  else if (*why) tb_logring_put(c->log, 20, "%s", why);
  free(group_of);
  uint32_t groups = rc ? 1 : tb_core_groups(c->core);
  if (groups > 1)
    tb_logring_put(c->log, 20, "all_reduce in %u groups of %u ranks (option groups)", groups, c->n / groups);
  return rc;
}
