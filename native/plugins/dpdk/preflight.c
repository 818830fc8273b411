/* preflight.c - what EAL will be started with, and everything it would die of, asked of the kernel before.
 *
 * EAL that failed to start cannot be started again in the same process, and bytes of a huge page that a cgroup refuses
 * arrive as SIGBUS. So the pages are counted first: by node, against the cgroup's limit. Which memory:
 *   huge pages if there are enough (`auto`), else ordinary memory for virtual devices, whose DMA is the kernel's copying;
 *   a NIC gets huge pages or a refusal that names the command. Ordinary memory for a NIC only when it is asked for
 *   (`off`) and vfio with an IOMMU translates: pages that may move have no fixed physical address.
 * Without a figure for EAL's own memory there is no -m: with huge pages it takes them as pools need them, and a failure
 * is a sentence of port_pools.c. Ordinary memory does not grow and costs nothing until it is used, so there it is ample. */
#include "plugins/dpdk/dpdk.h"
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  PATH = 512,
  EAL_OWN = 48 << 20,    /* what EAL and its drivers take beside the pools */
  ORDINARY_MB = 1024,    /* of addresses, at least, when it is not huge pages: for all ports to come */
};

typedef struct {
  uint64_t page;         /* bytes of the smallest huge page; 0 = the kernel has none */
  uint64_t free, total;  /* pages of that size on the node, or on all */
  uint64_t other;        /* bytes free in larger ones */
  char where[PATH];      /* nr_hugepages of that size */
} huge_pages;

static int read_text(const char *root, const char *path, char *out, size_t n) {
  char full[PATH];
  if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return -ENAMETOOLONG;
  FILE *f = fopen(full, "re");
  if (!f) return -errno;
  size_t got = fread(out, 1, n - 1, f);
  fclose(f);
  out[got] = 0;
  return 0;
}

static uint64_t read_number(const char *root, const char *path, uint64_t otherwise) {
  char text[64];
  unsigned long long value;
  return !read_text(root, path, text, sizeof text) && sscanf(text, "%llu", &value) == 1 ? value : otherwise;
}

/* Of one node (-1 = the whole machine). */
static void count_pages(const char *root, int node, huge_pages *h) {
  char dir[96] = "/sys/kernel/mm/hugepages", full[PATH], path[PATH];
  memset(h, 0, sizeof *h);
  if (node >= 0) snprintf(dir, sizeof dir, "/sys/devices/system/node/node%d/hugepages", node);
  snprintf(full, sizeof full, "%s%s", root, dir);
  DIR *d = opendir(full);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));) {
    unsigned long long kb;
    if (sscanf(e->d_name, "hugepages-%llukB", &kb) != 1) continue;
    snprintf(path, sizeof path, "%s/%.64s/free_hugepages", dir, e->d_name);
    uint64_t free = read_number(root, path, 0);
    snprintf(path, sizeof path, "%s/%.64s/resv_hugepages", dir, e->d_name);
    uint64_t promised = node < 0 ? read_number(root, path, 0) : 0;
    snprintf(path, sizeof path, "%s/%.64s/nr_hugepages", dir, e->d_name);
    free -= promised < free ? promised : free;
    if (h->page && kb * 1024 > h->page) {
      h->other += free * kb * 1024;
      continue;
    }
    h->other += h->free * h->page;
    h->page = kb * 1024;
    h->free = free;
    h->total = read_number(root, path, 0);
    snprintf(h->where, sizeof h->where, "%s", path);
  }
  closedir(d);
}

