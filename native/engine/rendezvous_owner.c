/* rendezvous_owner.c - who holds a TCP port of this host: /proc/net/tcp knows the socket, /proc/PID/fd its process. */
#include "engine/rendezvous_internal.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Inode of the socket bound to the port, a listening one first; 0 = none. */
static unsigned long socket_inode(const char *table, uint16_t port) {
  char line[512];
  unsigned long found = 0;
  FILE *f = fopen(table, "re");
  if (!f) return 0;
  while (fgets(line, sizeof line, f)) {
    unsigned local, state;
    unsigned long inode;
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu", &local, &state, &inode) !=
        3)
      continue;
    if (local != port || inode == 0) continue;
    found = inode;
    if (state == 0x0a) break; /* LISTEN */
  }
  fclose(f);
  return found;
}

static int holds(const char *pid, unsigned long inode) {
  char path[300], link[64], wanted[64];
  snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
  snprintf(path, sizeof path, "/proc/%s/fd", pid);
  DIR *dir = opendir(path);
  if (!dir) return 0; /* another user's process */
  int found = 0;
  for (struct dirent *e; !found && (e = readdir(dir));) {
    snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, e->d_name);
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n <= 0) continue;
    link[n] = 0;
    found = strcmp(link, wanted) == 0;
  }
  closedir(dir);
  return found;
}

int tb_rv_port_owner(uint16_t port, char *name, size_t name_len) {
  int owner = 0;
  name[0] = 0;
  unsigned long inode = socket_inode("/proc/net/tcp", port);
  if (!inode) inode = socket_inode("/proc/net/tcp6", port);
  DIR *proc = inode ? opendir("/proc") : NULL;
  if (!proc) return 0;
  for (struct dirent *e; !owner && (e = readdir(proc));)
    if (isdigit((unsigned char)e->d_name[0]) && holds(e->d_name, inode)) owner = atoi(e->d_name);
  closedir(proc);
  if (owner) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", owner);
    FILE *f = fopen(path, "re");
    if (f) {
      if (!fgets(name, (int)name_len, f)) name[0] = 0;
      name[strcspn(name, "\n")] = 0;
      fclose(f);
    }
  }
  return owner;
}
