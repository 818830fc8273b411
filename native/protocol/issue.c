/* issue.c - an operation begins: checked, matched to its round, announced to everybody. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

__attribute__((format(printf, 3, 4))) static int refuse(tb_outcome *o, int status, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(o->error, sizeof o->error, fmt, ap);
  va_end(ap);
  return status;
}

/* What travels. A rank alone sends nothing, and keeps its values as they are. */
static tb_dtype wire_of(const tb_core *c, const tb_call *call) {
  return (tb_dtype)(call->wire_dtype && c->cfg.n > 1 ? call->wire_dtype : call->dtype);
}

static void signature_of(const tb_core *c, const tb_call *call, tb_signature *s) {
  bool reduces = call->kind == TB_ALL_REDUCE || call->kind == TB_REDUCE_SCATTER || call->kind == TB_BARRIER;
  bool averages = call->redop == TB_SUM || call->redop == TB_AVG;
  bool may_lose = (call->kind == TB_ALL_REDUCE && averages) || call->kind == TB_SEND || call->kind == TB_RECV;
  *s = (tb_signature){.kind = (uint8_t)(call->kind == TB_RECV ? TB_SEND : call->kind), .dtype = (uint8_t)call->dtype,
                      .redop = (uint8_t)(reduces ? call->redop : 0), .count = call->count};
  s->exact = call->deadline_ns == UINT64_MAX || !may_lose || !tb_dtype_is_float((tb_dtype)call->dtype);
  if (call->consistency && call->kind == TB_ALL_REDUCE && !s->exact) {
    s->consistency = TB_AGREE;
    s->tag = (uint32_t)(call->min_received * 1e6); /* the verdict is agreed too: by one threshold */
  }
  if (call->deterministic && (call->kind == TB_ALL_REDUCE || call->kind == TB_REDUCE_SCATTER)) s->tag |= TB_TAG_ORDERED;
  if (!s->exact) s->missing = (uint8_t)call->missing;
  s->wire_dtype = (uint8_t)wire_of(c, call);
  if (call->hadamard && !s->exact && c->cfg.n > 1)
    s->hadamard = (uint8_t)(c->tune.hadamard_block | (call->hadamard == TB_BY_LOSS ? TB_HADAMARD_AUTO : 0));
  s->chunk_elems = tb_coding_chunk(s, c->cfg.chunk_bytes);
  if (call->kind == TB_BROADCAST) s->root = (uint16_t)call->root;
  if (call->kind == TB_SEND || call->kind == TB_RECV) {
    s->tag = call->tag;
    s->peer = call->kind == TB_SEND ? c->cfg.rank : (uint16_t)call->root;
    s->root = call->kind == TB_SEND ? (uint16_t)call->root : c->cfg.rank;
  }
  if (call->groups >= 0) s->groups = tb_groups_for(c, s);
}

/* Messages between two ranks match by (sender, receiver, tag) in order; everything unnamed else by order of issue. */
static uint32_t key_of(const tb_signature *s, const tb_call *call, char name[TB_KEY_MAX + 1]) {
  if (s->kind == TB_SEND)
    return (uint32_t)snprintf(name, TB_KEY_MAX, "p2p:%u:%u:%u", s->peer, s->root, s->tag);
  if (call->key_len) memcpy(name, call->key, call->key_len); /* an anonymous call may have no key at all */
  return call->key_len;
}

static bool overlap(const void *a, uint64_t n, const void *b, uint64_t m) {
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return x < y ? y - x < n : x - y < m;
}

