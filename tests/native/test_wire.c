/* test_wire.c - rule 23 and 24: every frame type byte for byte, and everything malformed refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/wire.h"

typedef struct { uint8_t b[TB_CONTROL_MAX]; uint32_t len; } bytes;

/* Hexadecimal with comments, from golden/<name>.hex beside this file. */
static bytes golden(const char *name) {
  bytes g = {.len = 0};
  char path[600], line[400];
  const char *slash = strrchr(__FILE__, '/');
  snprintf(path, sizeof path, "%.*sgolden/%s.hex", slash ? (int)(slash - __FILE__ + 1) : 0, __FILE__, name);
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s: run from the root of the repository", path);
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "#")] = 0;
    for (char *at = line, *end;; at = end) {
      unsigned long v = strtoul(at, &end, 16);
      if (end == at) break;
      assert_true(v < 256 && g.len < sizeof g.b);
      g.b[g.len++] = (uint8_t)v;
    }
  }
  fclose(f);
  assert_true(g.len >= TB_HEAD);
  return g;
}

static void same(const uint8_t *got, uint32_t len, const bytes *want) {
  assert_int_equal(len, want->len);
  for (uint32_t i = 0; i < len; i++)
    if (got[i] != want->b[i]) fail_msg("byte %u is %02x, golden %02x", i, got[i], want->b[i]);
}

/* Decoded, encoded and sealed again, the header must be what it was; its check covers the payload. */
static tb_head round_trip(const bytes *g, uint8_t type) {
  tb_head h;
  uint8_t again[TB_CONTROL_MAX];
  assert_int_equal(tb_head_decode(g->b, g->len, true, &h), TB_BAD_NONE);
  assert_int_equal(h.type, type);
  tb_head_encode(&h, again);
  memcpy(again + TB_HEAD, g->b + TB_HEAD, g->len - TB_HEAD);
  tb_head_seal(again, again + TB_HEAD, g->len - TB_HEAD);
  same(again, g->len, g);
  return h;
}

static void golden__data(void **state) {
  (void)state;
  bytes g = golden("data");
  tb_head h = {.type = TB_T_DATA, .job = 0x01020304, .view = 1, .key = 0xa1b2c3d4, .round = 0xfffffffe, .chunk = 7,
               .source = 3,
               .destination = 1, .count = 4, .stage = 2, .level = 0, .flags = TB_F_OWN | TB_F_LAST,
               .remaining_us = 2500,
               .stamp_ns = 0x11223344, .echo_ns = 0x55667788, .hold_us = 250, .incast = 1, .percentile = 99,
               .credit = 1024,
               .signature = 0xcafef00d, .step = 0x01000001};
  uint8_t f[TB_HEAD + 16];
  const float pay[4] = {1.0f, -2.5f, 0.0f, 65536.0f};
  memcpy(f + TB_HEAD, pay, sizeof pay);
  tb_head_encode(&h, f);
  tb_head_seal(f, f + TB_HEAD, 16);
  same(f, sizeof f, &g);
  round_trip(&g, TB_T_DATA);
}

static void golden__open(void **state) {
  (void)state;
  bytes g = golden("open");
  tb_head h = round_trip(&g, TB_T_OPEN);
  tb_open o = {.sig = {.redop = TB_AVG, .chunk_elems = 352, .count = 1000003}, .heard = 1, .has_closed = 1,
               .closed_through = 41,
               .share = 0xf333, .want_us = 20000, .stage_us = {1000, 500}, .turn = {3, 2, true, 51}, .measured = true,
               .loss = 0x51e, .gain = 0xccd, .key_len = 7, .key = "layer.0"}, back;
  uint8_t body[TB_CONTROL_MAX];
  assert_int_equal(tb_open_encode(&o, body, sizeof body), g.len - TB_HEAD);
  assert_memory_equal(body, g.b + TB_HEAD, g.len - TB_HEAD);
  assert_int_equal(tb_open_decode(g.b + TB_HEAD, g.len - TB_HEAD, &back), 0);
  assert_memory_equal(&back.sig, &o.sig, sizeof o.sig);
  assert_string_equal(back.key, "layer.0");
  assert_int_equal(back.closed_through, 41);
  assert_true(back.share == o.share && back.want_us == 20000 && back.stage_us[0] == 1000 && back.stage_us[1] == 500);
  assert_true(back.turn.number == 3 && back.turn.by == 2 && back.turn.on && back.turn.from == 51);
  assert_true(back.measured && back.loss == 0x51e && back.gain == 0xccd);
  assert_int_equal(tb_signature_hash(&o.sig), h.signature);
  assert_int_equal(tb_key_hash("layer.0", 7), h.key);
}

