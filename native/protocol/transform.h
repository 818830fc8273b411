/* transform.h - the Hadamard transform of one operation: its plan, and what is asked of it after the end. */
#ifndef TB_TRANSFORM_H
#define TB_TRANSFORM_H
#include "compute/hadamard.h"
#include "protocol/store.h"

enum { TB_HADAMARD_AUTO = 0x80 }; /* in a signature, beside the length of blocks: by what is lost */

typedef struct tb_transform {
  tb_hadamard plan;
  uint32_t round;      /* the signs are this round's */
  bool done, ended;    /* the input was transformed; `missing` is known */
  uint8_t *coefficients; /* between the end and tb_core_inverted: what the inverse turns into `out` */
  size_t bytes;
  tb_dtype dtype;
  void *out;
  tb_store late;         /* values of earlier rounds, which are added to it */
  uint32_t missing[];  /* for each block: coefficients that did not come */
} tb_transform;

bool tb_transform_valid(const tb_signature *s); /* none, or one that this kind of operation can have */
/* Overwrites a mask of coefficients by the mask of elements: there where anything of their block is. */
void tb_transform_mask(const tb_transform *t, uint8_t *mask);

#endif
