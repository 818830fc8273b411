/* test_device.c - what becomes of a link when its device, its peers or its process do something unusual. Three devices
 * as tests/guest/rdma-net.sh makes them: rxe<i> on v<i> with 10.7.0.<i+1>. */
#include "device.h"
#include <dirent.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static tb_link *a, *b;

static int make_two(void **state) {
  (void)state;
  a = open_at("rxe0");
  b = open_at("rxe1");
  introduce(a, 1, b);
  introduce(b, 0, a);
  return 0;
}

static int close_two(void **state) {
  (void)state;
  if (a) OPS->close(a);
  if (b) OPS->close(b);
  a = b = NULL;
  return 0;
}

static void both_ways(void) {
  assert_int_equal(send_text(a, 1, "there"), 1);
  expect_text(b, "there");
  assert_int_equal(send_text(b, 0, "and back"), 1);
  expect_text(a, "and back");
  balanced(a);
  balanced(b);
}

static void broken__queue_pair_is_cycled_and_keeps_its_number(void **state) {
  (void)state;
  verbs_link *l = verbs_of(a);
  uint32_t number = l->qp->qp_num;
  both_ways();
  struct ibv_qp_attr to_error = {.qp_state = IBV_QPS_ERR};
  assert_int_equal(ibv_modify_qp(l->qp, &to_error, IBV_QP_STATE), 0);
  assert_int_equal(send_text(a, 1, "lost"), 1); /* flushed: that tells */
  for (int i = 0; i < 200 && !atomic_load(&l->n.cycles); i++) {
    OPS->wait(a, 0, verbs_now() + 10 * MS);
    assert_true(send_text(a, 1, "lost") >= 0);
    verbs_tx_poll(l);
  }
  assert_true(atomic_load(&l->n.cycles) >= 1);
  assert_int_equal(l->qp->qp_num, number);
  uint8_t data[4096];
  while (receive_one(b, data, 100 * MS)) continue; /* those sent after the cycle */
  both_ways();
  assert_int_equal(l->down_until, 0);
}

static void port__down_and_up_is_told_and_frames_flow_again(void **state) {
  (void)state;
  both_ways();
  run("ip link set v1 down");
  expect_event(b, "went down", 5000 * MS);
  for (int i = 0; i < 10; i++) assert_true(send_text(a, 1, "into the void") >= 0);
  run("ip link set v1 up");
  expect_event(b, "is up", 5000 * MS);
  uint64_t until = verbs_now() + 10000 * MS;
  uint8_t data[4096];
  while (verbs_now() < until) { /* the neighbour has to be found again */
    assert_true(send_text(a, 1, "again") >= 0);
    if (receive_one(b, data, 50 * MS)) break;
  }
  while (receive_one(b, data, 100 * MS)) continue;
  both_ways();
}

static void peer__that_nobody_is_is_told_and_found_once_it_comes(void **state) {
  (void)state;
  tb_addr addr = address(b);
  addr.bytes[31] = 77; /* 10.7.0.77 */
  run("ip neigh flush to 10.7.0.77");
  assert_int_equal(OPS->peer_add(a, 5, &addr), 0);
  assert_int_equal(OPS->peer_state(a, 5), -EINPROGRESS);
  assert_int_equal(send_text(a, 5, "nobody"), 1);
  both_ways(); /* others do not wait for it */
  expect_event(a, "10.7.0.77 cannot be reached", 15000 * MS);
  assert_true(OPS->peer_state(a, 5) < 0);
  run("ip addr add 10.7.0.77/24 dev v1");
  int state_then = state_of(a, 5, 20000 * MS);
  run("ip addr del 10.7.0.77/24 dev v1");
  assert_int_equal(state_then, 0);
}

static void peer__restarted_has_another_queue_pair(void **state) {
  (void)state;
  tb_addr old = address(b);
  both_ways();
  OPS->close(b);
  assert_int_equal(send_text(a, 1, "nobody hears this"), 1);
  b = open_at("rxe1");
  tb_addr now = address(b);
  assert_memory_not_equal(old.bytes, now.bytes, now.len);
  introduce(b, 0, a);
  assert_int_equal(OPS->peer_set(a, 1, &now), 0);
  assert_int_equal(OPS->peer_state(a, 1), 0); /* at once: the address is the same */
  both_ways();
  expect_nothing(b);
}

/* Frames of an earlier run or of a stranger do not know the key. */
static void peer__with_a_wrong_key_is_not_heard(void **state) {
  (void)state;
  tb_addr addr = address(b);
  addr.bytes[11] ^= 2;
  assert_int_equal(OPS->peer_set(a, 1, &addr), 0);
  assert_int_equal(send_text(a, 1, "let me in"), 1);
  expect_nothing(b);
  addr.bytes[11] ^= 2;
  assert_int_equal(OPS->peer_set(a, 1, &addr), 0);
  both_ways();
}