static void golden__receipt(void **state) {
  (void)state;
  bytes g = golden("receipt");
  round_trip(&g, TB_T_RECEIPT);
  uint8_t body[TB_CONTROL_MAX];
  uint32_t key = tb_key_hash("layer.0", 7);
  tb_section a = {key, 42, 1, TB_R_HEARD | TB_R_REQUEST, 2, 90, 100},
      b = {key, 41, 2, TB_R_HEARD | TB_R_FINAL | TB_R_CLOSED, 0, 33, 0}, back;
  tb_receipt_begin(body, 0x01000010);
  tb_section_encode(&a, body + 8);
  uint32_t at = 8 + TB_SECTION;
  for (int i = 0; i < 4; i++, at += 4) tb_put32(body + at, (uint32_t[]){3, 5, 60, 5}[i]);
  tb_section_encode(&b, body + at);
  tb_receipt_finish(body, 2);
  assert_int_equal(at + TB_SECTION, g.len - TB_HEAD);
  assert_memory_equal(body, g.b + TB_HEAD, g.len - TB_HEAD);
  tb_receipt r;
  assert_int_equal(tb_receipt_decode(g.b + TB_HEAD, g.len - TB_HEAD, &r), 0);
  assert_int_equal(r.sections, 2);
  assert_int_equal(r.seen, 0x01000010);
  assert_ptr_equal(r.at, g.b + TB_HEAD + 8);
  tb_section_decode(r.at, &back);
  assert_memory_equal(&back, &a, sizeof a);
}

static void golden__error(void **state) {
  (void)state;
  bytes g = golden("error");
  round_trip(&g, TB_T_ERROR);
  tb_error_body e = {.status = -71, .rank_a = 1, .rank_b = 2, .text_len = 8, .text = "mismatch"}, back;
  uint8_t body[TB_CONTROL_MAX];
  assert_int_equal(tb_error_encode(&e, body, sizeof body), g.len - TB_HEAD);
  assert_memory_equal(body, g.b + TB_HEAD, g.len - TB_HEAD);
  assert_int_equal(tb_error_decode(g.b + TB_HEAD, g.len - TB_HEAD, &back), 0);
  assert_int_equal(back.status, -71);
  assert_int_equal(back.rank_b, 2);
  assert_string_equal(back.text, "mismatch");
}

static void golden__probe(void **state) {
  (void)state;
  bytes g = golden("probe");
  tb_head h = round_trip(&g, TB_T_PROBE);
  assert_int_equal(h.stage, 1);
  tb_probe m = {.kind = TB_P_MARK, .final = 1, .sent = 500}, back;
  uint8_t body[TB_CONTROL_MAX];
  assert_int_equal(tb_probe_encode(&m, body, sizeof body), g.len - TB_HEAD);
  assert_memory_equal(body, g.b + TB_HEAD, g.len - TB_HEAD);
  assert_int_equal(tb_probe_decode(g.b + TB_HEAD, g.len - TB_HEAD, &back), 0);
  assert_true(back.kind == m.kind && back.final == 1 && back.sent == 500 && back.id == 0);
}

static void golden__header_only_types(void **state) {
  (void)state;
  const char *name[] = {"grant", "goodbye", "view"};
  const uint8_t type[] = {TB_T_GRANT, TB_T_GOODBYE, TB_T_VIEW};
  for (int i = 0; i < 3; i++) {
    bytes g = golden(name[i]);
    round_trip(&g, type[i]);
    assert_int_equal(g.len, TB_HEAD + 1);
    assert_int_equal(g.b[TB_HEAD], TB_BODY_VERSION);
  }
}

