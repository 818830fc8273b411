/* bytes.h - numbers in bytes that travel, the highest byte first, wherever they lie. */
#ifndef TB_BYTES_H
#define TB_BYTES_H
#include <stdint.h>

static inline void tb_put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8), p[1] = (uint8_t)v; }
static inline void tb_put32(uint8_t *p, uint32_t v) { tb_put16(p, v >> 16), tb_put16(p + 2, v & 0xffff); }
static inline void tb_put64(uint8_t *p, uint64_t v) { tb_put32(p, (uint32_t)(v >> 32)), tb_put32(p + 4, (uint32_t)v); }
static inline uint16_t tb_get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t tb_get32(const uint8_t *p) { return (uint32_t)tb_get16(p) << 16 | tb_get16(p + 2); }
static inline uint64_t tb_get64(const uint8_t *p) { return (uint64_t)tb_get32(p) << 32 | tb_get32(p + 4); }

#endif