static int check_call(const tb_core *c, const tb_call *call, tb_outcome *o) {
  if (call->kind < 0 || call->kind >= TB_KINDS || call->dtype < 0 || call->dtype >= TB_DTYPES || call->redop < 0 ||
      call->redop >= TB_REDOPS || call->key_len > TB_KEY_MAX || call->consistency < TB_LOCAL || call->consistency > TB_AGREE)
    return refuse(o, -EINVAL, "unknown kind, dtype, op or consistency, or a key longer than 255 bytes");
  if (tb_key_of_messages(call->key, call->key_len)) return refuse(o, -EINVAL, "keys that begin with 'p2p:' are reserved");
  bool has_root = call->kind == TB_BROADCAST || call->kind == TB_SEND || call->kind == TB_RECV;
  if (has_root && (call->root < 0 || call->root >= c->cfg.n)) {
    return refuse(o, -EINVAL, "rank %d is out of range: this communicator has ranks 0 to %u", call->root, c->cfg.n - 1u);
  }
  if ((call->kind == TB_SEND || call->kind == TB_RECV) && call->root == c->cfg.rank)
    return refuse(o, -EINVAL, "send and recv need another rank: a rank cannot send to itself");
  if (call->redop == TB_AVG && !tb_dtype_is_float((tb_dtype)call->dtype) && call->kind <= TB_REDUCE_SCATTER)
    return refuse(o, -EINVAL, "avg of integers is not defined: use sum and divide, or a float dtype");
  if (call->kind == TB_BROADCAST && !tb_team_has(c->team, (uint32_t)call->root))
    return refuse(o, -EHOSTDOWN, "rank %d was voted out of the view: broadcast from a member", call->root);
  if (call->kind == TB_REDUCE_SCATTER && call->count % c->cfg.n)
    return refuse(o, -EINVAL, "reduce_scatter needs a count that the number of ranks divides");
  tb_signature s = {.kind = (uint8_t)call->kind, .redop = (uint8_t)call->redop, .dtype = (uint8_t)call->dtype,
                    .wire_dtype = (uint8_t)(call->wire_dtype ? call->wire_dtype : call->dtype)};
  if (call->wire_dtype < 0 || call->wire_dtype >= TB_DTYPES || !tb_coding_valid(&s))
    return refuse(o, -EINVAL, "a wire dtype (bfloat16, float16 or int8) is for all_reduce of float32 with sum or avg: leave "
                  "it out here");
  s.hadamard = call->hadamard ? TB_HADAMARD_LEAST_LOG2 : 0;
  if (call->hadamard < 0 || call->hadamard > TB_BY_LOSS || !tb_transform_valid(&s))
    return refuse(o, -EINVAL, "the Hadamard transform is for all_reduce of float32 or float64 with sum or avg: leave it "
                  "out here");
  if (call->hadamard && (call->missing || call->fill))
    return refuse(o, -EINVAL, "the Hadamard transform goes with missing=renormalise and fill=zero only: what is carried or "
                  "filled has no place among coefficients");
  if (call->hadamard == TB_BY_LOSS && (call->consistency || !(call->key_len || call->deadline_ns == UINT64_MAX)))
    return refuse(o, -EINVAL, "the Hadamard transform by loss (auto) needs a key, whose rounds are measured, and goes with "
                  "consistency=local only: a rank that missed the switch loses a round, which agreed rounds cannot");
  bool reads = call->kind != TB_RECV && (call->kind != TB_BROADCAST || call->root == c->cfg.rank);
  if (call->count && ((reads && !call->in) || (call->kind != TB_SEND && !call->out)))
    return refuse(o, -EINVAL, "a buffer is NULL");
  uint64_t size = tb_dtype_size((tb_dtype)call->dtype);
  if (call->count <= UINT64_MAX / size / c->cfg.n && call->in != call->out && call->kind <= TB_REDUCE_SCATTER && call->in && call->out) {
    uint64_t read = call->count * size, written = call->kind == TB_REDUCE_SCATTER ? read / c->cfg.n : read;
    if (overlap(call->in, read, call->out, written))
      return refuse(o, -EINVAL, "in and out overlap: give the same buffer twice (all_reduce), or buffers that lie apart");
  }
  if (call->kind == TB_REDUCE_SCATTER && call->count && call->in == call->out)
    return refuse(o, -EINVAL, "reduce_scatter cannot work in place: other ranks' shards are still sent from the input");
  bool carries = call->kind == TB_ALL_REDUCE && (call->redop == TB_SUM || call->redop == TB_AVG) &&
      tb_dtype_is_float((tb_dtype)call->dtype);
  if (call->fill < 0 || call->fill > TB_FILL_OWN) return refuse(o, -EINVAL, "fill %d is unknown", call->fill);
  if (call->fill && (!carries || call->consistency))
    return refuse(o, -EINVAL, "fill=own is for all_reduce of floats with op sum or avg, and consistency=local");
  if (call->missing < 0 || call->missing > TB_CARRY) return refuse(o, -EINVAL, "missing %d is unknown", call->missing);
  if (call->missing == TB_CARRY && !(carries && (call->key_len || call->deadline_ns == UINT64_MAX)))
    return refuse(o, -EINVAL, "missing=carry is for all_reduce of floats with op sum or avg, and needs a key: the next round of that key "
                  "takes what is left of this one; give a key, or use missing=renormalise");
  if (call->missing == TB_CARRY && call->consistency)
    return refuse(o, -EINVAL, "missing=carry cannot go with consistency=agree: what comes late is each rank's own, and all ranks are to "
                  "return the same bytes; use consistency=local, or missing=renormalise");
  uint64_t ce = c->cfg.chunk_bytes / tb_dtype_size((tb_dtype)call->dtype);
  if (call->count / ce >= 1u << 30) return refuse(o, -EINVAL, "count is too large: more than 2^30 chunks");
  signature_of(c, call, &s);
  if (call->groups < -1 || call->groups > 1) return refuse(o, -EINVAL, "groups %d is unknown", call->groups);
  if (call->groups == 1 && !s.groups)
    return refuse(o, -EINVAL, c->tree ? "groups are for all_reduce with missing=renormalise, consistency=local, no wire dtype, no Hadamard "
                  "transform, no order of ranks, deadline_policy=auto, and dtypes other than float16 and bfloat16, while all ranks are members: leave "
                  "groups out here" : "this communicator has no groups: give it some (option groups), or leave them out here");
  if (s.consistency == TB_AGREE && (call->min_stage[0] > 0 || call->min_stage[1] > 0)) /* others have no verdict */
    return refuse(o, -EINVAL, "min_received of a stage is each rank's own view, which an agreed verdict cannot go by: give the total only");
  return 0;
}