/* Whether there are `bytes` in huge pages; else the sentence why not. */
static int enough_huge(const char *root, int node, uint64_t bytes, char *error, size_t n) {
  huge_pages h;
  char file[PATH] = "", on[32] = "";
  count_pages(root, node, &h);
  if (node >= 0) snprintf(on, sizeof on, " on NUMA node %d", node);
  if (!h.page)
    return dpdk_refuse(error, n, -ENOMEM, "dpdk: this kernel has no huge pages%s: boot one with CONFIG_HUGETLBFS, or set "
                       "TAILBOUND_HUGEPAGES=off for a virtual device", on);
  uint64_t need = (bytes + h.page - 1) / h.page;
  if (h.free < need && h.free * h.page + h.other < bytes)
    return dpdk_refuse(error, n, -ENOMEM, "dpdk: %llu huge pages of %llu kB are free%s and %llu are needed: "
                       "echo %llu > %s", (unsigned long long)h.free, (unsigned long long)h.page / 1024, on,
                       (unsigned long long)need, (unsigned long long)(h.total + need - h.free), h.where);
  uint64_t room = dpdk_cgroup_room(root, h.page, file, sizeof file);
  if (room < need * h.page)
    return dpdk_refuse(error, n, -ENOMEM, "dpdk: the cgroup of this process allows %llu MB more of huge pages and %llu MB "
                       "are needed: raise %s by the difference (in a container, its host has that file)", (unsigned long long)(room >> 20),
                       (unsigned long long)(need * h.page >> 20), file);
  return 0;
}

static bool may(const char *root, int capability) {
  char text[4096];
  unsigned long long set;
  if (read_text(root, "/proc/thread-self/status", text, sizeof text)) return false;
  const char *line = strstr(text, "CapEff:");
  return line && sscanf(line + 7, "%llx", &set) == 1 && (set >> capability & 1);
}

/* Rights are named that a process hands on (ambient ones): on the program's file (setcap) they would be everybody's who can
 * start it, and of an interpreter that is every script. */
static int lack(const dpdk_device *d, const char *why, const char *names, const char *words, char *error, size_t n) {
  return dpdk_refuse(error, n, -EPERM, "dpdk: %s on %s needs %s: run as root, or as root start it for a user by setpriv "
                     "--reuid=USER --clear-groups --inh-caps=%s --ambient-caps=%s (systemd: AmbientCapabilities=)", why,
                     d->iface, names, words, words);
}

/* Its two rings are locked in memory. */
static int check_ring_lock(const char *root, const dpdk_device *d, const char *words, char *error, size_t n) {
  struct rlimit limit;
  char why[120];
  uint64_t bytes = 2 * (uint64_t)d->rx_ring * d->frame_room;
  if (may(root, CAP_IPC_LOCK) || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur >= bytes) return 0;
  snprintf(why, sizeof why, "locking %llu kB of memory (ulimit -l allows %llu) for the ring",
           (unsigned long long)bytes >> 10, (unsigned long long)limit.rlim_cur >> 10);
  return lack(d, why, "CAP_IPC_LOCK", words, error, n);
}

/* af_packet's driver waits without an end for room in its ring, which the kernel does not empty beyond the socket's send
 * buffer: so that has to hold the ring, and a large one is a right. af_xdp's finds its program and that one's map by
 * number, which CAP_BPF does not allow. */
static int check_rights(const char *root, const dpdk_device *d, char *error, size_t n) {
  const char *words = "+net_raw,+net_admin,+ipc_lock";
  bool admin = may(root, CAP_NET_ADMIN);
  if (d->kind == DPDK_AF_XDP && !(admin && may(root, CAP_NET_RAW) && may(root, CAP_SYS_ADMIN)))
    return lack(d, "an XDP program", "CAP_NET_RAW, CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_IPC_LOCK",
                "+net_raw,+net_admin,+sys_admin,+ipc_lock", error, n);
  if (!may(root, CAP_NET_RAW) && d->kind != DPDK_AF_XDP)
    return lack(d, "a raw socket", "CAP_NET_RAW, CAP_NET_ADMIN and CAP_IPC_LOCK", words, error, n);
  uint64_t most = read_number(root, "/proc/sys/net/core/wmem_max", 0), want = dpdk_socket_bytes(d->rx_ring, d->ip_mtu);
  if (d->kind != DPDK_AF_PACKET) return 0;
  if (admin || most >= want) return check_ring_lock(root, d, words, error, n);
  char why[120];
  snprintf(why, sizeof why, "a send buffer of %llu bytes (sysctl net.core.wmem_max allows %llu) for the ring",
           (unsigned long long)want, (unsigned long long)most);
  return lack(d, why, "CAP_NET_ADMIN", words, error, n);
}

