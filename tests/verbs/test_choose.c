/* test_choose.c - device, port and GID from a made-up /sys, and the check of locked memory: no device is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "plugins/verbs/verbs.h"

static char root[64], error[1024];

static void put(const char *path, const char *text) {
  char full[300];
  snprintf(full, sizeof full, "%s/sys/class/infiniband/%s", root, path);
  for (char *slash = full + strlen(root); (slash = strchr(slash + 1, '/'));) {
    *slash = 0;
    mkdir(full, 0755);
    *slash = '/';
  }
  FILE *f = fopen(full, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void port(const char *at, const char *state, const char *layer) {
  char path[200];
  snprintf(path, sizeof path, "%s/state", at);
  put(path, state);
  snprintf(path, sizeof path, "%s/link_layer", at);
  put(path, layer);
}

/* type NULL: an empty entry, whose type cannot be read. */
static void gid(const char *at, int i, const char *text, const char *type, const char *netdev) {
  char path[200];
  snprintf(path, sizeof path, "%s/gids/%d", at, i);
  put(path, text);
  if (!type) return;
  snprintf(path, sizeof path, "%s/gid_attrs/types/%d", at, i);
  put(path, type);
  snprintf(path, sizeof path, "%s/gid_attrs/ndevs/%d", at, i);
  put(path, netdev);
}

#define ZERO "0000:0000:0000:0000:0000:0000:0000:0000\n"
#define V2 "RoCE v2\n"
#define V1 "IB/RoCE v1\n"

/* As mlx5 has them: each address twice, link-local first, holes between. */
static int make(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/tb_verbs_XXXXXX");
  assert_non_null(mkdtemp(root));
  port("roce0/ports/1", "4: ACTIVE\n", "Ethernet\n");
  gid("roce0/ports/1", 0, "fe80:0000:0000:0000:0000:0000:0000:0001\n", V1, "eth0\n");
  gid("roce0/ports/1", 1, "fe80:0000:0000:0000:0000:0000:0000:0001\n", V2, "eth0\n");
  gid("roce0/ports/1", 2, ZERO, NULL, NULL);
  gid("roce0/ports/1", 3, "0000:0000:0000:0000:0000:ffff:0a00:0005\n", V1, "eth0\n");
  gid("roce0/ports/1", 4, "0000:0000:0000:0000:0000:ffff:0a00:0005\n", V2, "eth0\n");
  gid("roce0/ports/1", 5, "fd00:0000:0000:0000:0000:0000:0000:0005\n", V2, "eth0\n");
  gid("roce0/ports/1", 6, "0000:0000:0000:0000:0000:ffff:0a01:0005\n", V2, "eth0.7\n");
  return 0;
}

static int unlink_one(const char *path, const struct stat *s, int type, struct FTW *w) {
  (void)s, (void)type, (void)w;
  return remove(path);
}