/* Each field where the comment in wire.h says: one field set to all ones changes its bytes and no others. */
static void head__each_field_has_its_place(void **state) {
  (void)state;
  static const struct { size_t off, size; uint32_t at, len; uint8_t mask; } field[] = {
#define F(name, at, len, mask) {offsetof(tb_head, name), sizeof(((tb_head *)0)->name), at, len, mask}
    F(type, 3, 1, 255), F(job, 4, 4, 255), F(view, 8, 4, 255), F(key, 12, 4, 255), F(round, 16, 4, 255),
    F(chunk, 20, 4, 255),
    F(source, 24, 2, 255), F(destination, 26, 2, 255), F(count, 28, 2, 255), F(stage, 30, 1, 0xf0),
    F(level, 30, 1, 0x0f),
    F(flags, 31, 1, 255), F(remaining_us, 32, 4, 255), F(stamp_ns, 36, 4, 255), F(echo_ns, 40, 4, 255),
    F(hold_us, 44, 2, 255),
    F(incast, 46, 1, 255), F(percentile, 47, 1, 255), F(credit, 48, 4, 255), F(signature, 52, 4, 255),
    F(step, 56, 4, 255)};
  for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
    tb_head h = {0};
    uint8_t out[TB_HEAD], want[TB_HEAD] = {'T', 'B', 1};
    memset((uint8_t *)&h + field[i].off, 0xff, field[i].size);
    if (field[i].mask == 0xf0) h.stage = 15; /* a nibble */
    tb_head_encode(&h, out);
    for (uint32_t k = 0; k < field[i].len; k++) want[field[i].at + k] = field[i].mask;
    assert_memory_equal(out, want, TB_HEAD);
  }
}

static void head__every_damaged_bit_is_noticed(void **state) {
  (void)state;
  bytes g = golden("data");
  tb_head h;
  for (uint32_t i = 0; i < 8 * g.len; i++) {
    g.b[i / 8] ^= (uint8_t)(1 << i % 8);
    tb_bad bad = tb_head_decode(g.b, g.len, true, &h);
    if (i < 16) assert_int_equal(bad, TB_BAD_MAGIC);
    else if (i < 24) assert_int_equal(bad, TB_BAD_VERSION);
    else assert_true(bad == TB_BAD_CHECK || (i < 32 && bad == TB_BAD_TYPE));
    g.b[i / 8] ^= (uint8_t)(1 << i % 8);
  }
  assert_int_equal(tb_head_decode(g.b, g.len, true, &h), TB_BAD_NONE);
}

/* Where the link checks payloads itself, data is sealed by its header alone; control bodies are always covered. */
static void head__check_covers_what_it_must(void **state) {
  (void)state;
  tb_head h = {.type = TB_T_DATA};
  uint8_t f[TB_HEAD + 4] = {0};
  tb_head_encode(&h, f);
  tb_head_seal(f, NULL, 4);
  assert_int_equal(tb_head_decode(f, sizeof f, false, &h), TB_BAD_NONE);
  assert_int_equal(tb_head_decode(f, sizeof f, true, &h), TB_BAD_CHECK);
  h.type = TB_T_GRANT;
  tb_head_encode(&h, f);
  tb_head_seal(f, NULL, 4);
  assert_int_equal(tb_head_decode(f, sizeof f, false, &h), TB_BAD_CHECK);
  tb_head_seal(f, f + TB_HEAD, 4);
  assert_int_equal(tb_head_decode(f, sizeof f, false, &h), TB_BAD_NONE);
}

static void head__short_and_unknown(void **state) {
  (void)state;
  bytes g = golden("grant");
  tb_head h;
  for (uint32_t len = 0; len < TB_HEAD; len++) {
    uint8_t *exact = malloc(len ? len : 1);
    memcpy(exact, g.b, len);
    assert_int_equal(tb_head_decode(exact, len, true, &h), TB_BAD_SHORT);
    free(exact);
  }
  for (int type = 0; type < 256; type++) {
    tb_head t = {.type = (uint8_t)type};
    tb_head_encode(&t, g.b);
    tb_head_seal(g.b, g.b + TB_HEAD, g.len - TB_HEAD);
    bool known = type >= TB_T_DATA && type <= TB_T_VIEW;
    assert_int_equal(tb_head_decode(g.b, g.len, true, &h), known ? TB_BAD_NONE : TB_BAD_TYPE);
  }
}

