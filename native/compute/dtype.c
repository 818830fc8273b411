/* dtype.c - what is known about each element type and each operation. Indexed by the numbers on the wire. */
#include "compute/compute.h"

static const struct {
  const char *name;
  uint8_t size, acc_size;
  bool is_float;
} dtypes[TB_DTYPES] = {
  [TB_F32] = {"float32", 4, 4, true},     [TB_F64] = {"float64", 8, 8, true},
  [TB_F16] = {"float16", 2, 4, true},     [TB_BF16] = {"bfloat16", 2, 4, true},
  [TB_I8] = {"int8", 1, 1, false},        [TB_U8] = {"uint8", 1, 1, false},
  [TB_I16] = {"int16", 2, 2, false},      [TB_U16] = {"uint16", 2, 2, false},
  [TB_I32] = {"int32", 4, 4, false},      [TB_U32] = {"uint32", 4, 4, false},
  [TB_I64] = {"int64", 8, 8, false},      [TB_U64] = {"uint64", 8, 8, false},
};

static const char *const redops[TB_REDOPS] = {
  [TB_SUM] = "sum", [TB_AVG] = "avg", [TB_MIN] = "min", [TB_MAX] = "max", [TB_PROD] = "prod",
};

/* Types come out of frames and out of other languages: any integer may stand in the enum. */
static bool known(tb_dtype t) { return (unsigned)t < TB_DTYPES; }

size_t tb_dtype_size(tb_dtype t) { return known(t) ? dtypes[t].size : 0; }
size_t tb_acc_size(tb_dtype t) { return known(t) ? dtypes[t].acc_size : 0; }
const char *tb_dtype_name(tb_dtype t) { return known(t) ? dtypes[t].name : "unknown"; }
const char *tb_redop_name(tb_redop op) { return (unsigned)op < TB_REDOPS ? redops[op] : "unknown"; }
bool tb_dtype_is_float(tb_dtype t) { return known(t) && dtypes[t].is_float; }
