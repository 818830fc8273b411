/* peer.c - addresses of peers and our own. Control path. */
#include "plugins/verbs/verbs.h"
#include "ether/bytes.h"
#include "links/peer_addr.h"
#include "links/peer_table.h"
#include <errno.h>
#include <string.h>

enum { VERSION = 1, UD = 0, LENGTH = 32, AT_QPN = 4, AT_QKEY = 8, AT_LID = 12, AT_MTU = 14, AT_GID = 16 };

int verbs_local_addr(const tb_link *link, tb_addr *out) {
  const verbs_link *l = verbs_of_const(link);
  uint8_t *p = out->bytes;
  memset(p, 0, LENGTH);
  p[0] = TB_ADDRESS_VERBS;
  p[1] = VERSION;
  p[2] = UD;
  p[3] = l->at.ethernet;
  tb_put32(p + AT_QPN, l->qp->qp_num);
  tb_put32(p + AT_QKEY, l->qkey);
  tb_put16(p + AT_LID, l->lid);
  tb_put16(p + AT_MTU, l->caps.mtu);
  memcpy(p + AT_GID, l->gid, 16);
  out->len = LENGTH;
  return 0;
}

static int parse(const verbs_link *l, const tb_addr *addr, verbs_peer *out) {
  static const uint8_t none[16];
  const uint8_t *p = addr->bytes;
  if (addr->len != LENGTH || p[0] != TB_ADDRESS_VERBS || p[1] != VERSION || p[2] != UD || p[3] > 1) return -EINVAL;
  *out = (verbs_peer){.qpn = tb_get32(p + AT_QPN), .qkey = tb_get32(p + AT_QKEY), .lid = tb_get16(p + AT_LID)};
  memcpy(out->gid, p + AT_GID, 16);
  if (!out->qpn || out->qpn > 0xffffff || out->qkey >> 31 || !memcmp(out->gid, none, 16)) return -EINVAL;
  if (p[3] != l->at.ethernet || (p[3] && verbs_gid_is_v4(out->gid) != verbs_gid_is_v4(l->gid))) return -EAFNOSUPPORT;
  return 0;
}

static int grow(verbs_link *l, uint32_t peer) {
  int rc;
  verbs_peer *table = tb_peer_room(l->peers, &l->peers_cap, sizeof *table, peer, VERBS_PEERS_MAX, &rc);
  if (table) l->peers = table;
  return rc;
}

/* Adds a peer or gives a known one a new address. */
int verbs_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr) {
  verbs_link *l = verbs_of(link);
  verbs_peer p;
  int rc = parse(l, addr, &p);
  if (rc == -EAFNOSUPPORT)
    verbs_event(l, 40, "verbs: rank %u has no address of this kind (RoCE over IPv4, RoCE over IPv6, InfiniBand): set "
                "TAILBOUND_IP on each rank to one of the same network", peer);
  if (rc || (rc = grow(l, peer))) return rc;
  verbs_where where = {.lid = p.lid};
  memcpy(where.gid, p.gid, sizeof where.gid);
  p.route = verbs_route_want(l, &where);
  if (!p.route) return -ENOMEM;
  l->peers[peer] = p;
  return 0;
}

int verbs_peer_set(tb_link *link, uint32_t peer, const tb_addr *addr) {
  const verbs_link *l = verbs_of_const(link);
  if (peer >= l->peers_cap || !l->peers[peer].route) return -ENOENT;
  return verbs_peer_add(link, peer, addr);
}

/* The route stays: other peers may be there, and frames under way may need its handle. */
int verbs_peer_del(tb_link *link, uint32_t peer) {
  verbs_link *l = verbs_of(link);
  if (peer >= l->peers_cap || !l->peers[peer].route) return -ENOENT;
  l->peers[peer] = (verbs_peer){0};
  return 0;
}

int verbs_peer_state(const tb_link *link, uint32_t peer) {
  const verbs_link *l = verbs_of_const(link);
  if (peer >= l->peers_cap || !l->peers[peer].route) return -ENOENT;
  const verbs_route *r = l->peers[peer].route;
  return r->ah ? 0 : atomic_load(&((verbs_route *)r)->state);
}
