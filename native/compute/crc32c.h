/* crc32c.h - both ways to compute it, side by side for the test. Private to compute/ and its test. */
#ifndef TB_COMPUTE_CRC32C_H
#define TB_COMPUTE_CRC32C_H
#include "compute/compute.h"

typedef uint32_t tb_crc32c_fn(uint32_t seed, const void *data, size_t n);

tb_crc32c_fn *tb_crc32c_by_table(void);
tb_crc32c_fn *tb_crc32c_by_hardware(void); /* NULL when the processor has no such instruction */

#endif
