/* fault_spec.h - the clauses of a fault specification, parsed. */
#ifndef TB_FAULT_SPEC_H
#define TB_FAULT_SPEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TB_FAULT_CLAUSES = 16 };

typedef struct {
  double drop, dup, delay, reorder, corrupt; /* probabilities */
  uint64_t delay_ns, reorder_ns;
  int rank, peer, type; /* -1 = any */
  bool tx;
  bool acts; /* an action was given, be its probability 0 */
  uint64_t after, count, seed;
  uint64_t seen, acted, random; /* state */
} tb_fault_clause;

typedef struct {
  tb_fault_clause clause[TB_FAULT_CLAUSES];
  uint32_t clauses;
} tb_fault_spec;

/* Keeps the clauses that act on `rank`; rank -1 keeps all. */
int tb_fault_spec_parse(const char *text, int rank, tb_fault_spec *out, char *error, size_t error_len);
void tb_fault_spec_describe(const tb_fault_spec *spec, int rank, char *out, size_t n);

#endif
