/* early.h - data frames that overtook their OPEN (flows reorder), copied and given to the core again for a short while.
 * Bounded: beyond its frames or its age the data counts as lost, and its sender repeats it. */
#ifndef TB_EARLY_H
#define TB_EARLY_H
#include <stdint.h>
#include "protocol/protocol.h"

typedef struct tb_early tb_early;
int tb_early_new(uint32_t frame_bytes, tb_early **out);
void tb_early_free(tb_early *e);
void tb_early_put(tb_early *e, tb_core *c, const uint8_t *frame, uint32_t len, uint64_t now);
void tb_early_retry(tb_early *e, tb_core *c, uint64_t now); /* after each pass */
uint64_t tb_early_next(const tb_early *e);                  /* when the oldest is given up; UINT64_MAX = none held */

#endif
