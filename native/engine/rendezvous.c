/* rendezvous.c - the public face of the rendezvous; rank 0's part is in rendezvous_root.c and rendezvous_gather.c, the
 * others' in rendezvous_leaf.c. */
#include "engine/rendezvous_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t tb_rendezvous_nonce(void) {
  uint64_t n;
  return getrandom(&n, sizeof n, GRND_NONBLOCK) == sizeof n ? n : tb_rv_now() ^ (uint64_t)getpid() << 40;
}

static tb_rendezvous *make(int rank, int size, const char *job) {
  int conns = rank == 0 ? size : 1;
  tb_rendezvous *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->peer = calloc((size_t)conns, sizeof *r->peer);
  r->polls = calloc((size_t)conns, sizeof *r->polls);
  if (!r->peer || !r->polls) {
    free(r->peer);
    free(r->polls);
    free(r);
    return NULL;
  }
  r->rank = rank;
  r->size = size;
  for (int i = 0; i < conns; i++) r->peer[i].fd = -1;
  snprintf(r->job, sizeof r->job, "%s", job);
  r->nonce = tb_rendezvous_nonce();
  return r;
}

int tb_rendezvous_open(const char *addr, uint16_t port, int rank, int size, const char *job, uint64_t deadline_ns,
                       tb_rendezvous **out, char *error, size_t error_len) {
  char host[256];
  size_t n = addr ? strlen(addr) : 0;
  if (size < 1 || size > TB_RENDEZVOUS_RANKS || rank < 0 || rank >= size) {
    snprintf(error, error_len, "rank %d of %d: a job has 1 to %d ranks, counted from 0", rank, size,
             TB_RENDEZVOUS_RANKS);
    return -EINVAL;
  }
  if (!job || strlen(job) > RV_JOB) {
    snprintf(error, error_len, "rank %d: the name of the job has at most %d characters", rank, RV_JOB);
    return -EINVAL;
  }
  if (size > 1 && (n == 0 || n >= sizeof host || port == 0)) {
    snprintf(error, error_len, "rank %d: no address and port of rank 0: set MASTER_ADDR and MASTER_PORT", rank);
    return -EINVAL;
  }
  tb_rendezvous *r = make(rank, size, job);
  if (!r) {
    snprintf(error, error_len, "rank %d: no memory for the rendezvous", rank);
    return -ENOMEM;
  }
  if (size > 1) {
    bool brackets = addr[0] == '[' && addr[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), brackets ? addr + 1 : addr);
    snprintf(r->where, sizeof r->where, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    int err = rank == 0 ? tb_rv_root_open(r, host, port, deadline_ns, error, error_len)
                        : tb_rv_leaf_open(r, host, port, deadline_ns, error, error_len);
    if (err) {
      tb_rendezvous_close(r);
      return err;
    }
  }
  *out = r;
  return 0;
}

int tb_rendezvous_exchange(tb_rendezvous *r, const char *tag, const void *mine, uint32_t len, void *all,
                           uint32_t stride, uint64_t deadline_ns, char *error, size_t error_len) {
  if (!tag || strlen(tag) > TB_RENDEZVOUS_TAG || stride == 0 || stride > TB_RENDEZVOUS_STRIDE || len > stride) {
    snprintf(error, error_len,
             "rank %d: an exchange needs a tag of at most %d bytes and a blob of at most its stride (1 to %d bytes); "
             "got '%s', %u of %u",
             r->rank, TB_RENDEZVOUS_TAG, TB_RENDEZVOUS_STRIDE, tag ? tag : "(null)", len, stride);
    return -EINVAL;
  }
  if (r->failed) {
    snprintf(error, error_len, "this rendezvous failed before: %s", r->reason);
    return r->failed;
  }
  uint8_t *to = all;
  int err = 0;
  if (r->rank == 0) {
    memset(to, 0, (size_t)r->size * stride);
    if (len) memcpy(to, mine, len);
    if (r->size > 1) err = tb_rv_root_exchange(r, tag, to, stride, deadline_ns, error, error_len);
  } else {
    err = tb_rv_leaf_exchange(r, tag, mine, len, to, stride, deadline_ns, error, error_len);
  }
  if (!err) r->seq++;
  return err;
}

void tb_rendezvous_close(tb_rendezvous *r) {
  if (!r) return;
  for (int i = 0; i < (r->rank == 0 ? r->size : 1); i++)
    if (r->peer[i].fd >= 0) close(r->peer[i].fd);
  free(r->peer);
  free(r->polls);
  free(r);
}

uint64_t tb_rendezvous_strays(const tb_rendezvous *r) { return r->strays; }