static int unmake(void **state) {
  (void)state;
  return nftw(root, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int choose(const char *device, const char *ip, const char *route, verbs_choice *c) {
  tb_link_cfg cfg = {.device = device, .ip = ip, .route_to = route, .error = error, .error_len = sizeof error};
  *error = 0;
  memset(c, 0, sizeof *c);
  return verbs_device_choose(root, &cfg, c);
}

static void expect(const char *device, const char *ip, const char *route, const char *name, uint32_t index) {
  verbs_choice c;
  int rc = choose(device, ip, route, &c);
  if (rc) fail_msg("%s: %d %s", device, rc, error);
  assert_string_equal(c.device, name);
  assert_int_equal(c.gid.index, index);
}

static void refused(const char *device, const char *ip, int rc, const char *word) {
  verbs_choice c;
  assert_int_equal(choose(device, ip, NULL, &c), rc);
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

static void choose__routable_roce_v2_of_the_rendezvous_family(void **state) {
  (void)state;
  expect("", NULL, NULL, "roce0", 4);
  expect("roce0", "", "10.0.0.1", "roce0", 4);
  expect("roce0:1", NULL, "host.example", "roce0", 4);
  expect("roce0", NULL, "fd00::9", "roce0", 5);
  expect("roce0", "10.1.0.5/24", NULL, "roce0", 6);
  expect("10.1.0.5", NULL, "fd00::9", "roce0", 6);
  expect("fd00::5", NULL, NULL, "roce0", 5);
  expect("fe80::1", NULL, NULL, "roce0", 1); /* asked for by name, and v2 */
}

static void choose__link_local_only_where_there_is_nothing_else(void **state) {
  (void)state;
  port("roce1/ports/1", "4: ACTIVE\n", "Ethernet\n");
  gid("roce1/ports/1", 0, "fe80:0000:0000:0000:0000:0000:0000:0002\n", V1, "eth1\n");
  gid("roce1/ports/1", 1, "fe80:0000:0000:0000:0000:0000:0000:0002\n", V2, "eth1\n");
  expect("roce1", NULL, "10.0.0.1", "roce1", 1);
}

static void choose__infiniband_takes_its_first_gid(void **state) {
  (void)state;
  port("ib0/ports/1", "1: DOWN\n", "InfiniBand\n");
  port("ib0/ports/2", "4: ACTIVE\n", "InfiniBand\n");
  gid("ib0/ports/2", 0, "fe80:0000:0000:0000:0002:c903:0000:0001\n", "IB/RoCE v1\n", "");
  gid("ib0/ports/2", 1, "fe80:0000:0000:0001:0002:c903:0000:0001\n", "IB/RoCE v1\n", "");
  verbs_choice c;
  assert_int_equal(choose("ib0", NULL, NULL, &c), 0);
  assert_int_equal(c.port, 2);
  assert_int_equal(c.gid.index, 0);
  assert_false(c.ethernet);
  refused("ib0:1", NULL, -ENODEV, "ib0:1 is not up (1: DOWN)");
}

static void choose__by_pci_address(void **state) {
  (void)state;
  char path[200];
  snprintf(path, sizeof path, "%s/sys/class/infiniband/roce0/device", root);
  assert_int_equal(symlink("../../../0000:3b:00.1", path), 0);
  expect("0000:3b:00.1", NULL, NULL, "roce0", 4);
  expect("3b:00.1", NULL, NULL, "roce0", 4);
  refused("0000:3b:00.0", NULL, -ENODEV, "0000:3b:00.0");
}

static void choose__several_ports_need_a_name(void **state) {
  (void)state;
  port("roce1/ports/1", "4: ACTIVE\n", "Ethernet\n");
  gid("roce1/ports/1", 0, "0000:0000:0000:0000:0000:ffff:0a00:0006\n", V2, "eth1\n");
  refused("", NULL, -EINVAL, "roce0:1; roce1:1");
  refused(NULL, NULL, -EINVAL, "TAILBOUND_DEVICE");
  expect("roce1", NULL, NULL, "roce1", 0);
  expect(NULL, "10.0.0.6", NULL, "roce1", 0);
}

static void choose__refusals_name_the_remedy(void **state) {
  (void)state;
  refused("roce7", NULL, -ENODEV, "no RDMA device named roce7");
  refused("roce0:2", NULL, -ENODEV, "roce0:2");
  refused("roce0:x", NULL, -EINVAL, "mlx5_0:1");
  refused("../roce0", NULL, -EINVAL, "names no device");
  refused("roce0", "nonsense", -EINVAL, "TAILBOUND_IP");
  refused("10.0.0.5", "10.0.0.6", -EINVAL, "two addresses");
  refused("10.9.9.9", NULL, -ENODEV, "no such address");
  port("roce0/ports/1", "1: DOWN\n", "Ethernet\n");
  refused("", NULL, -ENODEV, "roce0:1 is not up (1: DOWN): ip link set up dev eth0");
  port("roce0/ports/1", "4: ACTIVE\n", "Ethernet\n");
  for (int i = 1; i < 7; i++) gid("roce0/ports/1", i, ZERO, NULL, NULL);
  refused("", NULL, -ENODEV, "no such RoCE v2 address");
}

static void choose__without_any_device_says_how_to_get_one(void **state) {
  (void)state;
  unmake(NULL);
  assert_int_equal(mkdir(root, 0755), 0);
  refused("", NULL, -ENODEV, "rdma link add rxe0 type rxe");
}

static void memlock__counts_what_is_pinned_and_who_may(void **state) {
  (void)state;
  static const char status[] = "Name:\tx\nVmLck:\t       9 kB\nVmPin:\t     100 kB\nCapEff:\t0000000000000000\n";
  static const char may[] = "VmPin:\t     100 kB\nCapEff:\t0000000000004000\n";
  assert_int_equal(verbs_memlock_check(status, 64 << 10, 1, error, sizeof error), -ENOMEM);
  assert_non_null(strstr(error, "ulimit -l unlimited"));
  assert_non_null(strstr(error, "may lock 64 KiB, of which 100 are taken"));
  assert_int_equal(verbs_memlock_check(status, 200 << 10, 100 << 10, error, sizeof error), 0);
  assert_int_equal(verbs_memlock_check(status, 200 << 10, (100 << 10) + 1, error, sizeof error), -ENOMEM);
  assert_int_equal(verbs_memlock_check(status, RLIM_INFINITY, UINT64_MAX, error, sizeof error), 0);
  assert_int_equal(verbs_memlock_check(may, 64 << 10, 8 << 20, error, sizeof error), 0);
  assert_int_equal(verbs_memlock_check("", 64 << 10, 8 << 20, error, sizeof error), -ENOMEM);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(choose__routable_roce_v2_of_the_rendezvous_family),
      TEST(choose__link_local_only_where_there_is_nothing_else),
      TEST(choose__infiniband_takes_its_first_gid),
      TEST(choose__by_pci_address),
      TEST(choose__several_ports_need_a_name),
      TEST(choose__refusals_name_the_remedy),
      TEST(choose__without_any_device_says_how_to_get_one),
      TEST(memlock__counts_what_is_pinned_and_who_may),
  };
  return cmocka_run_group_tests_name("verbs choose", tests, NULL, NULL);
}
