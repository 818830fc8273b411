/* Tests of plugins/dpdk/port.c and ring.c on virtual devices: rings, null, memif and pcap anywhere; af_packet and af_xdp
 * on veths in a network namespace of this program, which goes away with it. */
#include "plugins/dpdk/dpdk.h"
#include "leaks.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sched.h>
#include <spawn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static char error[DPDK_ERROR], dir[] = "/tmp/tb_port_XXXXXX";

static void device(const char *spec, dpdk_device *d) {
  int rc = dpdk_device_parse(spec, 0, d, error, sizeof error);
  if (rc) fail_msg("%s: %d %s", spec, rc, error);
}

static int try_open(const char *spec, uint32_t mtu, dpdk_port **p) {
  dpdk_device d;
  dpdk_eal_args args;
  tb_link_cfg cfg = {.hugepages = TB_HUGE_OFF};
  device(spec, &d);
  int rc = dpdk_preflight(&d, &cfg, &args, error, sizeof error);
  if (!rc) rc = dpdk_eal_start(&args, error, sizeof error);
  dpdk_wish wish = {.ip_mtu = mtu, .busy = true};
  return rc ? rc : dpdk_port_open(&d, &wish, p, error, sizeof error);
}

static dpdk_port *open_port(const char *spec) {
  dpdk_port *p = NULL;
  int rc = try_open(spec, 0, &p);
  if (rc) fail_msg("%s: %d %s", spec, rc, error);
  return p;
}

static void expect(const char *word) {
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

/* A broadcast of an EtherType of our own. */
static void fill(uint8_t *f, uint32_t len, uint8_t mark) {
  memset(f, 0xff, 6);
  memset(f + 6, 2, 6);
  f[12] = 0x88, f[13] = 0xb5;
  memset(f + 14, mark, len - 14);
}

static void send_one(dpdk_port *p, uint32_t len, uint8_t mark) {
  struct rte_mbuf *m = rte_pktmbuf_alloc(p->tx_pool);
  assert_non_null(m);
  uint8_t *f = (uint8_t *)rte_pktmbuf_append(m, (uint16_t)len);
  assert_non_null(f);
  fill(f, len, mark);
  assert_int_equal(rte_eth_tx_burst(p->id, 0, &m, 1), 1);
}

/* Frames of our EtherType that come within ms; the length and the mark of the last. */
static int receive(dpdk_port *p, int ms, int wanted, uint32_t *len, uint8_t *mark) {
  int got = 0;
  for (uint64_t until = dpdk_now() + (uint64_t)ms * 1000000; got < wanted && dpdk_now() < until;) {
    struct rte_mbuf *m[32];
    uint16_t n = rte_eth_rx_burst(p->id, 0, m, 32);
    for (uint16_t i = 0; i < n; i++) {
      const uint8_t *f = rte_pktmbuf_mtod(m[i], const uint8_t *);
      if (f[12] == 0x88 && f[13] == 0xb5) got++, *len = rte_pktmbuf_pkt_len(m[i]), *mark = f[20];
      rte_pktmbuf_free(m[i]);
    }
    if (!n) usleep(200);
  }
  return got;
}

static int kernel_socket(const char *iface) {
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(0x88b5));
  struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(0x88b5)};
  to.sll_ifindex = (int)if_nametoindex(iface);
  struct timeval limit = {2, 0};
  assert_true(fd >= 0 && to.sll_ifindex);
  assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  return fd;
}

