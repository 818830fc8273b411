/* rendezvous_leaf.c - the ranks other than 0: find rank 0, wait until all are there, exchange. */
#include "engine/rendezvous_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KNOCK_NS (3000 * RV_MS) /* one attempt to connect */
#define MUTE_NS (10000 * RV_MS) /* rank 0 answers a HELLO at once; who is silent this long is not rank 0 */

enum { AGAIN = 1 }; /* not an errno: try once more */

typedef struct {
  tb_rendezvous *r;
  uint64_t start, deadline;
  unsigned attempts;
  bool connected_once, listened; /* listened: rank 0 has answered */
  bool loopback;
  char last[200];    /* why the last attempt failed */
  char missing[200]; /* what rank 0 said last */
  char *error;
  size_t error_len;
} seek;

/* The sentence of an ERROR whose head is in. Returns its errno. */
static int told(tb_rendezvous *r, rv_conn *c, uint64_t deadline_ns, char *error, size_t error_len) {
  char text[RV_TEXT] = "";
  size_t got = 0, len = c->h.len < sizeof text ? c->h.len : sizeof text - 1;
  int in;
  while ((in = tb_rv_recv(c->fd, text, len, &got)) == 0 && tb_rv_now() < deadline_ns) {
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (tb_rv_wait(&p, 1, deadline_ns)) break;
  }
  text[got] = 0;
  tb_rv_printable(text);
  int err = c->h.arg >= 1 && c->h.arg < 200 ? -(int)c->h.arg : -EPROTO;
  if (err == -EINTR) err = -ECONNABORTED; /* it was rank 0 that was interrupted, not this one */
  return tb_rv_fail(r, err, error, error_len, "rank %d: %s", r->rank, text);
}

static int refuse_stranger(seek *s, const uint8_t *bytes, size_t n) {
  char said[32];
  if (n > sizeof said - 1) n = sizeof said - 1;
  memcpy(said, bytes, n);
  said[n] = 0;
  for (size_t i = 0; i < n; i++)
    if (said[i] < 32 || said[i] == 127) said[i] = '?';
  return tb_rv_fail(s->r, -EPROTO, s->error, s->error_len,
                    "rank %d: what answers at %s is not rank 0 of a Tailbound job (it said '%s'): another program sits "
                    "on that port; set TAILBOUND_MASTER_PORT",
                    s->r->rank, s->r->where, said);
}

/* Connected and introduced: hears WAITING until WELCOME or ERROR. 0, AGAIN, -errno. */
static int attend(seek *s, rv_conn *c) {
  uint64_t mute = tb_rv_now() + MUTE_NS;
  size_t got = 0, body = 0;
  char text[200];
  for (;;) {
    int in = got < RV_HEAD ? tb_rv_recv(c->fd, c->head, RV_HEAD, &got) : 1;
    if (!tb_rv_begins(c->head, got)) return refuse_stranger(s, c->head, got);
    if (in == 1) {
      if (tb_rv_decode(c->head, &c->h)) return refuse_stranger(s, c->head, RV_HEAD);
      s->listened = true;
      if (c->h.type == RV_WELCOME) return 0;
      if (c->h.type == RV_ERROR) return told(s->r, c, s->deadline, s->error, s->error_len);
      if (c->h.type != RV_WAITING || c->h.len >= sizeof text) return refuse_stranger(s, c->head, RV_HEAD);
      in = tb_rv_recv(c->fd, text, c->h.len, &body);
      if (in == 1) {
        text[body] = 0;
        tb_rv_printable(text);
        snprintf(s->missing, sizeof s->missing, "%s", text);
        got = body = 0;
        continue;
      }
    }
    if (in < 0) {
      snprintf(s->last, sizeof s->last, "it hung up: %s", strerror(-in));
      return AGAIN;
    }
    uint64_t now = tb_rv_now();
    if (now >= s->deadline) return -ETIMEDOUT;
    if (!s->listened && now >= mute) {
      snprintf(s->last, sizeof s->last, "something there accepts connections but does not answer as rank 0 would");
      return AGAIN;
    }
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (tb_rv_wait(&p, 1, s->deadline)) return -EINTR;
  }
}

