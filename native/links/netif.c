/* netif.c - chooses the local address a link binds to and tells its peers (see netif.h for the grammar).
 *
 * People move between libraries whose interface variables look alike and differ: one takes a prefix list, another one
 * concrete name, a third an address. All of them are accepted here, and whatever does not match is answered with the
 * list of what this host has. */
#include "links/netif.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SPEC_MAX 256
#define GRAMMAR                                                                                                     \
  "use a prefix list (eth,ib), an exact name (=eth0), an exclusion (^docker,lo), an address (10.0.0.5) or a CIDR " \
  "(10.0.0.0/8)"

typedef struct { int family; uint8_t bytes[16]; uint32_t scope; } ip_addr;

static ip_addr ip_of(const struct sockaddr_storage *sa) {
  ip_addr ip = {.family = sa->ss_family};
  if (sa->ss_family == AF_INET) {
    memcpy(ip.bytes, &((const struct sockaddr_in *)sa)->sin_addr, 4);
  } else if (sa->ss_family == AF_INET6) {
    memcpy(ip.bytes, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
    ip.scope = ((const struct sockaddr_in6 *)sa)->sin6_scope_id;
  }
  return ip;
}

/* "10.0.0.5", "fe80::1", "fe80::1%eth0", "fe80::1%2", any of them in brackets. Nonzero when text is an address. */
static int ip_parse(const char *text, ip_addr *out) {
  char copy[SPEC_MAX];
  size_t len = strlen(text);
  if (len >= 2 && text[0] == '[' && text[len - 1] == ']') text++, len -= 2;
  if (len == 0 || len >= sizeof copy) return 0;
  memcpy(copy, text, len);
  copy[len] = 0;
  memset(out, 0, sizeof *out);
  char *scope = strchr(copy, '%');
  if (scope) *scope++ = 0;
  if (!scope && inet_pton(AF_INET, copy, out->bytes) == 1) {
    out->family = AF_INET;
    return 1;
  }
  if (inet_pton(AF_INET6, copy, out->bytes) != 1) return 0;
  out->family = AF_INET6;
  if (scope && *scope) {
    out->scope = if_nametoindex(scope);
    if (!out->scope) out->scope = (uint32_t)strtoul(scope, NULL, 10);
    if (!out->scope) return 0;
  }
  return 1;
}

/* A missing scope on either side matches any: "fe80::1" names the address on whichever interface has it. */
static int ip_equal(const ip_addr *a, const ip_addr *b) {
  return a->family == b->family && !memcmp(a->bytes, b->bytes, 16) && (!a->scope || !b->scope || a->scope == b->scope);
}

static int ip_inside(const ip_addr *net, unsigned bits, const ip_addr *ip) {
  if (net->family != ip->family) return 0;
  unsigned whole = bits / 8, rest = bits % 8;
  if (memcmp(net->bytes, ip->bytes, whole)) return 0;
  return !rest || ((net->bytes[whole] ^ ip->bytes[whole]) >> (8 - rest)) == 0;
}

static int is_link_local(const ip_addr *ip) {
  return ip->family == AF_INET6 && ip->bytes[0] == 0xfe && (ip->bytes[1] & 0xc0) == 0x80;
}

static uint32_t mtu_of(int fd, const char *name) {
  struct ifreq req = {0};
  memcpy(req.ifr_name, name, strnlen(name, IF_NAMESIZE - 1));
  return fd >= 0 && !ioctl(fd, SIOCGIFMTU, &req) ? (uint32_t)req.ifr_mtu : 1500;
}

int tb_netif_list(tb_netif *out, int n) {
  struct ifaddrs *all, *a;
  if (getifaddrs(&all)) return -errno;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), found = 0;
  if (fd < 0) fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (a = all; a; a = a->ifa_next) {
    if (!a->ifa_addr || !(a->ifa_flags & IFF_UP)) continue;
    int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (found < n) {
      tb_netif *i = &out[found];
      memset(i, 0, sizeof *i);
      memcpy(i->name, a->ifa_name, strnlen(a->ifa_name, IF_NAMESIZE - 1));
      memcpy(&i->addr, a->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
      i->mtu = mtu_of(fd, i->name);
      i->loopback = !!(a->ifa_flags & IFF_LOOPBACK);
    }
    found++;
  }
  if (fd >= 0) close(fd);
  freeifaddrs(all);
  return found;
}

/* Appends the interfaces as "eth0 10.0.0.5 fe80::1; lo 127.0.0.1", one entry per interface. */
static void append_list(char *error, size_t len, const tb_netif *all, int n) {
  char text[INET6_ADDRSTRLEN];
  size_t used = strlen(error);
  for (int i = 0; i < n && used + 1 < len; i++) {
    ip_addr ip = ip_of(&all[i].addr);
    int first = 1;
    for (int j = 0; j < i; j++) first &= strcmp(all[j].name, all[i].name) != 0;
    if (!first) continue;
    used += (size_t)snprintf(error + used, len - used, "%s%s", i ? "; " : "", all[i].name);
    for (int j = i; j < n && used + 1 < len; j++) {
      if (strcmp(all[j].name, all[i].name)) continue;
      ip = ip_of(&all[j].addr);
      used += (size_t)snprintf(error + used, len - used, " %s", inet_ntop(ip.family, ip.bytes, text, sizeof text));
    }
  }
  if (!n) snprintf(error + used, len > used ? len - used : 0, "none that is up");
}

static int fail(int err, char *error, size_t len, const tb_netif *all, int n, const char *format, ...) {
  va_list args;
  if (!error || !len) return err;
  va_start(args, format);
  vsnprintf(error, len, format, args);
  va_end(args);
  append_list(error, len, all, n);
  return err;
}

/* The source address the kernel would use towards `host` ("name", "10.0.0.1", "10.0.0.1:29500",
 * "[fe80::1%eth0]:29500"). Connecting a datagram socket asks the routing table and sends nothing. */
static int route_source(const char *host, struct sockaddr_storage *out) {
  char name[SPEC_MAX];
  ip_addr literal;
  size_t len = strlen(host);
  if (len >= sizeof name) return -EINVAL;
  memcpy(name, host, len + 1);
  if (!ip_parse(name, &literal)) {
    char *colon = strrchr(name, ':');
    if (colon) *colon = 0;
  }
  len = strlen(name);
  if (len >= 2 && name[0] == '[' && name[len - 1] == ']') {
    memmove(name, name + 1, len - 2);
    name[len - 2] = 0;
  }
  struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV}, *all, *a;
  if (getaddrinfo(name, "9", &hints, &all)) return -EHOSTUNREACH;
  int rc = -EHOSTUNREACH;
  for (a = all; a && rc; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof *out;
    if (fd < 0) continue;
    if (!connect(fd, a->ai_addr, a->ai_addrlen) && !getsockname(fd, (struct sockaddr *)out, &size)) rc = 0;
    close(fd);
  }
  freeaddrinfo(all);
  return rc;
}