static int count_fds(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static long resident_kb(void) {
  long all, mine = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  assert_int_equal(fscanf(f, "%ld %ld", &all, &mine), 2);
  fclose(f);
  return mine * (sysconf(_SC_PAGESIZE) / 1024);
}

static void cycles(const char *spec, int count) {
  dpdk_port *p = open_port(spec), *first = p;
  dpdk_port_park(p);
  for (int i = 0; i < count; i++) dpdk_port_park(open_port(spec)); /* allocators settle, the sanitizer's too */
  int fds = count_fds();
  long kb = resident_kb();
  for (int i = 0; i < count; i++) {
    p = open_port(spec);
    assert_ptr_equal(p, first);
    dpdk_port_park(p);
  }
  long grew = resident_kb() - kb;
  int more = count_fds() - fds;
  print_message("%s: %d cycles, %d file descriptors and %ld kB more\n", spec, count, more, grew);
  assert_int_equal(more, 0);
  assert_true(grew < 1024);
}

static void ring__carries_between_its_ends(void **state) {
  (void)state;
  uint32_t len = 0;
  uint8_t mark = 0;
  dpdk_port *a = open_port("ring:one"), *b = open_port("ring:one"), *c;
  assert_ptr_not_equal(a, b);
  assert_true(memcmp(&a->mac, &b->mac, 6));
  assert_int_equal(a->mac.b[0] & 3, 2);
  assert_int_equal(a->ip_mtu, 9000);
  assert_int_equal(try_open("ring:one", 0, &c), -EBUSY);
  send_one(a, 9014, 1);
  assert_int_equal(receive(b, 1000, 1, &len, &mark), 1);
  assert_int_equal(len, 9014);
  send_one(b, 60, 2);
  assert_int_equal(receive(a, 1000, 1, &len, &mark), 1);
  assert_int_equal(mark, 2);
  assert_int_equal(receive(b, 5, 1, &len, &mark), 0);
  dpdk_port_park(a);
  dpdk_port_park(b);
}

static void ring__what_came_while_parked_is_thrown_away(void **state) {
  (void)state;
  uint32_t len;
  uint8_t mark;
  dpdk_port *a = open_port("ring:two"), *b = open_port("ring:two");
  unsigned there = rte_mempool_avail_count(a->tx_pool);
  dpdk_port_park(b);
  for (int i = 0; i < 100; i++) send_one(a, 100, 3);
  assert_int_equal(rte_mempool_avail_count(a->tx_pool), there - 100);
  assert_ptr_equal(open_port("ring:two"), b);
  assert_int_equal(rte_mempool_avail_count(a->tx_pool), there);
  assert_int_equal(receive(b, 5, 1, &len, &mark), 0);
  send_one(a, 100, 4);
  assert_int_equal(receive(b, 1000, 1, &len, &mark), 1);
  assert_int_equal(mark, 4);
  dpdk_port_park(a);
  dpdk_port_park(b);
}

static void open__twice_is_refused_until_parked(void **state) {
  (void)state;
  dpdk_port *p = open_port("net_null0"), *q = NULL;
  assert_int_equal(try_open("net_null0", 0, &q), -EBUSY);
  expect("net_null0 is open already");
  dpdk_port_park(p);
  assert_ptr_equal(open_port("net_null0"), p);
  dpdk_port_park(p);
}

static void open__says_what_dpdk_says(void **state) {
  (void)state;
  dpdk_port *p = NULL;
  assert_int_equal(try_open("net_nosuch0", 0, &p) < 0, 1);
  expect("probing of net_nosuch0 failed");
  expect("EAL: ");
  assert_null(p);
}

static void open__another_device_of_a_name_replaces_it(void **state) {
  (void)state;
  dpdk_port *p = open_port("net_null1,size=64");
  struct rte_mbuf *m;
  assert_int_equal(rte_eth_rx_burst(p->id, 0, &m, 1), 1);
  assert_int_equal(rte_pktmbuf_pkt_len(m), 64);
  rte_pktmbuf_free(m);
  dpdk_port_park(p);
  p = open_port("net_null1,size=200");
  assert_int_equal(rte_eth_rx_burst(p->id, 0, &m, 1), 1);
  assert_int_equal(rte_pktmbuf_pkt_len(m), 200);
  rte_pktmbuf_free(m);
  dpdk_port_park(p);
}

static void restart__takes_time_and_works_again(void **state) {
  (void)state;
  uint64_t took = 0;
  struct rte_mbuf *m;
  dpdk_port *p = open_port("net_null0");
  assert_int_equal(dpdk_port_restart(p, &took), 0);
  assert_true(took > 0);
  assert_int_equal(rte_eth_rx_burst(p->id, 0, &m, 1), 1);
  rte_pktmbuf_free(m);
  dpdk_port_park(p);
}

static void af_packet__whole_frames_both_ways(void **state) {
  (void)state;
  uint8_t frame[9100], mark = 0;
  uint32_t len = 0;
  dpdk_port *p = open_port("af_packet:tba0");
  assert_int_equal(p->ip_mtu, 9000);
  assert_int_equal(p->rx_frames, 2048);
  assert_false(p->tx_sum || p->rx_sum || p->rx_interrupts);
  int fd = kernel_socket("tba1");
  send_one(p, 9014, 5);
  assert_int_equal(recv(fd, frame, sizeof frame, 0), 9014);
  assert_int_equal(frame[9013], 5);
  fill(frame, 9014, 6);
  assert_int_equal(send(fd, frame, 9014, 0), 9014);
  assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
  assert_int_equal(len, 9014);
  assert_int_equal(mark, 6);
  close(fd);
  dpdk_port_park(p);
}

static void af_packet__ring_is_as_deep_as_told(void **state) {
  (void)state;
  uint8_t frame[1014], mark = 0;
  uint32_t len = 0;
  dpdk_port *p = open_port("af_packet:tba0");
  int fd = kernel_socket("tba1");
  fill(frame, sizeof frame, 7);
  for (uint32_t i = 0; i < p->rx_frames - 64; i++) assert_int_equal(send(fd, frame, sizeof frame, 0), sizeof frame);
  assert_int_equal(receive(p, 2000, (int)p->rx_frames - 64, &len, &mark), (int)p->rx_frames - 64);
  close(fd);
  dpdk_port_park(p);
}

static void af_packet__stale_frames_are_gone_after_parking(void **state) {
  (void)state;
  uint8_t frame[100], mark = 0;
  uint32_t len = 0;
  dpdk_port *p = open_port("af_packet:tba0");
  int fd = kernel_socket("tba1");
  dpdk_port_park(p);
  fill(frame, sizeof frame, 8);
  for (int i = 0; i < 50; i++) assert_int_equal(send(fd, frame, sizeof frame, 0), sizeof frame);
  assert_ptr_equal(open_port("af_packet:tba0"), p);
  assert_int_equal(receive(p, 50, 1, &len, &mark), 0);
  fill(frame, sizeof frame, 9);
  assert_int_equal(send(fd, frame, sizeof frame, 0), sizeof frame);
  assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
  assert_int_equal(mark, 9);
  close(fd);
  dpdk_port_park(p);
}

static void make_veth(const char *a, const char *b, int mtu) {
  char text[300];
  snprintf(text, sizeof text, "ip link add %s mtu %d type veth peer name %s mtu %d && ip link set %s up && ip link set %s up",
           a, mtu, b, mtu, a, b);
  assert_int_equal(system(text), 0);
}

static void an_interface_made_anew_is_taken_anew(const char *spec, const char *a, const char *b, int mtu) {
  char text[64];
  uint8_t frame[60], mark = 0;
  uint32_t len = 0;
  make_veth(a, b, mtu);
  dpdk_port *p = open_port(spec);
  dpdk_port_park(p);
  snprintf(text, sizeof text, "ip link del %s", a);
  assert_int_equal(system(text), 0);
  assert_int_equal(try_open(spec, 0, &p), -ENODEV);
  make_veth(a, b, mtu);
  p = open_port(spec);
  int fd = kernel_socket(b);
  fill(frame, sizeof frame, 10);
  assert_int_equal(send(fd, frame, sizeof frame, 0), sizeof frame);
  assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
  close(fd);
  dpdk_port_park(p);
  assert_int_equal(system(text), 0);
}

static void af_packet__an_interface_made_anew(void **state) {
  (void)state;
  an_interface_made_anew_is_taken_anew("af_packet:tbr0", "tbr0", "tbr1", 1500);
}

static void set_mac(const char *iface, const char *mac) {
  char text[100];
  snprintf(text, sizeof text, "ip link set %s address %s", iface, mac);
  assert_int_equal(system(text), 0);
}

static void a_mac_that_changed_while_parked_is_the_new_one(const char *spec, const char *iface) {
  dpdk_port *p = open_port(spec), *first = p;
  tb_mac before = p->mac;
  char back[20];
  snprintf(back, sizeof back, "%02x:%02x:%02x:%02x:%02x:%02x", before.b[0], before.b[1], before.b[2], before.b[3],
           before.b[4], before.b[5]);
  dpdk_port_park(p);
  set_mac(iface, "02:00:00:00:12:34");
  p = open_port(spec);
  assert_ptr_equal(p, first);
  assert_memory_equal(p->mac.b, ((uint8_t[]){2, 0, 0, 0, 0x12, 0x34}), 6);
  dpdk_port_park(p);
  set_mac(iface, back);
}

static void mac__that_changed_while_parked(void **state) {
  (void)state;
  a_mac_that_changed_while_parked_is_the_new_one("af_packet:tba0", "tba0");
  a_mac_that_changed_while_parked_is_the_new_one("af_xdp:tbx0", "tbx0");
}

static volatile sig_atomic_t children;
static void count_child(int number) { (void)number, children++; }

/* DPDK's number for its group of sockets, taken by somebody else on another interface. */
static void af_packet__beside_another_rank_that_has_its_number(void **state) {
  (void)state;
  uint8_t frame[200], mark = 0;
  uint32_t len = 0;
  struct sigaction count = {.sa_handler = count_child}, before;
  make_veth("tbf0", "tbf1", 1500);
  int other = kernel_socket("tba1"), number = ((int)getpid() ^ (int)if_nametoindex("tbf0")) & 0xffff;
  assert_int_equal(setsockopt(other, SOL_PACKET, PACKET_FANOUT, &number, sizeof number), 0);
  assert_int_equal(sigaction(SIGCHLD, &count, &before), 0);
  dpdk_port *p = open_port("af_packet:tbf0");
  assert_int_equal(sigaction(SIGCHLD, &before, NULL), 0);
  assert_int_equal(children, 0); /* the program's own are all that it hears of */
  assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1);
  int fd = kernel_socket("tbf1");
  send_one(p, 100, 14);
  assert_int_equal(recv(fd, frame, sizeof frame, 0), 100);
  fill(frame, 100, 15);
  assert_int_equal(send(fd, frame, 100, 0), 100);
  assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
  assert_int_equal(mark, 15);
  close(fd);
  close(other);
  dpdk_port_park(p);
}

