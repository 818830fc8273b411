/* test_sim_faults.c - loss, bursts, jitter, reorder, duplicates, damage, blackholes and background traffic of the
 * simulated network: how often, how large, and that one setting never disturbs another's decisions. */
#include "sim_fixture.h"

#define MANY 20000

/* Sends `count` frames 0 -> 1 and as many 0 -> 2, one of each per microsecond, and reads the log of the former. */
static uint64_t run(const char *options, const char *other, uint32_t count, tb_sim_log *log, uint64_t cap) {
  sim_fixture s = sim_up(3, "rate=0 delay=50us log=1");
  sim_set(&s, 0, 1, options);
  if (other) sim_set(&s, 0, 2, other);
  for (uint32_t i = 0; i < count; i++) {
    uint8_t h[64] = {[20] = (uint8_t)(i >> 24), (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
    for (uint32_t dst = 1; dst <= (other ? 2 : 1); dst++) {
      tb_tx tx = {.peer = dst, .head = h, .head_len = sizeof h};
      assert_int_equal(L.tx_burst(s.at[0], 0, &tx, 1), 1);
    }
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 1000);
  }
  tb_sim_run_until(s.net, FAR);
  tb_sim_log line;
  uint64_t n = 0;
  for (uint64_t i = 0; tb_sim_log_read(s.net, i, &line, 1) == 1; i++)
    if (line.dst == 1) {
      assert_true(n < cap);
      log[n++] = line;
    }
  sim_down(&s);
  return n;
}

static tb_sim_log a[2 * MANY], b[2 * MANY];
static uint8_t lost_a[MANY], lost_b[MANY];

static uint32_t losses(const tb_sim_log *log, uint64_t n, uint8_t *lost) {
  uint32_t sum = 0;
  memset(lost, 0, MANY);
  for (uint64_t i = 0; i < n; i++)
    if (log[i].fate == 1) sum += lost[log[i].chunk] = 1;
  return sum;
}

static void loss__has_the_asked_rate(void **state) {
  (void)state;
  uint64_t n = run("loss=0.02", NULL, MANY, a, MANY);
  assert_int_equal(n, MANY);
  assert_in_range(losses(a, n, lost_a), 320, 480); /* 400 +- 4 sigma */
  n = run("loss=1", NULL, 100, a, MANY);
  assert_int_equal(losses(a, n, lost_a), 100);
}

static void loss__is_the_seeds_alone(void **state) {
  (void)state;
  uint64_t n = run("loss=0.1", NULL, MANY, a, MANY), m = run("loss=0.1", NULL, MANY, b, MANY);
  assert_int_equal(n, m);
  assert_memory_equal(a, b, n * sizeof *a);
  sim_fixture s = sim_up(2, "seed=2 rate=0 delay=0 log=1 loss=0.1 tx_ring=1024");
  sim_fixture t = sim_up(2, "seed=3 rate=0 delay=0 log=1 loss=0.1 tx_ring=1024");
  for (uint32_t i = 0; i < 1000; i++) {
    assert_int_equal(sim_send(&s, 0, 1, i, 64), 1);
    assert_int_equal(sim_send(&t, 0, 1, i, 64), 1);
  }
  tb_sim_run_until(s.net, 1);
  tb_sim_run_until(t.net, 1);
  assert_int_equal(sim_log(&s, a, MANY), 1000);
  assert_int_equal(sim_log(&t, b, MANY), 1000);
  assert_memory_not_equal(a, b, 1000 * sizeof *a);
  sim_down(&s);
  sim_down(&t);
}

static void loss__is_not_moved_by_other_settings_or_directions(void **state) {
  (void)state;
  uint64_t n = run("loss=0.05", NULL, MANY, a, MANY);
  uint32_t sum = losses(a, n, lost_a);
  n = run("loss=0.05 jitter=30us dup=0.2 corrupt=0.1 truncate=0.1 reorder=0.1 reorder_by=9us tail_p=.1 tail=1ms",
          "loss=0.3 ge_p=0.1 jitter=1ms", MANY, b, 2 * MANY);
  assert_int_equal(losses(b, n, lost_b), sum);
  assert_memory_equal(lost_a, lost_b, MANY);
}

static void loss__differs_between_directions(void **state) {
  (void)state;
  sim_fixture s = sim_up(3, "rate=0 delay=0 log=1 loss=0.5 tx_ring=1024");
  static const uint8_t pair[][2] = {{0, 1}, {0, 2}, {1, 0}, {2, 1}};
  uint64_t pattern[4] = {0};
  for (int p = 0; p < 4; p++)
    for (uint32_t i = 0; i < 64; i++) assert_int_equal(sim_send(&s, pair[p][0], pair[p][1], i, 64), 1);
  tb_sim_run_until(s.net, 1);
  uint64_t n = sim_log(&s, a, MANY);
  assert_int_equal(n, 256);
  for (int p = 0; p < 4; p++)
    for (uint64_t i = 0; i < n; i++)
      if (a[i].src == pair[p][0] && a[i].dst == pair[p][1]) pattern[p] = pattern[p] << 1 | a[i].fate;
  for (int p = 0; p < 4; p++)
    for (int q = 0; q < p; q++) assert_in_range(__builtin_popcountll(pattern[p] ^ pattern[q]), 16, 48);
  sim_down(&s);
}

static void gilbert_elliott__loses_in_bursts(void **state) {
  (void)state;
  /* In the bad state 1/51 of the time, for 10 frames on average, losing 4 of 5. */
  uint64_t n = run("ge_p=0.002 ge_r=0.1 ge_loss=0.8", NULL, MANY, a, MANY);
  uint32_t sum = losses(a, n, lost_a), pairs = 0;
  for (uint32_t i = 1; i < MANY; i++) pairs += lost_a[i - 1] & lost_a[i];
  assert_in_range(sum, MANY / 51 * 8 / 10 / 2, MANY / 51 * 8 / 10 * 2);
  double again = (double)pairs / sum; /* P(lost | the one before was) = 0.9 * 0.8; independent loss would give 0.016 */
  if (again < 0.6 || again > 0.85) fail_msg("P(loss after loss) = %.3f", again);
}

static void jitter__is_uniform_within_its_bound(void **state) {
  (void)state;
  uint64_t n = run("jitter=10us", NULL, MANY, a, MANY);
  double sum = 0;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t extra = a[i].arrived_ns - a[i].sent_ns - 50000;
    assert_in_range(extra, 0, 10000);
    sum += (double)extra;
  }
  assert_in_range((uint64_t)(sum / (double)n), 4900, 5100);
}