uint64_t tb_core_min_deadline(const tb_core *c, const tb_call *call) {
  if (!c->measured || c->cfg.n == 1 || call->kind == TB_SEND || call->kind == TB_RECV) return 0;
  double shard = (double)call->count / tb_team_n(c) * (double)tb_dtype_size(wire_of(c, call));
  double transforms = call->hadamard ? 2.0 * (double)call->count * (double)tb_dtype_size((tb_dtype)call->dtype) : 0;
  tb_signature s;
  signature_of(c, call, &s);
  uint64_t trips = s.groups ? 3 : 1; /* the partial sums', the owner's, the relay's */
  return (uint64_t)(shard * (tb_team_n(c) - 1) * c->ns_per_byte + transforms * c->commit_cost[1]) + trips * tb_repair_trip(c) +
         c->cfg.timer_ns;
}

/* After a change of the view every rank brings an agreed key into step before its first round, also one that is new
 * here: it may be an old one to others, who wait in resync for all. */
static bool out_of_step(const tb_core *c, const tb_key *k) {
  return k->unsure || (k->len && c->vote.number != c->cfg.view && k->sure_in != c->vote.number);
}

static int bind_key(const tb_core *c, tb_key *k, const tb_signature *s, const tb_call *call, tb_outcome *o) {
  if (k->failed) {
    int status = k->failed;
    refuse(o, status, "%s", k->failed_text);
    k->failed = 0;
    return status;
  }
  for (tb_op *op = k->ops; op && call->thread; op = op->key_next)
    if (op->state == TB_OP_ISSUED && op->thread && op->thread != call->thread) {
      return refuse(o, -EBUSY, "key '%s' has an operation in flight from another thread: use one key per thread", k->name);
    }
  if (s->consistency && out_of_step(c, k))
    return refuse(o, -ESTALE, "key '%s': an agreed round failed on this rank, or the membership changed, and others may have returned it: "
                  "call resync() on every rank, and bring what was made of its results into step", k->name);
  if (!k->len) return 0;
  if (k->bound && !call->groups) k->sig.groups = s->groups; /* not asked for: they may have ended with a view change */
  if (k->bound && s->kind != TB_SEND && memcmp(&k->sig, s, sizeof *s)) {
    char a[TB_SIGNATURE_TEXT], b[TB_SIGNATURE_TEXT];
    tb_signatures_text(&k->sig, s, a, b, 96);
    return refuse(o, -EEXIST, "key '%.40s' is bound to %s, not %s: call it alike; forget(key) on every rank frees the key", k->name,
                  a, b);
  }
  k->sig = *s;
  k->bound = true;
  return 0;
}

int tb_core_forget(tb_core *c, const char *key, uint32_t len) {
  tb_key *k = tb_key_named(c, key, len);
  if (!k) return -ENOENT;
  for (tb_op *op = k->ops; op; op = op->key_next) /* but the rounds after it, of which some peers speak already */
    if (op->state != TB_OP_EARLY || op->ghost) {
      tb_late_give_up(c, op);
      op->orphan = true;
    }
  tb_late_forget(c, k);
  tb_carry_forget(c, k);
  k->bound = false;
  k->forgotten = true;
  k->failed = 0;
  k->skips = 0;
  return 0;
}

