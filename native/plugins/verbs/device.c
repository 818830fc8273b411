/* device.c - which device, port and GID: from /sys/class/infiniband, which needs no library and no permission.
 *
 * A GID is what a port is called by its peers. Of a RoCE port there is one for each address of its interface and each
 * RoCE version; entries that are empty cannot be read, and are passed over. Wanted is RoCE v2, whose packets are UDP and
 * pass routers, and of its addresses one of the rendezvous' family, link-local ones last. */
#include "plugins/verbs/verbs.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHOICES = 32, PORTS_MOST = 16 };

static const uint8_t v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool verbs_gid_is_v4(const uint8_t *raw) { return !memcmp(raw, v4_prefix, sizeof v4_prefix); }

static bool empty(const uint8_t *raw) {
  static const uint8_t zero[16];
  return !memcmp(raw, zero, sizeof zero);
}

static bool link_local(const uint8_t *raw) { return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80; }

uint32_t verbs_gid_worth(const verbs_gid *g, bool ethernet, const uint8_t *want, int family) {
  if (empty(g->raw) || (ethernet ? !g->v2 : !g->ib)) return 0;
  if (want) return !memcmp(want, g->raw, 16);
  if (!ethernet) return 1; /* the first: its prefix is the subnet's */
  if (link_local(g->raw)) return 1;
  bool v4 = verbs_gid_is_v4(g->raw);
  return (family ? v4 == (family == 4) : v4) ? 3 : 2;
}

int verbs_gid_text(const uint8_t *raw, char *out, size_t n) {
  bool v4 = verbs_gid_is_v4(raw);
  return inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? raw + 12 : raw, out, (socklen_t)n) ? 0 : -ENOSPC;
}

int verbs_gid_of(const char *text, uint8_t raw[16]) {
  char address[64];
  size_t len = strcspn(text, "/");
  if (len >= sizeof address) return -EINVAL;
  memcpy(address, text, len);
  address[len] = 0;
  memcpy(raw, v4_prefix, sizeof v4_prefix);
  return inet_pton(AF_INET, address, raw + 12) == 1 || inet_pton(AF_INET6, address, raw) == 1 ? 0 : -EINVAL;
}