/* Among the addresses of equally good interfaces: the family of the route first, then IPv4, global IPv6, link-local. */
static int preference(const tb_netif *i, int family) {
  ip_addr ip = ip_of(&i->addr);
  return (ip.family == family ? 0 : 8) + (ip.family == AF_INET ? 0 : is_link_local(&ip) ? 2 : 1);
}

/* The best address of the interface that `first` stands on. */
static const tb_netif *best_address(const tb_netif *all, int n, const tb_netif *first, int family) {
  const tb_netif *best = first;
  for (int i = 0; i < n; i++)
    if (!strcmp(all[i].name, first->name) && preference(&all[i], family) < preference(best, family)) best = &all[i];
  return best;
}

static int name_matches(const char *name, const char *token, int exact) {
  return exact ? !strcmp(name, token) : !strncmp(name, token, strlen(token));
}

/* "eth,ib" in the caller's order of preference; "^docker,lo" with loopback last, because it reaches nobody else. */
static const tb_netif *by_name(const tb_netif *all, int n, char tokens[][IF_NAMESIZE], int count, int exact,
                               int exclude) {
  if (!exclude) {
    for (int t = 0; t < count; t++)
      for (int i = 0; i < n; i++)
        if (name_matches(all[i].name, tokens[t], exact)) return &all[i];
    return NULL;
  }
  for (int loopback = 0; loopback < 2; loopback++)
    for (int i = 0; i < n; i++) {
      int out = all[i].loopback != loopback;
      for (int t = 0; t < count; t++) out |= name_matches(all[i].name, tokens[t], exact);
      if (!out) return &all[i];
    }
  return NULL;
}

/* Splits the list part of a specification; the number of names, or -EINVAL. */
static int split(const char *list, char tokens[][IF_NAMESIZE], int max) {
  int count = 0;
  for (const char *p = list;; p++) {
    size_t len = strcspn(p, ",");
    if (!len || len >= IF_NAMESIZE || count == max || memchr(p, ' ', len)) return -EINVAL;
    memcpy(tokens[count], p, len);
    tokens[count++][len] = 0;
    p += len;
    if (!*p) return count;
  }
}

