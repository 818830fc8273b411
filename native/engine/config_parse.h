/* config_parse.h - numbers as people write them: counts, sizes, times, shares. Independent of the locale. Each returns
 * 0 or -EINVAL and then leaves *out alone; none takes a sign, spaces inside, or trailing text. */
#ifndef TB_CONFIG_PARSE_H
#define TB_CONFIG_PARSE_H
#include <stddef.h>
#include <stdint.h>

int tb_parse_count(const char *text, uint64_t *out); /* "17" */
int tb_parse_size(const char *text,
                  uint64_t *out); /* "64M", "1.5G", "64MiB": k M G T are powers of 1024; "100" = bytes */
int tb_parse_time(const char *text,
                  uint64_t *out); /* "2ms", "1.5s", "0.5": ns us ms s min h; a bare number is seconds */
int tb_parse_share(const char *text, double *out);    /* "0.5", "50%": 0 to 1 */
int tb_parse_switch(const char *text, uint64_t *out); /* on/off, true/false, yes/no, 1/0 */
int tb_parse_ports(const char *text, uint64_t *out);  /* "lo-hi" as lo << 16 | hi; one port "lo"; "0" = any = 0 */

/* The other way, in the shortest form that is read back to the same number. */
void tb_format_size(uint64_t bytes, char *out, size_t n);
void tb_format_time(uint64_t ns, char *out, size_t n);

#endif
