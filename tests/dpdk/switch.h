/* switch.h - a switch with cables, in a network namespace of the test's own, which goes with its process. Cable i has
 * the ends tb<i>, for a device of ours, and sw<i>, in the bridge. */
#ifndef SWITCH_H
#define SWITCH_H
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static inline __attribute__((format(printf, 1, 2))) void run(const char *format, ...) {
  char line[300];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (!system(line)) return;
  fprintf(stderr, "failed: %s\n", line);
  exit(1);
}

static inline void cable(int i) {
  run("ip link add tb%d type veth peer name sw%d", i, i);
  run("ip link set sw%d master sw up", i);
  run("ip link set tb%d up", i);
}

/* What ethtool -K sw<i> txvlan off does. Else a tag goes through the cable beside its frame, and XDP does not get it. */
static inline void tags_in_frames(int i) {
  struct ethtool_value value = {.cmd = ETHTOOL_GFLAGS};
  struct ifreq req = {.ifr_data = (char *)&value};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  snprintf(req.ifr_name, sizeof req.ifr_name, "sw%d", i);
  int rc = ioctl(fd, SIOCETHTOOL, &req);
  value = (struct ethtool_value){.cmd = ETHTOOL_SFLAGS, .data = value.data & ~(uint32_t)ETH_FLAG_TXVLAN};
  if (!rc) rc = ioctl(fd, SIOCETHTOOL, &req);
  close(fd);
  if (!rc) return;
  perror("ethtool's txvlan off");
  exit(1);
}

static inline void make_switch(int cables) {
  if (unshare(CLONE_NEWNET)) {
    perror("a network namespace of its own (needs root)");
    exit(1);
  }
  run("ip link set lo up");
  run("ip link add sw type bridge");
  run("ip link set sw up");
  for (int i = 0; i < cables; i++) cable(i);
}

#endif