/* The last round such that it and all before it are over here; told in OPEN, so that nobody waits for us in vain. */
void tb_closed_through(tb_op *op, uint32_t first) {
  const tb_op *o = op->key->ops;
  while (o && o->state != TB_OP_ISSUED) o = o->key_next;
  if (o && tb_before(o->round, first)) first = o->round;
  op->has_closed = first != 0;
  op->closed_through = first - 1;
}

/* Kinds without a stage 1 have decided everything at issue. What is handed out must outlive the call: it is copied. */
static void decide_all(tb_core *c, tb_op *op) {
  uint64_t start, len;
  tb_geo_shard(&op->geo, c->cfg.rank, &start, &len);
  for (uint32_t i = 0; i < op->chunks; i++) {
    op->decided_order[i] = i;
    op->count[i] = 1;
  }
  op->decided_n = op->chunks;
  op->swept = true;
  if (op->geo.kind == TB_SEND) return;
  if (len) memcpy(op->decided, op->in, len * op->geo.elem);
  for (uint32_t i = 0; i < op->chunks; i++) tb_output_chunk(c, op, c->cfg.rank, i, tb_decided_at(op, i), 1, true);
}

/* Owner duty has decided these before this rank issued: without its own data, but they are its result as well. */
static void adopt_decided(tb_core *c, tb_op *op) {
  for (uint32_t i = 0; i < op->decided_n; i++) {
    uint32_t chunk = op->decided_order[i];
    tb_piece x = tb_flow_piece(c, op, c->cfg.rank, 1, TB_SENT, chunk);
    tb_output_chunk(c, op, x.owner, x.chunk, tb_decided_at(op, chunk), op->count[chunk], false);
  }
}

/* Sums of times must not wrap. */
static uint64_t at_most_a_year(uint64_t ns) { return ns < 366 * 86400 * TB_SEC ? ns : 366 * 86400 * TB_SEC; }

void tb_announce(tb_core *c, tb_op *op, uint64_t now) {
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_op_peer *q = &op->peer[p];
    if (p == c->cfg.rank || !tb_op_takes_part(op, p) || c->peer[p].gone) continue;
    /* Also to those who passed: they hand out what they decided, or say that it is gone; without that we wait in
     * vain. */
    if (!q->nothing || !op->lossy || q->apart) {
      q->open_at = now;
      tb_op_peer_due(c, op, (uint16_t)p, now);
    }
  }
  for (int s = 0; s < 2; s++) tb_tx_ready_all(op, s);
  tb_due(c, op, now);
}

/* Rule 8, but never past a round that failed before it was issued here: rule 19 wants the error on every rank. */
static uint32_t jump(tb_core *c, const tb_key *k) {
  uint32_t round = tb_key_jump(c, k);
  for (const tb_op *op = k->ops; op; op = op->key_next)
    if (op->state == TB_OP_EARLY && op->status && !tb_before(op->round, k->next_round) && tb_before(op->round, round))
      round = op->round;
  return round;
}

static uint64_t choose(tb_core *c, tb_op *op) {
  if (c->tune.deadline_policy == TB_POLICY_AUTO) return tb_auto_deadline(c, op->history);
  return tb_calibrated_deadline(c, op);
}

int tb_issue_preview(tb_core *c, const tb_call *call, tb_signature *s, uint32_t *key, uint32_t *round,
                     bool *transformed) {
  char name[TB_KEY_MAX + 1];
  tb_outcome unused = {0};
  int rc = check_call(c, call, &unused);
  if (rc) return rc;
  signature_of(c, call, s);
  *key = tb_key_hash(name, key_of(s, call, name));
  const tb_key *k = tb_key_find(c, *key);
  *round = k ? k->len && !s->consistency ? jump(c, k) : k->next_round : 0;
  const tb_op *op = tb_op_find(c, *key, *round);
  *transformed = op ? op->transformed : k ? tb_auto_on(k, s, *round) : s->hadamard && !(s->hadamard & TB_HADAMARD_AUTO);
  return 0;
}