static void flood__beyond_all_buffers_loses_frames_and_no_buffer(void **state) {
  (void)state;
  enum { FRAMES = 1500 };
  verbs_link *l = verbs_of(b);
  uint8_t pay[512] = {0}, data[4096];
  uint64_t until = verbs_now() + 20000 * MS;
  uint32_t sent = 0, came = 0;
  while (sent < FRAMES && verbs_now() < until) {
    tb_tx tx[64];
    for (uint32_t i = 0; i < 64; i++) tx[i] = frame_to(1, "flood", 5, pay, sizeof pay);
    int k = OPS->tx_burst(a, 0, tx, 64);
    assert_true(k >= 0);
    sent += (uint32_t)k;
    if (k < 64) OPS->wait(a, 0, verbs_now() + 20 * MS);
  }
  assert_true(sent >= FRAMES);
  while (receive_one(b, data, 300 * MS)) came++;
  assert_in_range(came, l->rx.count, sent - 1);
  balanced(b);
  both_ways();
}

static void peers__64_of_them_share_one_queue_pair(void **state) {
  (void)state;
  enum { PEERS = 64 };
  uint32_t came = 0;
  uint8_t data[4096];
  tb_addr at_a = address(a), at_b = address(b);
  for (uint32_t p = 0; p < PEERS; p++) assert_int_equal(OPS->peer_add(a, 10 + p, p % 2 ? &at_a : &at_b), 0);
  uint32_t handles = 0;
  for (const verbs_route *r = verbs_of(a)->routes; r; r = r->next) handles++;
  assert_int_equal(handles, 2); /* one for each address, however many peers are there */
  assert_true(sizeof(verbs_peer) <= 48);
  assert_int_equal(state_of(a, 10, 5000 * MS) | state_of(a, 11, 5000 * MS), 0);
  for (uint32_t p = 0; p < PEERS; p++) assert_int_equal(send_text(a, 10 + p, "one"), 1);
  while (came < PEERS && (receive_one(a, data, 200 * MS) || receive_one(b, data, 200 * MS))) came++;
  assert_int_equal(came, PEERS);
}

static void fork__a_child_that_closes_takes_nothing_from_its_parent(void **state) {
  (void)state;
  int status = -1;
  both_ways();
  pid_t child = fork();
  if (!child) {
    OPS->close(a);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  both_ways();
}

static uint32_t files(void) {
  uint32_t n = 0;
  DIR *dir = opendir("/proc/self/fd");
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

static void close__gives_everything_back(void **state) {
  (void)state;
  tb_link *one = open_at("rxe2");
  OPS->close(one);
  uint32_t before = files();
  assert_int_equal(pinned(), 0);
  for (int i = 0; i < 10; i++) {
    one = open_at("rxe2");
    introduce(one, 0, one);
    assert_int_equal(send_text(one, 0, "me"), 1);
    expect_text(one, "me");
    assert_true(pinned() > 0);
    OPS->close(one);
  }
  assert_int_equal(files(), before);
  assert_int_equal(pinned(), 0);
}

/* In a child: what it gives up it cannot have back. */
static void memlock__of_64_kib_without_the_capability_is_refused_before(void **state) {
  (void)state;
  int status = -1;
  pid_t child = fork();
  if (!child) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    tb_link_cfg cfg = config("rxe0");
    tb_link *link;
    syscall(SYS_capget, &head, caps);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &head, caps) || setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){65536, 65536})) _exit(2);
    if (OPS->open(&cfg, &link) != -ENOMEM) _exit(3);
    _exit(strstr(error, "ulimit -l unlimited") && strstr(error, "may lock 64 KiB") ? 0 : 4);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void open__by_address_and_of_what_is_not_there(void **state) {
  (void)state;
  tb_link_cfg cfg = config("10.7.0.3");
  tb_link *link = NULL;
  char text[400];
  assert_int_equal(OPS->open(&cfg, &link), 0);
  assert_int_equal(OPS->describe(link, text, sizeof text), 0);
  assert_non_null(strstr(text, "rxe2 port 1 (RoCE v2 on v2)"));
  OPS->close(link);
  cfg = config("rxe9");
  assert_int_equal(OPS->open(&cfg, &link), -ENODEV);
  cfg = config("");
  assert_int_equal(OPS->open(&cfg, &link), -EINVAL);
  assert_non_null(strstr(error, "rxe0:1; rxe1:1; rxe2:1"));
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, make_two, close_two)
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(open__by_address_and_of_what_is_not_there),
      cmocka_unit_test(memlock__of_64_kib_without_the_capability_is_refused_before),
      cmocka_unit_test(close__gives_everything_back),
      TWO(broken__queue_pair_is_cycled_and_keeps_its_number),
      TWO(port__down_and_up_is_told_and_frames_flow_again),
      TWO(peer__that_nobody_is_is_told_and_found_once_it_comes),
      TWO(peer__restarted_has_another_queue_pair),
      TWO(peer__with_a_wrong_key_is_not_heard),
      TWO(flood__beyond_all_buffers_loses_frames_and_no_buffer),
      TWO(peers__64_of_them_share_one_queue_pair),
      TWO(fork__a_child_that_closes_takes_nothing_from_its_parent),
  };
  return cmocka_run_group_tests_name("verbs device", tests, NULL, NULL);
}