static int check_iface(const char *root, const dpdk_device *d, char *error, size_t n) {
  struct ifreq req = {0};
  char there[300];
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return dpdk_refuse(error, n, -errno, "dpdk: cannot ask for interface %s: %s", d->iface, strerror(errno));
  snprintf(req.ifr_name, sizeof req.ifr_name, "%s", d->iface);
  int absent = ioctl(fd, SIOCGIFFLAGS, &req), flags = req.ifr_flags;
  int mtu = absent || ioctl(fd, SIOCGIFMTU, &req) ? 0 : req.ifr_mtu;
  close(fd);
  if (absent) {
    dpdk_list_devices(root, there, sizeof there);
    return dpdk_refuse(error, n, -ENODEV, "dpdk: there is no interface %s; here are: %s", d->iface, there);
  }
  if (!(flags & IFF_UP))
    return dpdk_refuse(error, n, -ENETDOWN, "dpdk: interface %s is down: ip link set %s up", d->iface, d->iface);
  if (d->kind == DPDK_AF_XDP && mtu > (int)d->ip_mtu)
    return dpdk_refuse(error, n, -EMSGSIZE, "dpdk: the MTU of %s is %d, af_xdp carries %u: ip link set %s mtu %u "
                       "(of a veth: both ends)", d->iface, mtu, d->ip_mtu, d->iface, d->ip_mtu);
  return check_rights(root, d, error, n);
}

