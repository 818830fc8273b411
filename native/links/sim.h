/* sim.h - the simulated network: N endpoints in one process under virtual time. Only its owner (engine/world.c, tests)
 * moves the time; an endpoint is opened through tb_link_sim with tb_link_cfg.context = &(tb_sim_port){net, endpoint}.
 *
 * A frame leaves through its source's egress (a serialiser at `rate`, back pressure: tx_burst takes no more than
 * `tx_ring` waiting frames), crosses the wire (`delay` + jitter, loss, blackhole, duplicate, corrupt, truncate,
 * reorder), waits in the destination port's drop-tail queue (`queue` bytes, drained at `rate`), then in the endpoint's
 * receive ring (`rx_buffer` bytes) until rx_burst. A REF payload is read at its *departure* time (its last bit has
 * left), never earlier. Nothing moves but in tb_sim_run_until: tx_burst only puts frames down, so tb_sim_next may equal
 * tb_sim_now.
 */
#ifndef TB_SIM_H
#define TB_SIM_H
#include "link.h"
#include "tailbound.h"

typedef struct tb_sim tb_sim;
typedef struct { tb_sim *net; uint32_t endpoint; } tb_sim_port;

/* options: "name=value" separated by commas, spaces or semicolons; unknown names and bad values are -EINVAL with *error
 * set and nothing changed. Units and defaults: docs/links.md.
 * Global, at creation only: seed, log (0/1), poison (0/1: overwrite leases when they are released), mtu, tx_ring,
 *   rx_buffer, ref (none|sync|prompt), reap_delay (time a completion comes after the departure, or never), csum (0/1)
 * Per direction (src -> dst), also settable later: rate (bit/s, suffix k M G; 0 = infinite), queue (bytes, k M),
 *   delay (ns us ms s), jitter (uniform 0..j), tail_p and tail (with probability p an extra exponential delay of mean
 *   `tail`), loss (0..1), ge_p ge_r ge_loss (Gilbert-Elliott: good->bad, bad->good per frame, loss in bad), dup,
 *   corrupt, truncate, reorder (probability of an extra delay of `reorder_by`), reorder_by, blackhole (0/1)
 * Per endpoint, by tb_sim_set(src, -1) only:
 *   bg_rate, bg_on, bg_off: background at its port, anew from now on; bg_rate=0 ends it
 *   pause=<time>: the process is stopped until that absolute virtual time (or for ever: never). It is not readable and
 *   its ring fills, while what it had handed to its egress still leaves. pause=0 resumes. */
int tb_sim_new(uint32_t n, const char *options, tb_sim **out, char *error, size_t error_len);
void tb_sim_free(tb_sim *net); /* close the endpoints first */
int tb_sim_set(tb_sim *net, int src, int dst, const char *options, char *error, size_t error_len); /* -1 = all */

uint64_t tb_sim_now(const tb_sim *net);
/* of the smallest frame, there and back, with nothing else about */
uint64_t tb_sim_trip(const tb_sim *net, uint32_t a, uint32_t b);
uint64_t tb_sim_next(const tb_sim *net);            /* time of the next event inside the network, UINT64_MAX = none */
void tb_sim_run_until(tb_sim *net, uint64_t t);     /* processes events up to and including t; now becomes t */
/* Not paused, and frames wait in its receive ring or there is news: room after a tx_burst that left some frames for
 * want of it (told at half a ring), or completions (told every 32, and when none is outstanding). News of room ends
 * with tx_burst, of completions with tx_reap, both with wait or rx_release. */
bool tb_sim_readable(const tb_sim *net, uint32_t endpoint);
bool tb_sim_paused(const tb_sim *net, uint32_t endpoint);
/* Takes one of the endpoints at which something came, or that were paused or resumed, since it was last taken; false =
 * none left. So the owner of many need not ask each. */
bool tb_sim_stirred(tb_sim *net, uint32_t *endpoint);
/* Copies up to n lines from line `from` on, in the order in which fates became known. The number copied, or -ENOMEM
 * when the log had to be given up. */
int64_t tb_sim_log_read(const tb_sim *net, uint64_t from, tb_sim_log *out, uint64_t n);

#endif
