/* config.h - every option of the core in one table: name, environment variables, default, limits, unit and why.
 * Options that the protocol uses are uint64 fields of tb_tunables (protocol/tunables.h); the rest stand in
 * engine/config_table.c. An option is taken from tb_config_set, else TAILBOUND_<NAME>, else the launchers' variables
 * in the order of its row, else its default. A variable that is set but empty counts as not set. */
#ifndef TB_CONFIG_H
#define TB_CONFIG_H
#include "protocol/tunables.h"
#include "tailbound.h"

const tb_tunables *tb_config_tunables(const tb_config *cfg);
const char *tb_config_str(const tb_config *cfg, const char *name); /* never NULL for a name in the table */
/* Parsed: whole numbers, sizes in bytes, times in ns, switches 0/1, a choice's place in its list, the stderr level as
 * in engine/logring.h, port_range as lo << 16 | hi, deadline as 0 = auto, UINT64_MAX = exact, else ns. 0 for text. */
uint64_t tb_config_u64(const tb_config *cfg, const char *name);
double tb_config_share(const tb_config *cfg, const char *name); /* options between 0 and 1, such as min_received */
tb_config *tb_config_dup(const tb_config *cfg);
int tb_config_cancelled(const tb_config *cfg); /* tb_init_cancel was called */
struct tb_logring;
void tb_config_log(const tb_config *cfg, struct tb_logring *log); /* what tb_init_log_next reads from now on */

/* What one option alone cannot tell: rank below size, a rank and size that belong together, lower limits below upper
 * ones, an address where ranks are on several hosts. -EINVAL with tb_last_error() set. */
int tb_config_check(const tb_config *cfg);
/* Job name and restart count as one name, so that frames of a job before its restart are strangers. n >= 300. */
void tb_config_job(const tb_config *cfg, char *out, size_t n);
/* One TAILBOUND_ variable of the environment that is no option (a slip of the pen), as a sentence: 1, or 0 = none. */
int tb_config_stranger(char *out, size_t n);

#endif