static int issue(tb_core *c, const tb_call *call, uint64_t issued, uint64_t now, tb_outcome *o) {
  tb_signature sig;
  tb_key *k;
  tb_op *op;
  char name[TB_KEY_MAX + 1];
  o->error[0] = 0;
  int rc = tb_members_refuse(c, o->error, sizeof o->error);
  if (!rc) rc = check_call(c, call, o);
  if (rc) return rc;
  signature_of(c, call, &sig);
  rc = tb_key_get(c, name, key_of(&sig, call, name), true, now, &k);
  if (rc == -EEXIST) {
    refuse(o, rc, "keys '%.80s' and '%.80s' have the same 32-bit hash: rename one", k->name, name);
    for (op = k->ops; op; op = op->key_next) /* whoever waits for us under the other name must not wait in vain */
      if (op->state == TB_OP_EARLY) tb_op_fail(c, op, rc, o->error, now, true);
    return rc;
  }
  if (rc) return refuse(o, rc, "more than key_cap=%llu keys are in use, or there is no memory for another: forget() those that are over, on "
                        "every rank, or raise it", (unsigned long long)c->tune.key_cap);
  rc = bind_key(c, k, &sig, call, o);
  if (rc == -ESTALE) c->untold = false; /* that tells it, too */
  if (!rc && sig.exact && sig.kind != TB_SEND) rc = tb_members_tell(c, o->error, sizeof o->error);
  if (rc) return rc;
  bool explicit_time = !sig.exact && call->deadline_ns;
  uint64_t least = tb_core_min_deadline(c, call);
  if (explicit_time && call->deadline_ns < least) {
    return refuse(o, -EINVAL, "a deadline of %.6f s is below the measured reserve of %.6f s for %llu elements: use at least that",
             (double)call->deadline_ns * 1e-9, (double)least * 1e-9, (unsigned long long)call->count);
  }
  /* Named keys count their exact first rounds by round number, anonymous operations by order of issue of their kind. */
  bool automatic = !sig.exact && !call->deadline_ns, cut = !sig.exact && tb_early_wanted(c, automatic);
  tb_history *hist = automatic || cut ? tb_history_get(c, k, k->len ? 0 : tb_signature_hash(&sig)) : NULL;
  bool warm_up = automatic && hist && (k->len ? k->next_round - k->first_round : hist->rounds) < tb_exact_rounds(c);
  bool lossy = !sig.exact && !warm_up;
  if (!lossy)
    for (uint32_t p = 0; p < c->cfg.n; p++)
      if (p != c->cfg.rank && (sig.kind == TB_SEND ? p == sig.root || p == sig.peer : tb_team_has(c->team, p)) && (c->peer[p].down || c->peer[p].gone)) {
        c->peer[p].silent_rounds++;
        tb_members_silent(c, (uint16_t)p, now);
        return refuse(o, -EHOSTDOWN, "rank %u %s: an exact operation would wait in vain%s", p, c->peer[p].out ? "was voted out of the view" :
                      c->peer[p].gone ? "has closed its communicator" : "was silent for peer_timeout and was not heard since",
                      c->peer[p].out || !c->tune.evict_after || c->cfg.n < 3 ? "" : ", until that rank is voted out (members): try again later");
      }
  /* agreed rounds are returned by all, or none */
  bool follows = lossy && k->len && sig.kind != TB_SEND && !sig.consistency;
  uint32_t round = follows ? jump(c, k) : k->next_round;
  op = tb_op_find(c, k->hash, round);
  if (op && op->state != TB_OP_EARLY) /* of messages, which began anew with the view (tb_key_restart) */
    return refuse(o, -EBUSY, "the link still reads the buffer of an earlier message to rank %u: try again", sig.root);
  bool fresh = !op;
  if (fresh) rc = tb_op_new(c, k, round, &sig, TB_OPENED_HERE, now, &op);
  bool transforms = !rc && op->transformed && !memcmp(&op->sig, &sig, sizeof sig);
  bool saves = call->in == call->out && call->kind == TB_ALL_REDUCE && !transforms;
  size_t save = saves ? call->count * tb_dtype_size((tb_dtype)call->dtype) : 0;
  if (!transforms) tb_transform_none(o);
  if (!rc) rc = tb_outcome_init(o, &op->geo, c->cfg.rank);
  if (!rc && save) rc = tb_op_add_save(c, op, save);
  if (transforms && !rc) rc = tb_transform_take(c, op, o, &sig);
  if (rc) {
    if (fresh && op) tb_op_free(c, op, now);
    tb_outcome_free(o);
    c->n.memory_refused++;
    return refuse(o, rc, "operations in flight would hold more than memory_cap=%llu bytes (or there is no memory): wait for one "
                  "to finish, or raise it", (unsigned long long)c->tune.memory_cap);
  }
  c->early_memory -= op->bytes;
  op->state = TB_OP_ISSUED;
  op->behind = round - k->next_round;
  for (tb_op *o = op->behind ? k->ops : NULL; o; o = o->key_next) /* skipped now: they need not wait for anybody */
    if (o->state == TB_OP_EARLY && o != op) tb_due(c, o, now);
  if (op->behind) tb_ghosts(c, k, k->next_round, round, now);
  k->next_round = round + 1;
  for (tb_op *o = k->ops; o != op && round - o->round >= tb_rounds_kept(c, o); o = o->key_next)
    tb_due(c, o, now); /* too old for some now, and no clock of theirs may say so */
  c->issued_bytes += op->geo.count * op->geo.wire_elem;
  op->issued = issued;
  op->lossy = lossy;
  op->carries = lossy && op->sig.missing == TB_CARRY; /* by what its arrays were made for */
  op->history = hist;
  op->automatic = automatic;
  if (hist && automatic) hist->rounds++;
  op->outcome = o;
  o->issued_ns = issued;
  op->min_received = call->min_received;
  memcpy(op->min_stage, call->min_stage, sizeof op->min_stage);
  op->halt = call->halt;
  op->thread = call->thread;
  op->in = op->user_in = call->in;
  op->in_is_user = true;
  op->out = call->out;
  tb_closed_through(op, op->round);
  if (lossy) {
    uint64_t bytes = call->count * op->geo.elem;
    op->deadline = issued + (call->deadline_ns ? at_most_a_year(call->deadline_ns) : choose(c, op));
    if (automatic && hist && !hist->told) {
      hist->told = true;
      tb_logf(c, 20, "key '%s': deadline=auto chose %.3f ms for %llu bytes from %llu exact rounds", k->name,
              (double)(op->deadline - issued) * 1e-6, (unsigned long long)bytes, (unsigned long long)tb_exact_rounds(c));
    }
  }
  if (call->error_bound_ns && !lossy) op->error_bound = issued + at_most_a_year(call->error_bound_ns);
  tb_op_reorder(c, op);
  tb_auto_decide(c, op);
  tb_announce(c, op, now);
  if (op->status) { /* a peer reported an error for this round before we got here */
    int status = op->status;
    op->status = 0;
    op->out = NULL;
    op->in = op->user_in = NULL;
    tb_op_fail(c, op, status, op->error, now, false);
    return 0;
  }
  if (memcmp(&op->sig, &sig, sizeof sig)) { /* a peer opened this round as something else */
    op->called = sig;
    op->called_hash = tb_auto_hash(&sig, op->transformed);
    op->out = NULL; /* its geometry is not the caller's: nothing may be read or written */
    op->in = op->user_in = NULL;
    tb_op_mismatch(c, op, op->opener, &op->sig, c->cfg.rank, &sig, now);
    return 0;
  }
  op->fill = lossy && call->fill == TB_FILL_OWN;
  op->early = cut && hist && tb_geo_scatters(&op->geo) && !op->tree;
  for (int s = 0; s < 2 && op->early; s++) op->usual[s] = tb_stage_time(c, hist, s);
  if (op->work) tb_transform_begin(c, op);
  tb_carry_issue(c, op);
  if (c->cfg.n == 1 && op->out && op->out != op->in && op->in) memcpy(op->out, op->in, call->count * op->geo.elem);
  if (!tb_geo_scatters(&op->geo)) {
    decide_all(c, op);
  } else {
    adopt_decided(c, op);
    tb_stage1_sweep(c, op, now, c->cfg.n == 1 ? TB_CLOSE_ALL : TB_CLOSE_COMPLETE);
  }
  tb_op_check(c, op, now);
  return 0;
}

int tb_core_issue(tb_core *c, const tb_call *call, uint64_t issued, uint64_t now, tb_outcome *o) {
  int rc = issue(c, call, issued, now, o);
  tb_core_unprepare(c, o); /* where it was not used */
  if (rc) tb_outcome_free(o);
  return rc;
}

void tb_core_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now) {
  if (tb_settle_cancel(c, o, status, why, now) || tb_rejoin_cancel(c, o, status, why, now)) return;
  for (tb_op *op = c->ops; op; op = op->next)
    if (op->outcome == o) {
      if (op->settled) tb_op_finish(c, op, now);
      else tb_op_fail(c, op, status, why, now, !op->lossy);
      return;
    }
}
