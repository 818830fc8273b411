/* config_parse.c - counts, sizes, times and shares from text and back. */
#include "engine/config_parse.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A decimal number, maybe with fraction and exponent; *end is behind it. Not strtod: that one obeys the locale's
 * decimal comma and takes "nan" and hexadecimal. long double holds every uint64 exactly on the machines that matter,
 * and the nearest one elsewhere. */
static int decimal(const char *text, const char **end, long double *out) {
  const char *p = text;
  long double value = 0, scale = 1;
  int digits = 0;
  for (; isdigit((unsigned char)*p); p++, digits++) value = value * 10 + (*p - '0');
  if (*p == '.')
    for (p++; isdigit((unsigned char)*p); p++, digits++) value = value * 10 + (*p - '0'), scale *= 10;
  if (digits == 0 || digits > 40) return -EINVAL;
  if ((*p == 'e' || *p == 'E') &&
      (isdigit((unsigned char)p[1]) || ((p[1] == '-' || p[1] == '+') && isdigit((unsigned char)p[2])))) {
    int negative = p[1] == '-', exponent = 0;
    for (p += negative || p[1] == '+' ? 2 : 1; isdigit((unsigned char)*p) && exponent < 1000; p++)
      exponent = exponent * 10 + (*p - '0');
    if (exponent > 40) return -EINVAL;
    while (exponent--) {
      if (negative)
        scale *= 10;
      else
        value *= 10;
    }
  }
  *out = value / scale;
  *end = p;
  return 0;
}

static int to_u64(long double value, uint64_t *out) {
  if (!(value >= 0) || value >= 18446744073709551615.0L) return -EINVAL;
  *out = (uint64_t)(value + 0.5L);
  return 0;
}

typedef struct {
  const char *suffix;
  long double factor;
} unit;

static int with_unit(const char *text, const unit *units, uint64_t *out) {
  const char *end;
  long double value;
  if (decimal(text, &end, &value)) return -EINVAL;
  for (const unit *u = units; u->suffix; u++)
    if (strcmp(end, u->suffix) == 0) return to_u64(value * u->factor, out);
  return -EINVAL;
}

static const unit sizes[] = {{"", 1},
                             {"B", 1},
                             {"k", 1024},
                             {"K", 1024},
                             {"kB", 1024},
                             {"KB", 1024},
                             {"KiB", 1024},
                             {"M", 1048576},
                             {"m", 1048576},
                             {"MB", 1048576},
                             {"MiB", 1048576},
                             {"G", 1073741824},
                             {"g", 1073741824},
                             {"GB", 1073741824},
                             {"GiB", 1073741824},
                             {"T", 1099511627776},
                             {"t", 1099511627776},
                             {"TB", 1099511627776},
                             {"TiB", 1099511627776},
                             {NULL, 0}};

static const unit times[] = {{"", 1e9L},  {"ns", 1},      {"us", 1e3L},   {"ms", 1e6L},
                             {"s", 1e9L}, {"min", 6e10L}, {"h", 3.6e12L}, {NULL, 0}};

int tb_parse_count(const char *text, uint64_t *out) {
  uint64_t value = 0;
  if (!*text) return -EINVAL;
  for (; *text; text++) {
    if (!isdigit((unsigned char)*text)) return -EINVAL;
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
      return -EINVAL;
  }
  *out = value;
  return 0;
}

int tb_parse_size(const char *text, uint64_t *out) { return with_unit(text, sizes, out); }

int tb_parse_time(const char *text, uint64_t *out) { return with_unit(text, times, out); }

int tb_parse_share(const char *text, double *out) {
  const char *end;
  long double value;
  if (decimal(text, &end, &value)) return -EINVAL;
  if (strcmp(end, "%") == 0)
    value /= 100;
  else if (*end)
    return -EINVAL;
  if (value > 1) return -EINVAL;
  *out = (double)value;
  return 0;
}

int tb_parse_switch(const char *text, uint64_t *out) {
  static const char *const words[] = {"off", "on", "false", "true", "no", "yes", "0", "1"};
  for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
    if (strcasecmp(text, words[i]) == 0) {
      *out = i & 1;
      return 0;
    }
  return -EINVAL;
}

int tb_parse_ports(const char *text, uint64_t *out) {
  char first[8];
  uint64_t lo, hi;
  const char *dash = strchr(text, '-');
  size_t length = dash ? (size_t)(dash - text) : strlen(text);
  if (length >= sizeof first) return -EINVAL;
  memcpy(first, text, length);
  first[length] = 0;
  if (tb_parse_count(first, &lo)) return -EINVAL;
  if (!dash && lo == 0) {
    *out = 0;
    return 0;
  }
  hi = lo;
  if (dash && tb_parse_count(dash + 1, &hi)) return -EINVAL;
  if (lo < 1 || hi > 65535 || lo > hi) return -EINVAL;
  *out = lo << 16 | hi;
  return 0;
}

void tb_format_size(uint64_t bytes, char *out, size_t n) {
  static const char suffix[][2] = {"", "k", "M", "G", "T"};
  unsigned i = 0;
  while (i < 4 && bytes && bytes % 1024 == 0) bytes /= 1024, i++;
  snprintf(out, n, "%" PRIu64 "%s", bytes, suffix[i]);
}

void tb_format_time(uint64_t ns, char *out, size_t n) {
  static const char suffix[][3] = {"ns", "us", "ms", "s"};
  unsigned i = 0;
  while (i < 3 && ns % 1000 == 0) ns /= 1000, i++;
  snprintf(out, n, "%" PRIu64 "%s", ns, suffix[i]);
}