static void tail__is_rare_exponential_delay(void **state) {
  (void)state;
  uint64_t n = run("tail_p=0.1 tail=200us", NULL, MANY, a, MANY);
  double sum = 0;
  uint32_t late = 0, beyond = 0;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t extra = a[i].arrived_ns - a[i].sent_ns - 50000;
    late += extra > 0;
    beyond += extra > 200000;
    sum += (double)extra;
  }
  assert_in_range(late, 1800, 2200);
  assert_in_range((uint64_t)(sum / late), 180000, 220000);
  assert_in_range(beyond * 1000 / late, 320, 420); /* 1/e of them exceed the mean */
}

static void reorder__delays_some_frames_past_their_followers(void **state) {
  (void)state;
  uint64_t n = run("reorder=0.1 reorder_by=5500ns", NULL, MANY, a, MANY);
  uint32_t late = 0, overtaken = 0;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t extra = a[i].arrived_ns - a[i].sent_ns - 50000;
    assert_true(extra == 0 || extra == 5500);
    late += extra > 0;
    overtaken += i && a[i].chunk < a[i - 1].chunk;
  }
  assert_in_range(late, 1800, 2200);
  assert_in_range(overtaken, 1500, 2200);
}

static void dup__adds_marked_copies(void **state) {
  (void)state;
  uint64_t n = run("dup=0.25", NULL, MANY, a, 2 * MANY);
  uint32_t copies = 0, originals = 0;
  for (uint64_t i = 0; i < n; i++) {
    assert_int_equal(a[i].fate, 0);
    if (a[i].copy) copies++;
    else originals++;
  }
  assert_int_equal(originals, MANY);
  assert_in_range(copies, 4700, 5300);
}

