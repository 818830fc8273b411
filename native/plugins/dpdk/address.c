/* address.c - our addresses: the options `ip`, `gateway` and `advertise`, told to be wrong before a device is
 * touched, and what the device's MAC adds where nobody gave any. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>

#define REFUSE(cfg, rc, ...) dpdk_refuse((cfg)->error, (cfg)->error_len, rc, __VA_ARGS__)

static bool given(const char *text) { return text && *text; }

/* An address alone, without the length of a network. */
static int parse_one(const char *text, tb_ip *out) {
  uint32_t bits;
  return strchr(text, '/') ? -EINVAL : tb_ip_parse(text, out, &bits);
}

static const char *family(const dpdk_link *l) { return tb_ip_is4(&l->self.ip) ? "IPv4" : "IPv6"; }

static bool reached_directly(const dpdk_link *l, const tb_ip *ip) {
  uint32_t alone = TB_IP_BITS; /* /32 and /128: clouds give them, and reach the gateway all the same */
  return l->self.bits == alone || tb_ip_within(ip, &l->self.ip, l->self.bits) || tb_ip6_link_local(ip);
}

static int choose_gateway(dpdk_link *l, const tb_link_cfg *cfg) {
  if (parse_one(cfg->gateway, &l->gateway) || tb_ip_is4(&l->gateway) != tb_ip_is4(&l->self.ip))
    return REFUSE(cfg, -EINVAL, "dpdk: \"%s\" cannot be a gateway: set TAILBOUND_GATEWAY to its %s address",
                  cfg->gateway, family(l));
  if (!reached_directly(l, &l->gateway))
    return REFUSE(cfg, -EINVAL, "dpdk: the gateway %s is not in the network of %s: it must be reached directly",
                  cfg->gateway, given(cfg->ip) ? cfg->ip : "our link-local address (give TAILBOUND_IP)");
  l->has_gateway = true;
  return 0;
}

/* Without an address the network is known, and of the address that it is in there. */
int dpdk_address_choose(dpdk_link *l, const tb_link_cfg *cfg) {
  static const tb_mac any = {{2, 0, 0, 0, 0, 0}};
  l->self.ip = tb_ip_link_local(&any);
  l->self.bits = TB_IP4_BITS + 16;
  if (given(cfg->ip) && tb_ip_parse(cfg->ip, &l->self.ip, &l->self.bits))
    return REFUSE(cfg, -EINVAL, "dpdk: \"%s\" cannot be this rank's address: set TAILBOUND_IP to one of its own and "
                  "its network, for example 10.0.0.5/24 or fd00::5/64", cfg->ip);
  int rc = given(cfg->gateway) ? choose_gateway(l, cfg) : 0;
  if (rc) return rc;
  l->advertise = l->self.ip;
  if (given(cfg->advertise) &&
      (parse_one(cfg->advertise, &l->advertise) || tb_ip_is4(&l->advertise) != tb_ip_is4(&l->self.ip)))
    return REFUSE(cfg, -EINVAL, "dpdk: cannot advertise \"%s\": give the numeric %s address under which peers reach us",
                  cfg->advertise, family(l));
  return 0;
}

void dpdk_address_from_mac(dpdk_link *l, const tb_link_cfg *cfg) {
  if (!given(cfg->ip)) l->self.ip = tb_ip_link_local(&l->self.mac);
  if (!given(cfg->advertise)) l->advertise = l->self.ip;
}
