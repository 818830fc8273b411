/* peer_table.h - a link's peers by number, in a table that grows; and which of a peer's ports is ours. */
#ifndef TB_PEER_TABLE_H
#define TB_PEER_TABLE_H
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Room for entry `peer`, of `size` bytes, in a table of *cap; new ones are zero. The table, moved perhaps; NULL and *rc:
 * -EINVAL beyond `most`, -ENOMEM; it is as it was then. */
static inline void *tb_peer_room(void *table, uint32_t *cap, size_t size, uint32_t peer, uint32_t most, int *rc) {
  *rc = 0;
  if (peer < *cap) return table;
  *rc = peer < most ? -ENOMEM : -EINVAL;
  if (peer >= most) return NULL;
  uint32_t wanted = *cap ? *cap : 16;
  while (wanted <= peer) wanted *= 2;
  char *bigger = realloc(table, wanted * size);
  if (!bigger) return NULL;
  memset(bigger + *cap * size, 0, (wanted - *cap) * size);
  *cap = wanted;
  *rc = 0;
  return bigger;
}

/* All of ours goes to one port of its, from all of our ports: so its senders spread evenly over its buffers. At random they
 * would meet in one of them now and then, and overflow what all of them together could hold. peers: 0 = not known. */
static inline uint32_t tb_peer_port(uint32_t self, uint32_t peer, uint32_t peers, uint32_t ports) {
  return peers > self && peers > peer ? (self + peers - peer - 1) % peers % ports : 0;
}

#endif
