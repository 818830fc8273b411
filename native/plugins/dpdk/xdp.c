/* xdp.c - the XDP program that af_xdp's driver puts on an interface. It takes the kernel's frames away, and stays there
 * when the device is stopped, and after the process. So a parked port takes it off, and the next open puts the same one
 * back: with its map, which still leads to our socket. Only a program that came with us: another one's stays.
 *
 * libbpf is the driver's; this plugin is not linked with it (loaded.c). Without one of its functions, or without the right
 * to ask for a program by number (CAP_SYS_ADMIN), the program stays where it is: docs/dpdk.md says how to take it off. */
#include "plugins/dpdk/dpdk.h"
#include <linux/if_link.h>
#include <string.h>
#include <unistd.h>

typedef int (*query_fn)(int ifindex, int flags, uint32_t *id);
typedef int (*open_fn)(uint32_t id);
typedef int (*attach_fn)(int ifindex, int fd, uint32_t flags, const void *options);

static bool find(const char *name, void *out, size_t size) {
  void *symbol = dpdk_loaded_symbol("libbpf.so", name);
  memcpy(out, &symbol, size); /* ISO C has no conversion from an object's pointer to a function's */
  return symbol;
}

/* The program there, 0 = none; *mode: how it is attached. */
static uint32_t program_on(unsigned ifindex, uint32_t *mode) {
  static const uint32_t modes[] = {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, XDP_FLAGS_HW_MODE};
  query_fn query;
  if (!find("bpf_xdp_query_id", &query, sizeof query)) return 0;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    uint32_t id = 0;
    if (!query((int)ifindex, (int)modes[i], &id) && id) {
      *mode = modes[i];
      return id;
    }
  }
  return 0;
}

uint32_t dpdk_xdp_before(const dpdk_device *d, unsigned ifindex) {
  uint32_t mode;
  return d->kind == DPDK_AF_XDP ? program_on(ifindex, &mode) : 0;
}

void dpdk_xdp_remember(dpdk_port *p, uint32_t before) {
  open_fn open_program;
  p->xdp_fd = -1;
  uint32_t id = p->device.kind == DPDK_AF_XDP && !before ? program_on(p->ifindex, &p->xdp_mode) : 0;
  if (id && find("bpf_prog_get_fd_by_id", &open_program, sizeof open_program)) p->xdp_fd = open_program(id);
  if (p->xdp_fd < 0) p->xdp_fd = -1; /* libbpf's errors are numbers below that */
}

int dpdk_xdp_switch(const dpdk_port *p, bool on) {
  attach_fn attach;
  uint32_t mode;
  if (p->xdp_fd < 0 || !find("bpf_xdp_attach", &attach, sizeof attach)) return 0;
  bool there = program_on(p->ifindex, &mode);
  if (there == on) return 0;
  return attach((int)p->ifindex, on ? p->xdp_fd : -1, p->xdp_mode, NULL);
}

void dpdk_xdp_forget(dpdk_port *p) {
  if (p->xdp_fd >= 0) close(p->xdp_fd);
  p->xdp_fd = -1;
}