typedef int (*decoder)(const uint8_t *body, uint32_t len);
static int decode_open(const uint8_t *b, uint32_t n) { tb_open o; return tb_open_decode(b, n, &o); }
static int decode_probe(const uint8_t *b, uint32_t n) { tb_probe o; return tb_probe_decode(b, n, &o); }
static int decode_error(const uint8_t *b, uint32_t n) { tb_error_body o; return tb_error_decode(b, n, &o); }
static int decode_receipt(const uint8_t *b, uint32_t n) { tb_receipt o; return tb_receipt_decode(b, n, &o); }

/* From a heap block of exactly that length, so that the sanitizer sees a byte read too far. */
static int exactly(decoder d, const uint8_t *b, uint32_t n) {
  uint8_t *exact = malloc(n ? n : 1);
  assert_non_null(exact);
  memcpy(exact, b, n);
  int rc = d(exact, n);
  free(exact);
  return rc;
}

static void body__every_length_but_its_own_is_refused(void **state) {
  (void)state;
  const struct { const char *name; decoder d; bool pads; } t[] = {
    {"open", decode_open, false}, {"receipt", decode_receipt, false}, {"error", decode_error, false},
        {"probe", decode_probe, true}};
  for (size_t i = 0; i < 4; i++) {
    bytes g = golden(t[i].name);
    uint8_t *b = g.b + TB_HEAD;
    uint32_t n = g.len - TB_HEAD;
    assert_int_equal(exactly(t[i].d, b, n), 0);
    for (uint32_t len = 0; len < n; len++) assert_int_equal(exactly(t[i].d, b, len), -EBADMSG);
    for (uint32_t more = 1; more < 40; more++) assert_int_equal(exactly(t[i].d, b, n + more), t[i].pads ? 0 : -EBADMSG);
    for (int v = 0; v < 256; v++) {
      b[0] = (uint8_t)v;
      assert_int_equal(exactly(t[i].d, b, n), v == TB_BODY_VERSION ? 0 : -EBADMSG);
    }
  }
}

/* Which values of the byte at `at` a decoder takes. */
static void only(decoder d, const char *name, uint32_t at, int lo, int hi) {
  bytes g = golden(name);
  for (int v = 0; v < 256; v++) {
    g.b[TB_HEAD + at] = (uint8_t)v;
    int rc = exactly(d, g.b + TB_HEAD, g.len - TB_HEAD);
    if (rc != (v >= lo && v <= hi ? 0 : -EBADMSG)) fail_msg("%s: byte %u = %d gives %d", name, at, v, rc);
  }
}

static void body__values_out_of_range_are_refused(void **state) {
  (void)state;
  only(decode_open, "open", 1, 0, TB_KINDS - 1);
  only(decode_open, "open", 2, 0, TB_REDOPS - 1);
  only(decode_open, "open", 3, 0, TB_DTYPES - 1);
  only(decode_open, "open", 4, 0, 1);  /* exact */
  only(decode_open, "open", 33, 0, 1); /* heard */
  only(decode_open, "open", 34, 0, 1); /* has closed */
  only(decode_open, "open", 61, 0, 3); /* bits of a switch */
  only(decode_open, "open", 66, 7, 7); /* key length: the body's length must agree */
  only(decode_error, "error", 1, 0, 1);
  only(decode_error, "error", 10, 8, 8);
  only(decode_probe, "probe", 1, TB_P_PING, TB_P_MARK);
  only(decode_probe, "probe", 2, 0, 1);
  only(decode_receipt, "receipt", 1, 2, 2);     /* sections */
  only(decode_receipt, "receipt", 8 + 8, 1, 2); /* stage */
  only(decode_receipt, "receipt", 8 + 11, 2, 2); /* ranges */
  bytes g = golden("open");
  memset(g.b + TB_HEAD + 13, 0, 4); /* chunks of no elements */
  assert_int_equal(exactly(decode_open, g.b + TB_HEAD, g.len - TB_HEAD), -EBADMSG);
  g = golden("error");
  const int32_t bad[] = {0, 1, 71, -4096, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tb_put32(g.b + TB_HEAD + 2, (uint32_t)bad[i]);
    assert_int_equal(exactly(decode_error, g.b + TB_HEAD, g.len - TB_HEAD), -EBADMSG);
  }
}

