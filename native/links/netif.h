/* netif.h - which local address a link binds to and tells the peers: NCCL's interface grammar, an IP, or a CIDR. */
#ifndef TB_NETIF_H
#define TB_NETIF_H
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct {
  char name[IF_NAMESIZE];
  struct sockaddr_storage addr; /* port 0; IPv6 link-local keeps its scope */
  uint32_t mtu;
  int loopback;
} tb_netif;

/* spec: "" or NULL: the source address of the route to `route_to` (else the first interface that is up and neither
 * loopback nor docker); "eth,ib": name prefixes; "=eth0": exact; "^docker,lo": all but these prefixes; "^=docker0";
 * "10.0.0.5", "fe80::1%eth0": that address; "10.0.0.0/8": an address inside. No match: -ENODEV and *error lists the
 * interfaces with their addresses. */
int tb_netif_choose(const char *spec, const char *route_to, tb_netif *out, char *error, size_t error_len);
int tb_netif_list(tb_netif *out, int n); /* number found (may exceed n) */
#endif