static void af_packet__down_or_absent(void **state) {
  (void)state;
  dpdk_port *p;
  assert_int_equal(try_open("af_packet:tbnone", 0, &p), -ENODEV);
  expect("tba0 (virtual)");
  assert_int_equal(system("ip link set tba0 down"), 0);
  assert_int_equal(try_open("af_packet:tba0", 0, &p), -ENETDOWN);
  expect("ip link set tba0 up");
  assert_int_equal(system("ip link set tba0 up"), 0);
}

static void af_xdp__whole_frames_both_ways_and_again(void **state) {
  (void)state;
  uint8_t frame[3500], mark = 0;
  uint32_t len = 0;
  for (int i = 0; i < 3; i++) {
    dpdk_port *p = open_port("af_xdp:tbx0");
    assert_int_equal(p->ip_mtu, 3400);
    assert_ptr_equal(p->rx_pool, p->tx_pool);
    int fd = kernel_socket("tbx1");
    send_one(p, 3414, 11);
    assert_int_equal(recv(fd, frame, sizeof frame, 0), 3414);
    assert_int_equal(frame[3413], 11);
    fill(frame, 3414, 12);
    assert_int_equal(send(fd, frame, 3414, 0), 3414);
    assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
    assert_int_equal(len, 3414);
    assert_int_equal(mark, 12);
    close(fd);
    dpdk_port_park(p);
  }
}