/* Sends one 200-byte frame of ones through a network that damages every frame; what came, or -1. */
static int64_t damaged(sim_fixture *s, uint8_t *out) {
  assert_int_equal(sim_send(s, 0, 1, 0x01010101, 200), 1);
  tb_sim_run_until(s->net, tb_sim_now(s->net) + 1000);
  tb_rx rx;
  int n = L.rx_burst(s->at[1], 0, &rx, 1);
  if (n == 1) memcpy(out, rx.data, rx.len);
  L.rx_release(s->at[1], 0);
  return n == 1 ? (int64_t)rx.len : -1;
}

static void corrupt__changes_one_byte_or_is_caught_by_the_link(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=0 delay=0 corrupt=1 log=1");
  uint8_t got[200];
  tb_sim_log line;
  for (int i = 0; i < 300; i++) {
    int wrong = 0;
    assert_int_equal(damaged(&s, got), 200);
    for (int j = 0; j < 200; j++) wrong += got[j] != 1;
    assert_int_equal(wrong, 1);
  }
  assert_int_equal(tb_sim_log_read(s.net, 299, &line, 1), 1);
  assert_int_equal(line.fate, 3);
  assert_int_equal(line.arrived_ns, line.sent_ns);
  assert_false(L.caps(s.at[1])->csum);
  sim_down(&s);
  s = sim_up(2, "rate=0 delay=0 corrupt=1 csum=1 log=1");
  tb_sim_run_until(s.net, 5);
  assert_int_equal(damaged(&s, got), -1);
  assert_int_equal(sim_log(&s, &line, 1), 1);
  assert_int_equal(line.fate, 3);
  assert_int_equal(line.arrived_ns, 0);
  assert_true(L.caps(s.at[1])->csum);
  sim_down(&s);
}

static void truncate__shortens_or_is_caught_by_the_link(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=0 delay=0 truncate=1 log=1");
  uint8_t got[200];
  tb_link_stats stats;
  int64_t longest = 0, shortest = 200;
  for (int i = 0; i < 300; i++) {
    int64_t len = damaged(&s, got);
    assert_in_range(len, 0, 199);
    for (int j = 0; j < len; j++) assert_int_equal(got[j], 1);
    if (len > longest) longest = len;
    if (len < shortest) shortest = len;
  }
  assert_in_range(longest, 190, 199);
  assert_in_range(shortest, 0, 10);
  assert_int_equal(L.stats(s.at[1], &stats), 0);
  assert_true(stats.rx_truncated == TB_NONE); /* it cannot tell, so it must not say 0 */
  sim_down(&s);
  s = sim_up(2, "rate=0 delay=0 truncate=1 csum=1");
  assert_int_equal(damaged(&s, got), -1);
  assert_int_equal(L.stats(s.at[1], &stats), 0);
  assert_int_equal(stats.rx_truncated, 1);
  sim_down(&s);
}

static void blackhole__swallows_one_direction_until_it_is_lifted(void **state) {
  (void)state;
  sim_fixture s = sim_up(3, "rate=0 delay=0 log=1");
  tb_sim_log log[4];
  sim_set(&s, 0, 1, "blackhole=1");
  assert_int_equal(sim_send(&s, 0, 1, 1, 64), 1);
  assert_int_equal(sim_send(&s, 1, 0, 2, 64), 1);
  L.close(s.at[2]);
  assert_int_equal(sim_send(&s, 1, 2, 3, 64), 1); /* nobody is there */
  tb_sim_run_until(s.net, 1);
  sim_set(&s, 0, 1, "blackhole=0");
  assert_int_equal(sim_send(&s, 0, 1, 4, 64), 1);
  tb_sim_run_until(s.net, 2);
  assert_int_equal(sim_log(&s, log, 4), 4);
  static const uint8_t want[] = {5, 0, 5, 0};
  for (int i = 0; i < 4; i++) assert_int_equal(log[i].fate, want[i]);
  assert_int_equal(sim_take(&s, 0, NULL), 2);
  assert_int_equal(sim_take(&s, 1, NULL), 4);
  tb_sim_port port = {s.net, 2};
  tb_link_cfg cfg = {.context = &port, .peers = 3};
  assert_int_equal(L.open(&cfg, &s.at[2]), 0);
  sim_down(&s);
}