static int add(dpdk_eal_args *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int add(dpdk_eal_args *a, const char *format, ...) {
  va_list args;
  if (a->count == (int)(sizeof a->arg / sizeof *a->arg)) return -E2BIG;
  va_start(args, format);
  int len = vsnprintf(a->arg[a->count++], sizeof *a->arg, format, args);
  va_end(args);
  return len < (int)sizeof *a->arg ? 0 : -E2BIG;
}

/* "0@(0-3,8)": the one lcore may float over all processors the caller has; of very scattered ones, the first. */
static int add_lcores(dpdk_eal_args *a) {
  cpu_set_t set;
  char list[120] = "";
  size_t len = 0;
  if (sched_getaffinity(0, sizeof set, &set)) return -errno;
  for (int from = 0; from < CPU_SETSIZE && len + 16 < sizeof list; from++) {
    if (!CPU_ISSET(from, &set)) continue;
    int to = from;
    while (to + 1 < CPU_SETSIZE && CPU_ISSET(to + 1, &set)) to++;
    const char *comma = len ? "," : "";
    len += (size_t)(to > from ? snprintf(list + len, sizeof list - len, "%s%d-%d", comma, from, to)
                              : snprintf(list + len, sizeof list - len, "%s%d", comma, from));
    from = to;
  }
  int rc = add(a, "--lcores");
  return rc ? rc : add(a, "0@(%s)", list);
}

static int add_users(dpdk_eal_args *a, const char *words, char *error, size_t n) {
  for (const char *w = words ? words : ""; *(w += strspn(w, " ")); w += strcspn(w, " ")) {
    int len = (int)strcspn(w, " ");
    char word[160];
    if (len >= (int)sizeof word)
      return dpdk_refuse(error, n, -E2BIG, "dpdk: \"%.40s...\" in the EAL arguments is longer than 159 characters", w);
    snprintf(word, sizeof word, "%.*s", len, w);
    if (!strcmp(word, "-h") || !strcmp(word, "--help") || !strcmp(word, "--") || !strcmp(word, "-v"))
      return dpdk_refuse(error, n, -EINVAL, "dpdk: %s cannot be one of the EAL arguments: it would end the process or say "
                         "nothing; leave it out", word);
    if (!strcmp(word, "-a") || !strncmp(word, "--allow", 7)) a->pci = true;
    if (add(a, "%s", word)) return dpdk_refuse(error, n, -E2BIG, "dpdk: more than 40 EAL arguments");
  }
  return 0;
}

static int arguments(const dpdk_device *d, const tb_link_cfg *cfg, uint64_t bytes, dpdk_eal_args *a, char *error,
                     size_t n) {
  uint64_t mb = 2 * (bytes >> 20);
  int rc = add(a, "%s", program_invocation_short_name); /* syslog's name of this process */
  if (!rc) rc = add_lcores(a);
  if (!rc) rc = add(a, "--no-telemetry");
  if (!rc) rc = add(a, "--log-level");
  if (!rc) rc = add(a, "error");
  if (!rc && a->huge) rc = add(a, "--in-memory");
  if (!rc && !a->huge) rc = add(a, "--no-huge");
  if (!rc && !a->huge) rc = add(a, "--no-shconf");
  if (!rc && !a->huge) rc = add(a, "-m");
  if (!rc && !a->huge) rc = add(a, "%llu", (unsigned long long)(mb > ORDINARY_MB ? mb : ORDINARY_MB));
  if (rc) return dpdk_refuse(error, n, rc, "dpdk: EAL's arguments: %s", strerror(-rc));
  a->pci = d->kind == DPDK_PCI;
  snprintf(a->users, sizeof a->users, "%s", cfg->eal_args ? cfg->eal_args : "");
  if ((rc = add_users(a, cfg->eal_args, error, n))) return rc;
  if (d->kind == DPDK_PCI) rc = add(a, "-a");
  if (!rc && d->kind == DPDK_PCI) rc = add(a, "%s", d->devargs);
  if (!rc && !a->pci) rc = add(a, "--no-pci");
  return rc ? dpdk_refuse(error, n, rc, "dpdk: too many EAL arguments, or one of more than 159 characters") : 0;
}

static int memory(const char *root, const dpdk_device *d, const tb_link_cfg *cfg, uint64_t bytes, dpdk_eal_args *out,
                  char *error, size_t n) {
  bool nic = d->kind == DPDK_PCI;
  out->huge = false;
  if (cfg->hugepages == TB_HUGE_OFF) return 0;
  int rc = enough_huge(root, nic ? dpdk_pci_node(root, d->name) : -1, bytes, error, n);
  if (rc && (nic || cfg->hugepages == TB_HUGE_ON)) return rc;
  out->huge = !rc;
  if (rc && error && n) *error = 0;
  return 0;
}

int dpdk_preflight_at(const char *root, bool running, const dpdk_device *d, const tb_link_cfg *cfg, dpdk_eal_args *out,
                      char *error, size_t n) {
  dpdk_pools pools;
  int rc = 0;
  memset(out, 0, sizeof *out);
  dpdk_device_pools(d, cfg->mtu ? cfg->mtu + TB_IP4_HEAD + TB_UDP_HEAD : 0, &pools);
  uint64_t bytes = pools.bytes + EAL_OWN;
  out->needs_pci = d->kind == DPDK_PCI;
  out->needs_huge = d->kind == DPDK_PCI && cfg->hugepages != TB_HUGE_OFF;
  if (d->iface[0]) rc = check_iface(root, d, error, n);
  if (!rc && !running) rc = memory(root, d, cfg, bytes, out, error, n);
  if (!rc && d->kind == DPDK_PCI)
    rc = dpdk_preflight_pci(root, d, running ? dpdk_eal_huge() : out->huge, bytes, error, n);
  if (rc || running) return rc;
  if (d->kind == DPDK_PCI || d->kind == DPDK_OTHER) snprintf(out->probe, sizeof out->probe, "%s", d->devargs);
  return arguments(d, cfg, bytes, out, error, n);
}

int dpdk_preflight(const dpdk_device *d, const tb_link_cfg *cfg, dpdk_eal_args *out, char *error, size_t n) {
  int rc = dpdk_preflight_at("", dpdk_eal_running(), d, cfg, out, error, n);
  out->cancelled = cfg->cancelled;
  out->cancel_of = cfg->cancel_of;
  return rc;
}