/* Parked, its interface is the kernel's again, for anybody; open, ours. */
static void af_xdp__its_program_is_off_while_parked(void **state) {
  (void)state;
  const char *attached = "ip -d link show tbx0 | grep -q 'prog/xdp'";
  uint8_t frame[200], mark = 0;
  uint32_t len = 0;
  fill(frame, 100, 13);
  int fd = kernel_socket("tbx1"), own = kernel_socket("tbx0");
  for (int i = 0; i < 2; i++) {
    dpdk_port *p = open_port("af_xdp:tbx0");
    assert_int_equal(system(attached), 0);
    assert_int_equal(send(fd, frame, 100, 0), 100);
    assert_int_equal(receive(p, 2000, 1, &len, &mark), 1);
    dpdk_port_park(p);
    assert_int_not_equal(system(attached), 0);
    while (recv(own, frame, sizeof frame, MSG_DONTWAIT) > 0) continue;
    fill(frame, 100, 13);
    assert_int_equal(send(fd, frame, 100, 0), 100);
    assert_int_equal(recv(own, frame, sizeof frame, 0), 100);
  }
  close(fd);
  close(own);
}

/* The driver registers the pool's memory with the kernel for objects end to end: one that lay beyond would be refused,
 * in ordinary pages as in huge ones, and each refusal ends a burst half way. */