/* Sends 4 bytes 0 -> 1 every `every` ns for 20 ms past whatever background the port has; trip[i] is the i-th one's, 0
 * if it was dropped. Of a line of 100 Gb/s these probes themselves take next to nothing. */
static uint32_t probe(const char *background, uint64_t every, uint64_t *trip) {
  sim_fixture s = sim_up(2, "rate=100G delay=1us queue=400k mtu=1472 log=1");
  sim_set(&s, 1, -1, background);
  uint32_t n = 0;
  for (uint64_t t = 0; t < 20000000; t += every, n++) {
    tb_sim_run_until(s.net, t);
    assert_int_equal(sim_send(&s, 0, 1, n, 4), 1);
    L.rx_burst(s.at[1], 0, (tb_rx[32]){0}, 32);
    L.rx_release(s.at[1], 0);
  }
  tb_sim_run_until(s.net, FAR);
  tb_sim_log line;
  for (uint64_t i = 0; tb_sim_log_read(s.net, i, &line, 1) == 1; i++)
    trip[line.sent_ns / every] = line.arrived_ns ? line.arrived_ns - line.sent_ns : 0;
  sim_down(&s);
  return n;
}

static uint64_t few[MANY], many[MANY];

static void background__takes_its_share_of_the_port(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=10G delay=1us queue=100k tx_ring=4096");
  sim_set(&s, 1, -1, "bg_rate=10G bg_on=1ms bg_off=0");
  uint64_t sent = 0, got = 0;
  while (sent < 4000) { /* both offer the whole line; who gets how much of it is drop-tail's whim */
    sent += sim_send(&s, 0, 1, (uint32_t)sent, 1472) == 1;
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 1178);
    while (sim_take(&s, 1, NULL) >= 0) got++;
  }
  assert_in_range(got, 1000, 3000);
  sim_set(&s, 1, -1, "bg_rate=0");
  tb_sim_run_until(s.net, tb_sim_now(s.net) + 1000000);
  while (sim_take(&s, 1, NULL) >= 0) got++;
  for (sent = got = 0; sent < 1000;) {
    sent += sim_send(&s, 0, 1, (uint32_t)sent, 1472) == 1;
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 1178);
    while (sim_take(&s, 1, NULL) >= 0) got++;
  }
  assert_in_range(got, 990, 1000);
  sim_down(&s);
}

static void background__comes_in_bursts_that_fill_the_queue(void **state) {
  (void)state;
  uint32_t n = probe("bg_rate=200G bg_on=200us bg_off=300us", 2000, many), idle = 0, begun = 0;
  uint64_t longest = 0;
  for (uint32_t i = 0; i < n; i++) {
    idle += many[i] > 0 && many[i] < 1100;
    begun += i && many[i] > 1100 && many[i - 1] && many[i - 1] < 1100;
    if (many[i] > longest) longest = many[i];
  }
  assert_in_range(idle * 100 / n, 40, 70);   /* off 3/5 of the time, less what a full queue of 33 us takes to drain */
  assert_in_range(begun, 20, 60);            /* 40 bursts are expected; one may be between two probes */
  assert_in_range(longest, 32000, 34500);    /* 400 KiB at 100 Gb/s, and the trip */
}

static void background__is_the_seeds_alone_whoever_looks(void **state) {
  (void)state;
  const char *bursts = "bg_rate=200G bg_on=30us bg_off=300us";
  uint32_t n = probe(bursts, 100000, few), differs = 0, waits = 0;
  probe(bursts, 1000, many);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t x = few[i], y = many[100 * i];
    waits += x > 1100;
    differs += (x > y ? x - y : y - x) > 300; /* what the probes between them took */
  }
  assert_in_range(waits, n / 20, n / 2);
  assert_int_equal(differs, 0);
}

