/* cgroup.c - how many bytes of huge pages the cgroups of this process still allow. Beyond that the kernel answers a touch
 * with SIGBUS, which nobody survives, so it is asked before.
 *
 * Every group on the way up limits what is below it: the least room counts, and its file is the one to raise. Where the
 * hierarchy is mounted, and which group of it that mount shows, is told by mountinfo: systems with both versions have the
 * second one elsewhere. Besides what is in use, what was promised (rsvd) may be limited. */
#include "plugins/dpdk/dpdk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 512, LINE = 2048, GROUP = 400 };

typedef struct { const char *of, *limit, *used; } limit; /* of: "" or "rsvd." */
static const limit first[] = {{"", "limit_in_bytes", "usage_in_bytes"}, {"rsvd.", "limit_in_bytes", "usage_in_bytes"}};
static const limit second[] = {{"", "max", "current"}, {"rsvd.", "max", "current"}};

static FILE *open_below(const char *root, const char *path) {
  char full[PATH];
  return snprintf(full, sizeof full, "%s%s", root, path) < (int)sizeof full ? fopen(full, "re") : NULL;
}

/* This process's group in a hierarchy of /proc/self/cgroup; "" (version 2) or its controller's name. */
static bool own_group(const char *root, const char *controller, char out[GROUP]) {
  char line[LINE];
  bool found = false;
  FILE *f = open_below(root, "/proc/self/cgroup");
  while (f && !found && fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0;
    found = !strcmp(list + 1, controller) && snprintf(out, GROUP, "%s", path) < GROUP;
  }
  if (f) fclose(f);
  return found;
}

static bool has_option(char *list, const char *word) {
  for (char *one; (one = strsep(&list, ",\n"));)
    if (!strcmp(one, word)) return true;
  return false;
}

/* Where that hierarchy is mounted, and the group that the mount shows as its top. */
static bool mounted(const char *root, const char *type, const char *option, char at[PATH], char top[GROUP]) {
  char line[LINE], kind[32], options[512], where[PATH], shows[GROUP];
  bool found = false;
  FILE *f = open_below(root, "/proc/self/mountinfo");
  while (f && !found && fgets(line, sizeof line, f)) {
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(rest, " - %31s %*s %511s", kind, options) != 2 || strcmp(kind, type)) continue;
    if (*option && !has_option(options, option)) continue;
    found = sscanf(line, "%*s %*s %*s %399s %511s", shows, where) == 2;
  }
  if (f) fclose(f);
  if (!found) return false;
  snprintf(at, PATH, "%s", where);
  snprintf(top, GROUP, "%s", strcmp(shows, "/") ? shows : "");
  return true;
}

static uint64_t number_in(const char *root, const char *path, uint64_t otherwise) {
  unsigned long long value;
  FILE *f = open_below(root, path);
  bool told = f && fscanf(f, "%llu", &value) == 1; /* "max" is no number */
  if (f) fclose(f);
  return told ? value : otherwise;
}

/* In one group; the file that limits, if that is less than before. */
static uint64_t room_in(const char *root, const char *dir, const char *size, const limit *l, uint64_t before, char *file,
                        size_t n) {
  char path[2 * PATH];
  snprintf(path, sizeof path, "%s/hugetlb.%s.%s%s", dir, size, l->of, l->limit);
  uint64_t most = number_in(root, path, UINT64_MAX);
  if (most == UINT64_MAX) return before;
  char used[2 * PATH];
  snprintf(used, sizeof used, "%s/hugetlb.%s.%s%s", dir, size, l->of, l->used);
  uint64_t now = number_in(root, used, 0), room = most - (now < most ? now : most);
  if (room >= before) return before;
  snprintf(file, n, "%s", path);
  return room;
}

uint64_t dpdk_cgroup_room(const char *root, uint64_t page, char *file, size_t n) {
  char size[16], group[GROUP], top[GROUP], at[PATH], dir[PATH + GROUP];
  bool old = own_group(root, "hugetlb", group) && mounted(root, "cgroup", "hugetlb", at, top);
  if (!old && !(own_group(root, "", group) && mounted(root, "cgroup2", "", at, top))) return UINT64_MAX;
  bool gb = page >= 1 << 30;
  snprintf(size, sizeof size, "%u%s", (unsigned)(gb ? page >> 30 : page >> 20), gb ? "GB" : "MB");
  size_t skip = strncmp(group, top, strlen(top)) ? 0 : strlen(top);
  snprintf(dir, sizeof dir, "%s%s", at, strcmp(group + skip, "/") ? group + skip : "");
  uint64_t room = UINT64_MAX;
  for (size_t least = strlen(at);;) {
    for (int i = 0; i < 2; i++) room = room_in(root, dir, size, old ? &first[i] : &second[i], room, file, n);
    char *slash = strrchr(dir, '/');
    if (strlen(dir) <= least || !slash) return room;
    *slash = 0;
  }
}
