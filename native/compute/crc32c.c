/* crc32c.c - the Castagnoli check sum (RFC 3720), with the processor's instruction or with eight tables.
 *
 * The instruction takes three cycles and can start every cycle, so long inputs are cut into three lanes that run side
 * by side. Lanes are joined by linearity: appending zero bytes to a state multiplies it by a power of x modulo the
 * polynomial. That is one carry-less multiplication, whose 64 bits the instruction itself reduces (it multiplies by
 * x^32, and a product of two bit-reversed numbers lacks one more x: hence the 33 below). Elsewhere four tables of 256
 * words do it, one for each byte of the state. Lanes have three lengths, so that nearly all of a payload of any size is
 * done three at a time.
 */
#include "compute/crc32c.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bit-reversed */
enum { LENGTHS = 3 };

/* Bytes of a lane: 1360 for frames of 4 KiB and more, 464 for those of Ethernet. */
static const size_t lane[LENGTHS] = {1360, 464, 40};
static uint32_t slice[8][256]; /* slice[k][b]: byte b followed by k zero bytes */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static uint64_t load_le64(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  v = __builtin_bswap64(v);
#endif
  return v;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#define TB_HAVE_INSTRUCTION 1
#define TB_TARGET __attribute__((target("sse4.2,pclmul")))
#define STEP8(crc, v) ((uint32_t)_mm_crc32_u64((crc), (v)))
#define STEP1(crc, b) _mm_crc32_u8((crc), (b))
static bool have_instruction(void) {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static uint32_t joint[LENGTHS][2]; /* x^n, for a lane's bits and for those of two */

static uint32_t power_of_x(size_t n) {
  uint32_t v = 0x80000000u; /* x^0, bit-reversed */
  while (n--) v = v & 1 ? v >> 1 ^ POLYNOMIAL : v >> 1;
  return v;
}

static void make_joints(void) {
  for (int k = 0; k < LENGTHS; k++)
    for (int lanes = 1; lanes <= 2; lanes++) joint[k][lanes - 1] = power_of_x(8 * lane[k] * (size_t)lanes - 33);
}

static inline TB_TARGET uint32_t join(int k, uint32_t first, uint32_t second, uint32_t third) {
  __m128i a = _mm_clmulepi64_si128(_mm_cvtsi64_si128(first), _mm_cvtsi64_si128(joint[k][1]), 0);
  __m128i b = _mm_clmulepi64_si128(_mm_cvtsi64_si128(second), _mm_cvtsi64_si128(joint[k][0]), 0);
  return STEP8(0, (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(a, b))) ^ third;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define TB_HAVE_INSTRUCTION 1
#if defined(__clang__)
#define TB_TARGET __attribute__((target("crc")))
#else
#define TB_TARGET __attribute__((target("+crc")))
#endif
/* The builtin of the instruction itself: <arm_acle.h> of older compilers offers it only to whole files built for it. */
#if defined(__clang__)
#define STEP8(crc, v) __builtin_arm_crc32cd((crc), (v))
#define STEP1(crc, b) __builtin_arm_crc32cb((crc), (b))
#else
#define STEP8(crc, v) __builtin_aarch64_crc32cx((crc), (v))
#define STEP1(crc, b) __builtin_aarch64_crc32cb((crc), (b))
#endif
static bool have_instruction(void) {
  return getauxval(AT_HWCAP) & 1u << 7; /* HWCAP_CRC32 */
}

static uint32_t over_lane[LENGTHS][4][256];

static void make_joints(void) {
  for (int i = 0; i < LENGTHS * 4 * 256; i++) {
    uint32_t crc = (uint32_t)(i & 255) << (i >> 8 & 3) * 8;
    for (size_t zero = 0; zero < lane[i >> 10]; zero++) crc = (crc >> 8) ^ slice[0][crc & 0xff];
    over_lane[i >> 10][i >> 8 & 3][i & 255] = crc;
  }
}

static inline uint32_t skip_lane(int k, uint32_t crc) {
  return over_lane[k][0][crc & 0xff] ^ over_lane[k][1][crc >> 8 & 0xff] ^ over_lane[k][2][crc >> 16 & 0xff] ^
         over_lane[k][3][crc >> 24];
}

static inline uint32_t join(int k, uint32_t first, uint32_t second, uint32_t third) {
  return skip_lane(k, skip_lane(k, first) ^ second) ^ third;
}
#else
static void make_joints(void) {}
#endif

static void make_tables(void) {
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
    slice[0][b] = crc;
  }
  for (int k = 1; k < 8; k++)
    for (int b = 0; b < 256; b++) slice[k][b] = (slice[k - 1][b] >> 8) ^ slice[0][slice[k - 1][b] & 0xff];
  make_joints();
}

static uint32_t by_table(uint32_t seed, const void *data, size_t n) {
  const uint8_t *p = data;
  uint32_t crc = ~seed;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t v = load_le64(p);
    uint32_t low = (uint32_t)v ^ crc, high = (uint32_t)(v >> 32);
    /* What does not wait for the previous step stands apart, to be done meanwhile. */
    uint32_t ready = slice[3][high & 0xff] ^ slice[2][high >> 8 & 0xff] ^ slice[1][high >> 16 & 0xff] ^
                     slice[0][high >> 24];
    crc = (slice[7][low & 0xff] ^ slice[6][low >> 8 & 0xff]) ^ (slice[5][low >> 16 & 0xff] ^ slice[4][low >> 24]) ^
          ready;
  }
  for (; n; n--) crc = (crc >> 8) ^ slice[0][(crc ^ *p++) & 0xff];
  return ~crc;
}

#if TB_HAVE_INSTRUCTION
static TB_TARGET uint32_t by_hardware(uint32_t seed, const void *data, size_t n) {
  const uint8_t *p = data;
  uint32_t crc = ~seed;
  for (int k = 0; k < LENGTHS; k++) {
    const size_t step = lane[k];
    for (; n >= 3 * step; n -= 3 * step, p += 3 * step) {
      uint32_t second = 0, third = 0;
      for (size_t i = 0; i < step; i += 8) {
        crc = STEP8(crc, load_le64(p + i));
        second = STEP8(second, load_le64(p + step + i));
        third = STEP8(third, load_le64(p + 2 * step + i));
      }
      crc = join(k, crc, second, third);
    }
  }
  for (; n >= 8; n -= 8, p += 8) crc = STEP8(crc, load_le64(p));
  for (; n; n--) crc = STEP1(crc, *p++);
  return ~crc;
}
#endif

tb_crc32c_fn *tb_crc32c_by_table(void) {
  pthread_once(&tables_once, make_tables);
  return by_table;
}

tb_crc32c_fn *tb_crc32c_by_hardware(void) {
#if TB_HAVE_INSTRUCTION
  pthread_once(&tables_once, make_tables);
  return have_instruction() ? by_hardware : NULL;
#else
  return NULL;
#endif
}

/* The pointer starts at the function that finds the right one, so that later calls pay one load. Release and acquire:
 * a thread that sees the pointer must see the tables. */
static uint32_t choose(uint32_t seed, const void *data, size_t n);
static _Atomic(tb_crc32c_fn *) chosen = choose;

static uint32_t choose(uint32_t seed, const void *data, size_t n) {
  tb_crc32c_fn *best = tb_crc32c_by_hardware();
  if (!best) best = tb_crc32c_by_table();
  atomic_store_explicit(&chosen, best, memory_order_release);
  return best(seed, data, n);
}

uint32_t tb_crc32c(uint32_t seed, const void *data, size_t n) {
  return atomic_load_explicit(&chosen, memory_order_acquire)(seed, data, n);
}
