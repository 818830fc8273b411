/* hello.h - what a rank tells the others when it comes, and whether all that was told fits together. */
#ifndef TB_HELLO_H
#define TB_HELLO_H
#include "links/link.h"

/* Fixed layout, little-endian hosts only (checked by `order`). */
typedef struct {
  uint32_t order, mtu, rx_overhead, job;
  uint32_t groups, local_rank; /* a check of the option; by the launcher */
  uint64_t rx_buffer, nonce;
  char version[16], host[40];
  uint8_t loopback, csum;
  tb_addr addr;
  int32_t error;               /* 0, or it has no link and only says why: the rest counts for nothing */
  char why[400];
} tb_hello;

/* The same comparison on every rank, so that all give the same reason. *mtu: the least of all. */
int tb_hellos_check(const tb_hello *all, uint32_t n, uint32_t *mtu);
#endif
