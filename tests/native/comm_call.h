/* comm_call.h - what tests of whole communicators share: a call, and a counter by its name. */
#ifndef COMM_CALL_H
#define COMM_CALL_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "tailbound.h"

static inline tb_call all_reduce(const char *key, const float *in, float *out, uint64_t count, uint64_t deadline) {
  return (tb_call){.struct_size = sizeof(tb_call), .kind = TB_ALL_REDUCE, .dtype = TB_F32, .redop = TB_SUM,
                   .count = count,
                   .in = in, .out = out, .key = key, .key_len = (uint32_t)strlen(key), .deadline_ns = deadline};
}

static inline uint64_t counter(tb_comm *c, int peer, const char *name) {
  uint64_t v[128];
  const char *at;
  assert_int_equal(tb_counters(c, peer, v, 128), 0);
  for (uint32_t i = 0; (at = tb_counter_name(peer >= 0, i)); i++)
    if (!strcmp(at, name)) return v[i];
  fail_msg("there is no counter %s", name);
  return 0;
}

#endif
