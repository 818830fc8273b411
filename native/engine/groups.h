/* groups.h - which ranks form the groups of a hierarchy (option `groups`). */
#ifndef TB_GROUPS_H
#define TB_GROUPS_H
#include "engine/comm.h"

/* What init has learnt of a rank: where it is, and which one it is there. */
typedef struct { char host[40]; uint32_t local_rank; } tb_seat;

/* group_of[n]. seats NULL: not known (a simulated world has no hosts). 1: there are groups; 0: none are wanted, or
 * with "auto" there are none to be had; why[len] then says so, or is empty. -EINVAL: why[len] says what is wrong. */
int tb_groups_read(const char *text, uint32_t n, const tb_seat *seats, uint16_t *group_of, char *why, size_t len);
/* By the communicator's option, before its first operation. -EINVAL with tb_last_error() set. */
int tb_groups_set(tb_comm *c, const tb_seat *seats);

#endif