static void af_xdp__every_buffer_can_be_sent(void **state) {
  (void)state;
  uint8_t frame[200];
  dpdk_port *p = open_port("af_xdp:tbx0");
  int fd = kernel_socket("tbx1");
  struct timeval second = {1, 0};
  static struct rte_mbuf *all[1 << 16];
  uint32_t n = 0;
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second), 0);
  while (n < sizeof all / sizeof *all && (all[n] = rte_pktmbuf_alloc(p->tx_pool))) n++;
  assert_true(n > 4096);
  for (uint32_t i = 0; i < n; i++) {
    fill(rte_pktmbuf_mtod(all[i], uint8_t *), 100, (uint8_t)i);
    all[i]->data_len = 100;
    all[i]->pkt_len = 100;
    while (!rte_eth_tx_burst(p->id, 0, &all[i], 1)) continue;
    assert_int_equal(recv(fd, frame, sizeof frame, 0), 100);
    assert_int_equal(frame[99], (uint8_t)i);
  }
  close(fd);
  dpdk_port_park(p);
}

/* On the program's own streams nothing is said, by whatever is underneath. */
static void af_xdp__is_silent(void **state) {
  (void)state;
  dpdk_port *p = NULL;
  FILE *heard = tmpfile();
  make_veth("tbz0", "tbz1", 1500);
  fflush(stderr);
  fflush(stdout);
  int err = dup(2), out = dup(1);
  dup2(fileno(heard), 2);
  dup2(fileno(heard), 1);
  int rc = try_open("af_xdp:tbz0", 0, &p);
  fflush(stderr);
  fflush(stdout);
  dup2(err, 2);
  dup2(out, 1);
  close(err);
  close(out);
  assert_int_equal(rc, 0);
  assert_int_equal(lseek(fileno(heard), 0, SEEK_END), 0);
  fclose(heard);
  dpdk_port_park(p);
}

static void af_xdp__an_interface_made_anew(void **state) {
  (void)state;
  an_interface_made_anew_is_taken_anew("af_xdp:tby0", "tby0", "tby1", 1500);
}

static void af_xdp__mtu_too_large_names_the_command(void **state) {
  (void)state;
  dpdk_port *p;
  assert_int_equal(try_open("af_xdp:tba0", 0, &p), -EMSGSIZE);
  expect("ip link set tba0 mtu 3400");
}