static void body__text_is_made_printable(void **state) {
  (void)state;
  bytes g = golden("error");
  tb_error_body e;
  memcpy(g.b + TB_HEAD + 11, "a\0\n\x1b\xff%sz", 8);
  assert_int_equal(tb_error_decode(g.b + TB_HEAD, g.len - TB_HEAD, &e), 0);
  assert_string_equal(e.text, "a????%sz"); /* never a terminal's escape, nor an early end */
}

static void body__longest_and_no_room(void **state) {
  (void)state;
  tb_open o = {.sig = {.chunk_elems = 1}, .key_len = TB_KEY_MAX}, back;
  memset(o.key, 'k', TB_KEY_MAX);
  uint8_t b[TB_CONTROL_MAX];
  uint32_t n = tb_open_encode(&o, b, sizeof b);
  assert_true(n > TB_KEY_MAX && n <= TB_CONTROL_MAX - TB_HEAD);
  assert_int_equal(tb_open_decode(b, n, &back), 0);
  assert_int_equal(strlen(back.key), TB_KEY_MAX);
  assert_int_equal(tb_open_encode(&o, b, n - 1), 0);
  assert_int_equal(tb_open_encode(&o, b, n), n);
  tb_error_body e = {.status = -5, .text_len = TB_TEXT_MAX}, eback;
  memset(e.text, 't', TB_TEXT_MAX);
  n = tb_error_encode(&e, b, sizeof b);
  assert_true(n > TB_TEXT_MAX && n <= TB_CONTROL_MAX - TB_HEAD);
  assert_int_equal(tb_error_decode(b, n, &eback), 0);
  assert_int_equal(strlen(eback.text), TB_TEXT_MAX);
  assert_int_equal(tb_error_encode(&e, b, n - 1), 0);
  assert_int_equal(tb_probe_encode(&(tb_probe){.kind = TB_P_PING}, b, 11), 0);
}

/* Rule 7: everything that ranks must agree on changes the hash. */
static void signature__every_field_counts(void **state) {
  (void)state;
  const tb_signature zero = {.chunk_elems = 1};
  uint32_t seen[64], n = 0;
  seen[n++] = tb_signature_hash(&zero);
  for (size_t i = 0; i < sizeof zero; i++) {
    tb_signature s = zero;
    ((uint8_t *)&s)[i] ^= 0x40;
    uint32_t h = tb_signature_hash(&s);
    for (uint32_t k = 0; k < n; k++) assert_int_not_equal(h, seen[k]);
    seen[n++] = h;
  }
}

static void serial__wraps(void **state) {
  (void)state;
  assert_true(tb_before(1, 2));
  assert_false(tb_before(2, 2));
  assert_false(tb_before(3, 2));
  assert_true(tb_before(0xffffffff, 0));
  assert_true(tb_before(0xfffffff0, 0x10));
  assert_false(tb_before(0x10, 0xfffffff0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden__data),
    cmocka_unit_test(golden__open),
    cmocka_unit_test(golden__receipt),
    cmocka_unit_test(golden__error),
    cmocka_unit_test(golden__probe),
    cmocka_unit_test(golden__header_only_types),
    cmocka_unit_test(head__each_field_has_its_place),
    cmocka_unit_test(head__every_damaged_bit_is_noticed),
    cmocka_unit_test(head__check_covers_what_it_must),
    cmocka_unit_test(head__short_and_unknown),
    cmocka_unit_test(body__every_length_but_its_own_is_refused),
    cmocka_unit_test(body__values_out_of_range_are_refused),
    cmocka_unit_test(body__text_is_made_printable),
    cmocka_unit_test(body__longest_and_no_room),
    cmocka_unit_test(signature__every_field_counts),
    cmocka_unit_test(serial__wraps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