/* The first line of a file; false = it cannot be read, or is empty. */
__attribute__((format(printf, 3, 4))) static bool line_of(char *out, size_t n, const char *format, ...) {
  char path[PATH_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(path, sizeof path, format, args);
  va_end(args);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t k = fd >= 0 ? read(fd, out, n - 1) : -1;
  if (fd >= 0) close(fd);
  out[k > 0 ? k : 0] = 0;
  out[strcspn(out, "\n")] = 0;
  return *out;
}

#define CLASS "%s/sys/class/infiniband/%s"
#define PORT CLASS "/ports/%u"

uint32_t verbs_gids(const char *root, const char *device, uint32_t port, verbs_gid *out, uint32_t n) {
  char text[64], type[64];
  uint32_t count = 0;
  for (uint32_t i = 0; i < VERBS_GIDS_MAX && count < n; i++) {
    verbs_gid g = {.index = i};
    if (!line_of(text, sizeof text, PORT "/gids/%u", root, device, port, i)) break; /* the table ends here */
    if (inet_pton(AF_INET6, text, g.raw) != 1 || empty(g.raw)) continue;
    if (!line_of(type, sizeof type, PORT "/gid_attrs/types/%u", root, device, port, i)) continue;
    g.v2 = !strcmp(type, "RoCE v2");
    g.ib = !strncmp(type, "IB", 2);
    if (line_of(text, sizeof text, PORT "/gid_attrs/ndevs/%u", root, device, port, i))
      snprintf(g.netdev, sizeof g.netdev, "%.15s", text);
    out[count++] = g;
  }
  return count;
}

/* What is asked of a device; a field that is not asked for is empty. */
typedef struct {
  char name[64], pci[16];
  uint32_t port;
  bool by_gid;
  uint8_t gid[16];
  int family;                /* preferred; 0 = none */
} wanted;

static bool parse_name(const char *spec, wanted *w) {
  const char *colon = strchr(spec, ':');
  size_t len = colon ? (size_t)(colon - spec) : strlen(spec);
  char *end = NULL;
  if (!len || len >= sizeof w->name || memchr(spec, '/', len) || *spec == '.') return false;
  memcpy(w->name, spec, len);
  if (!colon) return true;
  unsigned long port = strtoul(colon + 1, &end, 10);
  w->port = (uint32_t)port;
  return end != colon + 1 && !*end && port >= 1 && port <= 255;
}

static bool parse_pci(const char *spec, wanted *w) {
  unsigned domain = 0, bus, device, function;
  int end = 0;
  if (sscanf(spec, "%4x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 || spec[end]) {
    domain = 0;
    if (sscanf(spec, "%2x:%2x.%1x%n", &bus, &device, &function, &end) != 3 || spec[end]) return false;
  }
  snprintf(w->pci, sizeof w->pci, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 255, device & 255, function & 15);
  return true;
}

static int parse(const tb_link_cfg *cfg, wanted *w) {
  const char *spec = cfg->device ? cfg->device : "", *ip = cfg->ip ? cfg->ip : "";
  uint8_t route[16];
  *w = (wanted){0};
  if (cfg->route_to && !verbs_gid_of(cfg->route_to, route)) w->family = verbs_gid_is_v4(route) ? 4 : 6;
  if (*ip && verbs_gid_of(ip, w->gid))
    return VERBS_REFUSE(cfg, -EINVAL, "verbs: \"%s\" is no address: set TAILBOUND_IP to one that an RDMA device's "
                        "interface has, or leave it out", ip);
  w->by_gid = *ip;
  if (!*spec) return 0;
  if (!verbs_gid_of(spec, w->by_gid ? route : w->gid)) {
    if (w->by_gid && memcmp(route, w->gid, 16))
      return VERBS_REFUSE(cfg, -EINVAL, "verbs: device %s and ip %s are two addresses: leave one out", spec, ip);
    w->by_gid = true;
    return 0;
  }
  if (parse_pci(spec, w) || parse_name(spec, w)) return 0;
  return VERBS_REFUSE(cfg, -EINVAL, "verbs: \"%s\" names no device: set TAILBOUND_DEVICE to a name, with a port if it has "
                      "several (mlx5_0 or mlx5_0:1), an address of its interface (10.0.0.5), or its PCI address "
                      "(0000:03:00.0)", spec);
}

static bool named(const char *root, const char *device, const wanted *w) {
  char path[PATH_MAX], to[PATH_MAX];
  if (*w->name) return !strcmp(w->name, device);
  if (!*w->pci) return true;
  snprintf(path, sizeof path, CLASS "/device", root, device);
  ssize_t n = readlink(path, to, sizeof to - 1);
  if (n < 0) return false;
  to[n] = 0;
  const char *slash = strrchr(to, '/');
  return !strcmp(slash ? slash + 1 : to, w->pci);
}

typedef struct {
  verbs_choice fit[CHOICES];
  uint32_t fits;
  char seen[400];            /* what there is, and why each that was named does not do */
} search;

__attribute__((format(printf, 2, 3))) static void note(search *s, const char *format, ...) {
  size_t used = strlen(s->seen);
  va_list args;
  va_start(args, format);
  if (used) used += (size_t)snprintf(s->seen + used, sizeof s->seen - used, "; ");
  if (used < sizeof s->seen) vsnprintf(s->seen + used, sizeof s->seen - used, format, args);
  va_end(args);
}

static void look_at(const char *root, const char *device, uint32_t port, const wanted *w, search *s) {
  static const char up[] = "4: ACTIVE";
  verbs_gid gid[VERBS_GIDS_MAX];
  char state[64] = "", layer[64] = "";
  line_of(state, sizeof state, PORT "/state", root, device, port);
  line_of(layer, sizeof layer, PORT "/link_layer", root, device, port);
  bool ethernet = !strcmp(layer, "Ethernet");
  uint32_t count = verbs_gids(root, device, port, gid, VERBS_GIDS_MAX), best = 0, worth = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t v = verbs_gid_worth(&gid[i], ethernet, w->by_gid ? w->gid : NULL, w->family);
    if (v > worth) worth = v, best = i;
  }
  if (strcmp(state, up)) {
    const char *netdev = count ? gid[0].netdev : "";
    note(s, "%s:%u is not up (%s)%s%s", device, port, *state ? state : "no state", *netdev ? ": ip link set up dev " : "",
         netdev);
  } else if (!worth) {
    note(s, "%s:%u has no such %s", device, port, w->by_gid ? "address" : "RoCE v2 address: give its interface an IP one");
  } else {
    note(s, "%s:%u", device, port);
    if (s->fits < CHOICES) {
      verbs_choice *c = &s->fit[s->fits++];
      *c = (verbs_choice){.port = port, .ethernet = ethernet, .gid = gid[best]};
      snprintf(c->device, sizeof c->device, "%.63s", device);
    }
  }
}

static int order(const void *a, const void *b) { return strcmp(a, b); }

static void look_at_all(const char *root, const wanted *w, search *s) {
  char path[PATH_MAX], names[CHOICES][64], state[64];
  size_t count = 0;
  struct dirent *e;
  snprintf(path, sizeof path, "%s/sys/class/infiniband", root);
  DIR *dir = opendir(path);
  while (dir && count < CHOICES && (e = readdir(dir)))
    if (*e->d_name != '.') snprintf(names[count++], sizeof names[0], "%.63s", e->d_name);
  if (dir) closedir(dir);
  qsort(names, count, sizeof names[0], order);
  for (size_t i = 0; i < count; i++)
    for (uint32_t port = 1; named(root, names[i], w) && port <= PORTS_MOST; port++) {
      if (!line_of(state, sizeof state, PORT "/state", root, names[i], port)) break;
      if (!w->port || w->port == port) look_at(root, names[i], port, w, s);
    }
}

int verbs_device_choose(const char *root, const tb_link_cfg *cfg, verbs_choice *out) {
  wanted w;
  search s = {0};
  int rc = parse(cfg, &w);
  if (rc) return rc;
  look_at_all(root, &w, &s);
  const char *asked = cfg->device && *cfg->device ? cfg->device : cfg->ip && *cfg->ip ? cfg->ip : "";
  if (s.fits == 1 || (s.fits && w.by_gid)) {
    *out = s.fit[0];
    return 0;
  }
  if (s.fits)
    return VERBS_REFUSE(cfg, -EINVAL, "verbs: %s several ports could be taken (%s): set TAILBOUND_DEVICE to one of them",
                        *asked ? "of that device" : "of all devices", s.seen);
  if (*s.seen)
    return VERBS_REFUSE(cfg, -ENODEV, "verbs: no RDMA port can be taken%s%s: %s", *asked ? " as " : "", asked, s.seen);
  return VERBS_REFUSE(cfg, -ENODEV, "verbs: there is no RDMA device%s%s here (/sys/class/infiniband): load its driver, or "
                      "for a soft-RoCE one: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
                      *asked ? " named " : "", asked);
}