static void background__is_set_for_endpoints_and_checked(void **state) {
  (void)state;
  tb_sim *net;
  char error[256];
  assert_int_equal(tb_sim_new(2, "bg_rate=1G", &net, error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_new(2, "", &net, error, sizeof error), 0);
  assert_int_equal(tb_sim_set(net, 0, 1, "bg_rate=1G", error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_set(net, 0, -1, "bg_rate=1G bg_on=0", error, sizeof error), -EINVAL); /* would never end */
  assert_int_equal(tb_sim_next(net), UINT64_MAX);
  assert_int_equal(tb_sim_set(net, -1, -1, "bg_rate=1G", error, sizeof error), 0);
  assert_int_equal(tb_sim_next(net), UINT64_MAX); /* it keeps nobody awake */
  tb_sim_free(net);
}

/* Everything at once: what was sent is accounted for once, and what rx_burst gave is what the log says. */
static void log__accounts_for_every_frame(void **state) {
  (void)state;
  sim_fixture s = sim_up(4, "seed=11 log=1 poison=1 rate=1G queue=20k rx_buffer=30k loss=.05 ge_p=.01 ge_r=.2 dup=.1 "
                            "corrupt=.05 truncate=.05 jitter=50us reorder=.1 reorder_by=100us tail_p=.01 tail=1ms "
                            "tx_ring=64");
  print_message("seed 11\n");
  sim_set(&s, 0, 3, "blackhole=1");
  uint64_t sent = 0, got = 0;
  for (uint32_t step = 0; step < 3000; step++) {
    uint32_t src = step % 4;
    if (step == 1000) sim_set(&s, 2, -1, "pause=20ms");
    for (uint32_t i = 0; i < 6; i++) sent += sim_send(&s, src, (src + 1 + i % 3) % 4, i, 64 + step % 1400) == 1;
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 10000);
    for (uint32_t at = 0; at < 4; at++) {
      tb_rx rx[16];
      if (tb_sim_paused(s.net, at) || !tb_sim_readable(s.net, at)) continue;
      got += (uint64_t)L.rx_burst(s.at[at], 0, rx, 16);
      L.rx_release(s.at[at], 0);
    }
  }
  tb_sim_run_until(s.net, FAR);
  tb_rx rx[256];
  for (uint32_t at = 0; at < 4; at++)
    for (int n; (n = L.rx_burst(s.at[at], 0, rx, 256)) > 0;) got += (uint64_t)n;
  uint64_t n = sim_log(&s, a, 2 * MANY), originals = 0, delivered = 0, fates[7] = {0};
  for (uint64_t i = 0; i < n; i++) {
    originals += !a[i].copy;
    delivered += a[i].arrived_ns != 0;
    fates[a[i].fate]++;
    if (i) assert_true(a[i].arrived_ns == 0 || a[i].arrived_ns >= a[i].sent_ns);
  }
  assert_int_equal(originals, sent);
  assert_int_equal(delivered, got);
  for (int f = 0; f < 7; f++)
    if (!fates[f]) fail_msg("fate %d never happened", f);
  sim_down(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(loss__has_the_asked_rate),
    cmocka_unit_test(loss__is_the_seeds_alone),
    cmocka_unit_test(loss__is_not_moved_by_other_settings_or_directions),
    cmocka_unit_test(loss__differs_between_directions),
    cmocka_unit_test(gilbert_elliott__loses_in_bursts),
    cmocka_unit_test(jitter__is_uniform_within_its_bound),
    cmocka_unit_test(tail__is_rare_exponential_delay),
    cmocka_unit_test(reorder__delays_some_frames_past_their_followers),
    cmocka_unit_test(dup__adds_marked_copies),
    cmocka_unit_test(corrupt__changes_one_byte_or_is_caught_by_the_link),
    cmocka_unit_test(truncate__shortens_or_is_caught_by_the_link),
    cmocka_unit_test(blackhole__swallows_one_direction_until_it_is_lifted),
    cmocka_unit_test(background__takes_its_share_of_the_port),
    cmocka_unit_test(background__comes_in_bursts_that_fill_the_queue),
    cmocka_unit_test(background__is_the_seeds_alone_whoever_looks),
    cmocka_unit_test(background__is_set_for_endpoints_and_checked),
    cmocka_unit_test(log__accounts_for_every_frame),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