static int introduce(seek *s, rv_conn *c) {
  tb_rendezvous *r = s->r;
  uint8_t hello[RV_HEAD + RV_JOB];
  size_t len = strlen(r->job), sent = 0;
  tb_rv_encode(&(rv_head){.version = RV_VERSION,
                          .type = RV_HELLO,
                          .rank = (uint32_t)r->rank,
                          .size = (uint32_t)r->size,
                          .len = (uint32_t)len,
                          .nonce = r->nonce},
               hello);
  memcpy(hello + RV_HEAD, r->job, len);
  /* A fresh connection takes this much at once, or is dead. */
  if (tb_rv_send(c->fd, hello, RV_HEAD + len, &sent) != 1) {
    snprintf(s->last, sizeof s->last, "it hung up at once");
    return AGAIN;
  }
  return attend(s, c);
}

static bool is_loopback(const struct sockaddr_storage *a) {
  if (a->ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
  return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
}

/* Every address of the host once. */
static int knock(seek *s, const char *host, uint16_t port) {
  struct sockaddr_storage addr[RV_ADDRS];
  int count, err = tb_rv_resolve(host, port, s->deadline, addr, &count, s->last, sizeof s->last);
  s->attempts++;
  if (err) return err == -EAGAIN ? AGAIN : err;
  for (int i = 0; i < count; i++) {
    uint64_t until = tb_rv_now() + KNOCK_NS;
    s->loopback = is_loopback(&addr[i]);
    int fd = tb_rv_connect(&addr[i], until < s->deadline ? until : s->deadline);
    if (fd == -EINTR) return fd;
    if (fd < 0) {
      char who[RV_WHO];
      tb_rv_who(&addr[i], who);
      /* Of several addresses the first one's failure is told; a missing IPv6 behind it is no news. */
      if (i == 0 || fd != -EAFNOSUPPORT) snprintf(s->last, sizeof s->last, "%s: %s", who, strerror(-fd));
      continue;
    }
    s->connected_once = true;
    rv_conn *c = &s->r->peer[0];
    *c = (rv_conn){.fd = fd};
    tb_rv_who(&addr[i], c->who);
    err = introduce(s, c);
    if (err == 0) return 0;
    close(fd);
    c->fd = -1;
    if (err != AGAIN) return err;
  }
  return AGAIN;
}

static int out_of_time(seek *s) {
  tb_rendezvous *r = s->r;
  double seconds = s->deadline > s->start ? (double)(s->deadline - s->start) / 1e9 : 0;
  if (s->listened && s->missing[0])
    return tb_rv_fail(r, -ETIMEDOUT, s->error, s->error_len,
                      "rank %d: rank 0 at %s was reached, but ranks %s of %d did not connect within %.3g s; check that "
                      "they run and that MASTER_ADDR and MASTER_PORT are the same on every rank",
                      r->rank, r->where, s->missing, r->size, seconds);
  if (s->listened)
    return tb_rv_fail(r, -ETIMEDOUT, s->error, s->error_len,
                      "rank %d: rank 0 at %s was reached but did not go on within %.3g s: is it stopped?", r->rank,
                      r->where, seconds);
  return tb_rv_fail(r, -ETIMEDOUT, s->error, s->error_len,
                    "rank %d: rank 0 at %s was not reached within %.3g s (%u attempts; last: %s); check that rank 0 "
                    "runs, that MASTER_ADDR and MASTER_PORT are its own%s, and that no firewall blocks this TCP port",
                    r->rank, r->where, seconds, s->attempts,
                    s->last[0]          ? s->last
                    : s->connected_once ? "something there accepts connections but does not answer as rank 0 would"
                                        : "no answer",
                    s->loopback ? " (a loopback address only reaches this same host)" : "");
}

int tb_rv_leaf_open(tb_rendezvous *r, const char *host, uint16_t port, uint64_t deadline_ns, char *error,
                    size_t error_len) {
  seek s = {.r = r, .start = tb_rv_now(), .deadline = deadline_ns, .error = error, .error_len = error_len};
  uint64_t pause = 10 * RV_MS;
  for (;;) {
    if (tb_rv_now() >= deadline_ns) return out_of_time(&s);
    int err = knock(&s, host, port);
    if (err == 0) return 0;
    if (err == AGAIN) {
      uint64_t next = tb_rv_now() + pause;
      while (!(err = tb_rv_wait(NULL, 0, next < deadline_ns ? next : deadline_ns)) && tb_rv_now() < next &&
             tb_rv_now() < deadline_ns) {
      }
      if (pause < 400 * RV_MS) pause += pause / 2;
      if (!err) continue;
    }
    if (r->failed) return r->failed;
    if (err == -ETIMEDOUT) return out_of_time(&s);
    if (err == -EINTR)
      return tb_rv_fail(r, err, error, error_len, "rank %d was interrupted while it waited for rank 0 at %s%s%s",
                        r->rank, r->where, s.missing[0] ? "; missing were ranks " : "", s.missing);
    return tb_rv_fail(r, err, error, error_len, "rank %d: cannot reach rank 0 at %s: %s", r->rank, r->where,
                      s.last[0] ? s.last : strerror(-err));
  }
}

static int hung_up(tb_rendezvous *r, const char *tag, char *error, size_t error_len) {
  return tb_rv_fail(r, -ECONNRESET, error, error_len,
                    "rank %d: rank 0 at %s hung up during the exchange '%s': see its own output", r->rank, r->where,
                    tag);
}

int tb_rv_leaf_exchange(tb_rendezvous *r, const char *tag, const void *mine, uint32_t len, uint8_t *all,
                        uint32_t stride, uint64_t deadline_ns, char *error, size_t error_len) {
  rv_conn *c = &r->peer[0];
  uint64_t start = tb_rv_now();
  uint8_t out_head[RV_HEAD];
  size_t sent = 0, sent_body = 0, got = 0, got_body = 0, total = (size_t)r->size * stride;
  bool out_done = false;
  rv_head h = {.version = RV_VERSION,
               .type = RV_BLOB,
               .rank = (uint32_t)r->rank,
               .size = (uint32_t)r->size,
               .arg = stride,
               .seq = r->seq,
               .len = len};
  memcpy(h.tag, tag, strlen(tag) + 1);
  tb_rv_encode(&h, out_head);
  for (;;) {
    if (!out_done) {
      int out = tb_rv_send(c->fd, out_head, RV_HEAD, &sent);
      if (out == 1) out = tb_rv_send(c->fd, mine, len, &sent_body);
      out_done = out != 0; /* after a failure there may still be an ERROR to read */
    }
    int in = got < RV_HEAD ? tb_rv_recv(c->fd, c->head, RV_HEAD, &got) : 1;
    if (in == 1) {
      if (tb_rv_decode(c->head, &c->h)) return hung_up(r, tag, error, error_len);
      if (c->h.type == RV_ERROR) return told(r, c, deadline_ns, error, error_len);
      if (c->h.type != RV_ALL || c->h.arg != stride || c->h.seq != r->seq || c->h.len != total)
        return tb_rv_fail(r, -EPROTO, error, error_len,
                          "rank %d: rank 0 at %s answered the exchange '%s' with something else", r->rank, r->where,
                          tag);
      in = tb_rv_recv(c->fd, all, total, &got_body);
      if (in == 1) return 0;
    }
    if (in < 0) return hung_up(r, tag, error, error_len);
    if (tb_rv_now() >= deadline_ns)
      return tb_rv_fail(r, -ETIMEDOUT, error, error_len,
                        "rank %d: no answer from rank 0 at %s to the exchange '%s' within %.3g s: rank 0 or another "
                        "rank has not come to it",
                        r->rank, r->where, tag, (double)(tb_rv_now() - start) / 1e9);
    struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (out_done ? 0 : POLLOUT))};
    if (tb_rv_wait(&p, 1, deadline_ns))
      return tb_rv_fail(r, -EINTR, error, error_len, "rank %d was interrupted in the exchange '%s'", r->rank, tag);
  }
}