static const tb_netif *by_address(const tb_netif *all, int n, const ip_addr *ip) {
  for (int i = 0; i < n; i++) {
    ip_addr have = ip_of(&all[i].addr);
    if (ip_equal(&have, ip)) return &all[i];
  }
  return NULL;
}

static int choose_cidr(const char *spec, const tb_netif *all, int n, tb_netif *out, char *error, size_t len) {
  char text[SPEC_MAX], *end;
  ip_addr net;
  snprintf(text, sizeof text, "%s", spec);
  char *slash = strchr(text, '/');
  *slash = 0;
  unsigned long bits = strtoul(slash + 1, &end, 10);
  if (!ip_parse(text, &net) || end == slash + 1 || *end || slash[1] == '-' || bits > (net.family == AF_INET ? 32 : 128))
    return fail(-EINVAL, error, len, all, n, "interface \"%s\" is not a CIDR; " GRAMMAR "; this host has: ", spec);
  for (int i = 0; i < n; i++) {
    ip_addr have = ip_of(&all[i].addr);
    if (!ip_inside(&net, (unsigned)bits, &have)) continue;
    *out = all[i];
    return 0;
  }
  return fail(-ENODEV, error, len, all, n, "no interface has an address inside %s; this host has: ", spec);
}

static int choose_default(const char *route_to, const tb_netif *all, int n, tb_netif *out, char *error, size_t len) {
  struct sockaddr_storage source;
  const tb_netif *hit = NULL;
  if (route_to && *route_to && !route_source(route_to, &source)) {
    ip_addr ip = ip_of(&source);
    hit = by_address(all, n, &ip);
  }
  if (!hit) { /* no rendezvous, or no route to it: what is left is a guess, so it avoids what is never meant */
    char never[][IF_NAMESIZE] = {"docker"};
    hit = by_name(all, n, never, 1, 0, 1);
    if (hit) hit = best_address(all, n, hit, AF_UNSPEC);
  }
  if (!hit) return fail(-ENODEV, error, len, all, n, "no usable interface; this host has: ");
  *out = *hit;
  return 0;
}

static int choose(const char *spec, const char *route_to, const tb_netif *all, int n, tb_netif *out, char *error,
                  size_t len) {
  char tokens[16][IF_NAMESIZE];
  struct sockaddr_storage source;
  const tb_netif *hit;
  ip_addr ip;
  if (!spec || !*spec) return choose_default(route_to, all, n, out, error, len);
  if (strlen(spec) >= SPEC_MAX)
    return fail(-EINVAL, error, len, all, n, "the interface is %zu characters long; " GRAMMAR "; this host has: ",
                strlen(spec));
  if (strchr(spec, '/')) return choose_cidr(spec, all, n, out, error, len);
  if (ip_parse(spec, &ip)) {
    hit = by_address(all, n, &ip);
    if (!hit)
      return fail(-ENODEV, error, len, all, n, "no interface that is up has the address %s; this host has: ", spec);
    *out = *hit;
    return 0;
  }
  const char *list = spec;
  int exclude = *list == '^', exact;
  list += exclude;
  exact = *list == '=';
  list += exact;
  int count = split(list, tokens, 16);
  if (count < 0)
    return fail(count, error, len, all, n, "interface \"%s\" is malformed; " GRAMMAR "; this host has: ", spec);
  hit = by_name(all, n, tokens, count, exact, exclude);
  if (!hit)
    return fail(-ENODEV, error, len, all, n, "no interface that is up and has an address matches \"%s\"; " GRAMMAR
                "; this host has: ", spec);
  int family = route_to && *route_to && !route_source(route_to, &source) ? source.ss_family : AF_UNSPEC;
  *out = *best_address(all, n, hit, family);
  return 0;
}

int tb_netif_choose(const char *spec, const char *route_to, tb_netif *out, char *error, size_t error_len) {
  if (error && error_len) *error = 0;
  int room = tb_netif_list(NULL, 0);
  if (room < 0) {
    if (error && error_len) snprintf(error, error_len, "cannot list the interfaces: %s", strerror(-room));
    return room;
  }
  room += 16; /* some may appear between the two calls */
  tb_netif *all = calloc((size_t)room, sizeof *all);
  if (!all) return -ENOMEM;
  int n = tb_netif_list(all, room);
  int rc = n < 0 ? n : choose(spec, route_to, all, n > room ? room : n, out, error, error_len);
  free(all);
  return rc;
}