static void memif__a_dead_servers_socket_is_removed(void **state) {
  (void)state;
  char spec[128], path[100];
  dpdk_port *p;
  struct stat st;
  snprintf(path, sizeof path, "%s/dead.sock", dir);
  snprintf(spec, sizeof spec, "memif:%s,server", path);
  struct sockaddr_un_text { sa_family_t family; char path[108]; } to = {AF_UNIX, ""};
  snprintf(to.path, sizeof to.path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(try_open(spec, 0, &p), -EADDRINUSE);
  expect("another program");
  close(fd);
  assert_int_equal(lstat(path, &st), 0);
  dpdk_port_park(open_port(spec));
}

/* This program again, as the other end: comes late, sends back what it gets, ends after that. */
static int serve(const char *spec) {
  dpdk_port *p = NULL;
  uint32_t len = 0;
  uint8_t mark = 0;
  usleep(300000);
  if (try_open(spec, 0, &p)) fprintf(stderr, "%s\n", error);
  if (!p || receive(p, 10000, 1, &len, &mark) != 1) return 1;
  send_one(p, len, mark);
  usleep(300000);
  dpdk_port_park(p);
  return 0;
}

static void memif__a_client_waits_for_its_server(void **state) {
  (void)state;
  char spec[128], served[128], self[256] = "", *argv[] = {self, served, NULL};
  dpdk_port *p;
  pid_t pid;
  int status;
  uint32_t len = 0;
  uint8_t mark = 0;
  struct rte_eth_link up = {0};
  snprintf(spec, sizeof spec, "memif:%s/late.sock,client", dir);
  snprintf(served, sizeof served, "memif:%s/late.sock,server", dir);
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0); /* its own name: the rehearsal lies beside it */
  assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
  p = open_port(spec);
  for (int i = 0; i < 300 && !up.link_status; i++) {
    usleep(10000);
    assert_int_equal(rte_eth_link_get_nowait(p->id, &up), 0);
  }
  assert_int_equal(up.link_status, RTE_ETH_LINK_UP);
  send_one(p, 9014, 13);
  assert_int_equal(receive(p, 5000, 1, &len, &mark), 1);
  assert_int_equal(len, 9014);
  assert_int_equal(mark, 13);
  dpdk_port_park(p);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

static volatile sig_atomic_t rang;
static void ring_it(int number) { (void)number, rang = 1; }
static int has_rung(void *unused) { return (void)unused, rang; }

/* Ctrl-C in a program that calls us on its only thread. */
static void memif__a_waiting_clients_signals_are_open(void **state) {
  (void)state;
  char spec[128];
  dpdk_device d;
  dpdk_port *p;
  dpdk_wish wish = {.cancelled = has_rung};
  struct sigaction ring_once = {.sa_handler = ring_it}, before;
  snprintf(spec, sizeof spec, "memif:%s/nobody.sock,client", dir);
  device(spec, &d);
  assert_int_equal(sigaction(SIGALRM, &ring_once, &before), 0);
  time_t began = time(NULL);
  alarm(1);
  assert_int_equal(dpdk_port_open(&d, &wish, &p, error, sizeof error), -EINTR);
  assert_in_range(time(NULL) - began, 0, 6); /* of the 10 s that it would wait */
  assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

static void memif__a_file_in_its_place_stays(void **state) {
  (void)state;
  char spec[128], path[100];
  dpdk_port *p;
  snprintf(path, sizeof path, "%s/file", dir);
  snprintf(spec, sizeof spec, "memif:%s,server", path);
  FILE *f = fopen(path, "w");
  fclose(f);
  assert_int_equal(try_open(spec, 0, &p), -EEXIST);
  assert_int_equal(access(path, F_OK), 0);
  unlink(path);
}

static void cycles__rings_null_memif(void **state) {
  (void)state;
  char spec[128];
  snprintf(spec, sizeof spec, "memif:%s/cycle.sock,server", dir);
  cycles("ring:cycle", 1000);
  cycles("net_null0", 1000);
  cycles(spec, 1000);
}

static void cycles__af_packet(void **state) {
  (void)state;
  cycles("af_packet:tba0", 1000);
}

static void cycles__af_xdp(void **state) {
  (void)state;
  cycles("af_xdp:tbx0", 1000);
}

static int set_up(void **state) {
  (void)state;
  if (!mkdtemp(dir) || unshare(CLONE_NEWNET)) return -1;
  make_veth("tba0", "tba1", 9000);
  make_veth("tbx0", "tbx1", 3400);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char text[64];
  snprintf(text, sizeof text, "rm -r %s", dir);
  return system(text);
}

int main(int argc, char **argv) {
  if (argc == 2) return serve(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ring__carries_between_its_ends),
      cmocka_unit_test(ring__what_came_while_parked_is_thrown_away),
      cmocka_unit_test(open__twice_is_refused_until_parked),
      cmocka_unit_test(open__says_what_dpdk_says),
      cmocka_unit_test(open__another_device_of_a_name_replaces_it),
      cmocka_unit_test(restart__takes_time_and_works_again),
      cmocka_unit_test(af_packet__whole_frames_both_ways),
      cmocka_unit_test(af_packet__ring_is_as_deep_as_told),
      cmocka_unit_test(af_packet__stale_frames_are_gone_after_parking),
      cmocka_unit_test(af_packet__an_interface_made_anew),
      cmocka_unit_test(mac__that_changed_while_parked),
      cmocka_unit_test(af_packet__beside_another_rank_that_has_its_number),
      cmocka_unit_test(af_packet__down_or_absent),
      cmocka_unit_test(af_xdp__whole_frames_both_ways_and_again),
      cmocka_unit_test(af_xdp__its_program_is_off_while_parked),
      cmocka_unit_test(af_xdp__every_buffer_can_be_sent),
      cmocka_unit_test(af_xdp__is_silent),
      cmocka_unit_test(af_xdp__an_interface_made_anew),
      cmocka_unit_test(af_xdp__mtu_too_large_names_the_command),
      cmocka_unit_test(memif__a_dead_servers_socket_is_removed),
      cmocka_unit_test(memif__a_client_waits_for_its_server),
      cmocka_unit_test(memif__a_waiting_clients_signals_are_open),
      cmocka_unit_test(memif__a_file_in_its_place_stays),
      cmocka_unit_test(cycles__rings_null_memif),
      cmocka_unit_test(cycles__af_packet),
      cmocka_unit_test(cycles__af_xdp),
  };
  return cmocka_run_group_tests_name("port", tests, set_up, tear_down);
}
