/* Tests of plugins/dpdk/preflight.c and preflight_pci.c on trees of files that stand for /proc, /sys and /dev. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char root[64], error[DPDK_ERROR];
static dpdk_eal_args args;

static void place(const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  for (char *c = full + strlen(root) + 1; (c = strchr(c, '/')); *c++ = '/') {
    *c = 0;
    (void)mkdir(full, 0755);
  }
  FILE *f = fopen(full, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void point(const char *path, const char *to) {
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  (void)unlink(full); /* of an earlier one */
  place(path, "");
  assert_int_equal(unlink(full), 0);
  assert_int_equal(symlink(to, full), 0);
}

static void pages(const char *dir, unsigned long long kb, int free, int total) {
  char path[256], text[32];
  snprintf(path, sizeof path, "%s/hugepages-%llukB/free_hugepages", dir, kb);
  snprintf(text, sizeof text, "%d\n", free);
  place(path, text);
  snprintf(path, sizeof path, "%s/hugepages-%llukB/nr_hugepages", dir, kb);
  snprintf(text, sizeof text, "%d\n", total);
  place(path, text);
}

#define ALL "/sys/kernel/mm/hugepages"
#define NODE "/sys/devices/system/node/node1/hugepages"
#define NIC "/sys/bus/pci/devices/0000:03:00.0"

static int check_with(const char *spec, tb_link_cfg cfg, bool running) {
  dpdk_device d;
  if (dpdk_device_parse(spec, 0, &d, error, sizeof error)) fail_msg("%s", error);
  *error = 0;
  return dpdk_preflight_at(root, running, &d, &cfg, &args, error, sizeof error);
}

static int check(const char *spec, int hugepages) {
  tb_link_cfg cfg = {.hugepages = hugepages};
  return check_with(spec, cfg, false);
}

static bool has(const char *word) {
  for (int i = 0; i < args.count; i++)
    if (!strcmp(args.arg[i], word)) return true;
  return false;
}

static void expect(const char *word) {
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

static void nic(const char *driver) {
  place(NIC "/class", "0x020000\n");
  place(NIC "/numa_node", "1\n");
  if (driver) point(NIC "/driver", driver);
  pages(NODE, 2048, 1000, 1000);
}

static void memory__auto_takes_huge_pages_only_when_there_are_enough(void **state) {
  (void)state;
  assert_int_equal(check("ring", TB_HUGE_AUTO), 0);
  assert_false(args.huge);
  assert_true(has("--no-huge") && has("--no-shconf") && has("-m") && has("--no-pci") && has("--no-telemetry"));
  assert_false(has("--in-memory"));
  assert_int_equal(*error, 0);
  pages(ALL, 2048, 5, 10);
  assert_int_equal(check("ring", TB_HUGE_AUTO), 0);
  assert_false(args.huge);
  pages(ALL, 2048, 500, 500);
  assert_int_equal(check("ring", TB_HUGE_AUTO), 0);
  assert_true(args.huge);
  assert_true(has("--in-memory"));
  assert_false(has("--no-huge") || has("-m"));
  assert_int_equal(check("ring", TB_HUGE_OFF), 0);
  assert_false(args.huge);
}

static void memory__on_names_the_line(void **state) {
  (void)state;
  char line[128];
  dpdk_device d;
  dpdk_pools p;
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("no huge pages");
  pages(ALL, 2048, 3, 7);
  pages(ALL, 1048576, 0, 0);
  assert_int_equal(dpdk_device_parse("ring", 0, &d, error, sizeof error), 0);
  dpdk_device_pools(&d, 0, &p);
  unsigned need = (unsigned)((p.bytes + (48 << 20) + (2 << 20) - 1) >> 21);
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  snprintf(line, sizeof line, "echo %u > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", need + 4);
  expect(line);
  expect("3 huge pages of 2048 kB are free");
  pages(ALL, 1048576, 1, 1); /* a page of 1 GB does as well */
  assert_int_equal(check("ring", TB_HUGE_ON), 0);
  assert_true(args.huge);
}

static void memory__promised_pages_are_not_free(void **state) {
  (void)state;
  pages(ALL, 2048, 500, 500);
  place(ALL "/hugepages-2048kB/resv_hugepages", "499\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("1 huge pages of 2048 kB are free");
}

#define V2 "31 1 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"

static void memory__limit_of_a_group_above(void **state) {
  (void)state;
  pages(ALL, 2048, 500, 500);
  place("/proc/self/cgroup", "3:cpu:/\n0::/box/one/inner\n");
  place("/proc/self/mountinfo", "29 1 0:6 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "31 1 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"); /* beside the first version */
  place("/sys/fs/cgroup/unified/box/one/inner/hugetlb.2MB.max", "max\n");
  place("/sys/fs/cgroup/unified/box/hugetlb.2MB.max", "6291456\n");
  place("/sys/fs/cgroup/unified/box/hugetlb.2MB.current", "2097152\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("allows 4 MB more");
  expect("raise /sys/fs/cgroup/unified/box/hugetlb.2MB.max");
  place("/sys/fs/cgroup/unified/box/hugetlb.2MB.max", "max\n");
  assert_int_equal(check("ring", TB_HUGE_ON), 0);
  place("/sys/fs/cgroup/unified/box/one/hugetlb.2MB.rsvd.max", "0\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("raise /sys/fs/cgroup/unified/box/one/hugetlb.2MB.rsvd.max");
  place("/proc/self/mountinfo", "31 1 0:38 /box/one/inner /here rw,relatime - cgroup2 cgroup2 rw\n"); /* a container's view */
  place("/here/hugetlb.2MB.max", "1048576\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("raise /here/hugetlb.2MB.max");
}

static void memory__cgroups_limit(void **state) {
  (void)state;
  pages(ALL, 2048, 500, 500);
  place("/proc/self/cgroup", "0::/box/one\n");
  place("/proc/self/mountinfo", V2);
  place("/sys/fs/cgroup/box/one/hugetlb.2MB.max", "10485760\n");
  place("/sys/fs/cgroup/box/one/hugetlb.2MB.current", "2097152\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("allows 8 MB more");
  expect("raise /sys/fs/cgroup/box/one/hugetlb.2MB.max");
  assert_int_equal(check("ring", TB_HUGE_AUTO), 0);
  assert_false(args.huge);
  place("/sys/fs/cgroup/box/one/hugetlb.2MB.max", "max\n");
  assert_int_equal(check("ring", TB_HUGE_ON), 0);
  place("/proc/self/cgroup", "9:name=systemd:/\n4:hugetlb:/old\n0::/box/one\n");
  place("/proc/self/mountinfo", "30 1 0:7 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n" V2);
  place("/sys/fs/cgroup/hugetlb/old/hugetlb.2MB.limit_in_bytes", "0\n");
  assert_int_equal(check("ring", TB_HUGE_ON), -ENOMEM);
  expect("raise /sys/fs/cgroup/hugetlb/old/hugetlb.2MB.limit_in_bytes");
}

static void memory__is_not_counted_when_eal_runs(void **state) {
  (void)state;
  tb_link_cfg cfg = {.hugepages = TB_HUGE_ON};
  assert_int_equal(check_with("ring", cfg, true), 0);
  assert_int_equal(args.count, 0);
  assert_int_equal(check_with("03:00.0", cfg, true), -ENODEV); /* the device is looked at all the same */
}

static void arguments__the_users_come_behind(void **state) {
  (void)state;
  tb_link_cfg cfg = {.hugepages = TB_HUGE_OFF, .eal_args = "  -m 2048   --file-prefix=x "};
  assert_int_equal(check_with("ring", cfg, false), 0);
  assert_true(has("2048") && has("--file-prefix=x") && has("--no-pci"));
  cfg.eal_args = "-a 0000:04:00.0"; /* other devices later: the bus stays on */
  assert_int_equal(check_with("ring", cfg, false), 0);
  assert_true(args.pci);
  assert_false(has("--no-pci"));
  cfg.eal_args = "--help";
  assert_int_equal(check_with("ring", cfg, false), -EINVAL);
  expect("--help");
  cfg.eal_args = "a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a";
  assert_int_equal(check_with("ring", cfg, false), -E2BIG);
}

static void arguments__one_lcore_on_the_callers_processors(void **state) {
  (void)state;
  assert_int_equal(check("net_null0", TB_HUGE_OFF), 0);
  bool found = false;
  for (int i = 0; i + 1 < args.count; i++) found |= !strcmp(args.arg[i], "--lcores") && !strncmp(args.arg[i + 1], "0@(", 3);
  assert_true(found);
  assert_string_equal(args.probe, "net_null0");
  assert_int_equal(check("ring", TB_HUGE_OFF), 0);
  assert_string_equal(args.probe, "");
}

static void pci__absent_or_no_network_device_lists_what_is_there(void **state) {
  (void)state;
  nic("../drivers/ixgbe");
  place("/sys/bus/pci/devices/0000:00:01.0/class", "0x010000\n");
  assert_int_equal(check("04:00.0", TB_HUGE_AUTO), -ENOMEM); /* its memory is first; all of this machine's */
  pages(ALL, 2048, 1000, 1000);
  assert_int_equal(check("04:00.0", TB_HUGE_AUTO), -ENODEV);
  expect("0000:03:00.0 (ixgbe)");
  assert_int_equal(check("00:01.0", TB_HUGE_AUTO), -ENODEV);
  expect("no network device");
}

static void pci__bound_to_the_kernel_names_devbind(void **state) {
  (void)state;
  nic("../drivers/ixgbe");
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), -ENODEV);
  expect("bound to ixgbe");
  expect("dpdk-devbind.py -b vfio-pci 0000:03:00.0");
}

static void pci__bound_to_nothing(void **state) {
  (void)state;
  nic(NULL);
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), -ENODEV);
  expect("no driver");
}

static void pci__vfio_group_must_be_ours(void **state) {
  (void)state;
  nic("../drivers/vfio-pci");
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), -ENODEV);
  expect("in no IOMMU group");
  point(NIC "/iommu_group", "../../kernel/iommu_groups/17");
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), -ENODEV);
  expect("there is no /dev/vfio/17");
  place("/dev/vfio/17", "");
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), 0);
  assert_true(args.huge && args.pci && args.needs_pci && args.needs_huge);
  assert_true(has("-a") && has("0000:03:00.0"));
  assert_false(has("--no-pci"));
  assert_int_equal(check("03:00.0", TB_HUGE_OFF), 0); /* an IOMMU translates: ordinary memory does */
  assert_false(args.huge || args.needs_huge);
}

static void pci__without_iommu_needs_huge_pages(void **state) {
  (void)state;
  nic("../drivers/vfio-pci");
  point(NIC "/iommu_group", "../../kernel/iommu_groups/3");
  place("/dev/vfio/noiommu-3", "");
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), 0);
  assert_int_equal(check("03:00.0", TB_HUGE_OFF), -EINVAL);
  expect("has no IOMMU");
  nic(NULL);
  point(NIC "/driver", "../drivers/uio_pci_generic");
  assert_int_equal(check("03:00.0", TB_HUGE_OFF), -EINVAL);
  expect("uio_pci_generic");
}

static void pci__pages_of_its_node(void **state) {
  (void)state;
  nic("../drivers/vfio-pci");
  pages(NODE, 2048, 2, 2);
  pages(ALL, 2048, 1000, 1000); /* on the other node */
  assert_int_equal(check("03:00.0", TB_HUGE_AUTO), -ENOMEM);
  expect("on NUMA node 1");
  expect(" > " NODE "/hugepages-2048kB/nr_hugepages");
}

static void iface__permission_for_raw_sockets(void **state) {
  (void)state;
  place("/proc/thread-self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
  assert_int_equal(check("af_packet:lo", TB_HUGE_OFF), -EPERM);
  expect("CAP_NET_RAW, CAP_NET_ADMIN and CAP_IPC_LOCK");
  expect("--ambient-caps=+net_raw,+net_admin,+ipc_lock");
  place("/proc/thread-self/status", "Name:\tx\nCapEff:\t0000000000002000\n"); /* CAP_NET_RAW alone */
  place("/proc/sys/net/core/wmem_max", "212992\n");
  assert_int_equal(check("af_packet:lo", TB_HUGE_OFF), -EPERM);
  expect("net.core.wmem_max allows 212992");
  expect("needs CAP_NET_ADMIN");
  place("/proc/sys/net/core/wmem_max", "1073741824\n");
  struct rlimit few;
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &few), 0);
  few.rlim_cur = 1 << 20;
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &few), 0);
  assert_int_equal(check("af_packet:lo", TB_HUGE_OFF), -EPERM);
  expect("ulimit -l allows 1024) for the ring on lo needs CAP_IPC_LOCK");
  place("/proc/thread-self/status", "Name:\tx\nCapEff:\t0000000000006000\n"); /* and CAP_IPC_LOCK */
  assert_int_equal(check("af_packet:lo", TB_HUGE_OFF), 0);
  assert_int_equal(check("af_xdp:lo", TB_HUGE_OFF), -EMSGSIZE); /* lo's frames are too long; rights come after */
  place("/proc/thread-self/status", "Name:\tx\nCapEff:\t0000000000007000\n"); /* and CAP_NET_ADMIN */
  place("/proc/sys/net/core/wmem_max", "212992\n");
  assert_int_equal(check("af_packet:lo", TB_HUGE_OFF), 0);
  assert_int_equal(check("af_packet:nosuch0", TB_HUGE_OFF), -ENODEV);
  expect("lo (virtual)");
}

static int set_up(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/tb_pre_XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  char text[96];
  snprintf(text, sizeof text, "rm -r %s", root);
  return system(text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(memory__auto_takes_huge_pages_only_when_there_are_enough),
      TEST(memory__on_names_the_line),
      TEST(memory__promised_pages_are_not_free),
      TEST(memory__cgroups_limit),
      TEST(memory__limit_of_a_group_above),
      TEST(memory__is_not_counted_when_eal_runs),
      TEST(arguments__the_users_come_behind),
      TEST(arguments__one_lcore_on_the_callers_processors),
      TEST(pci__absent_or_no_network_device_lists_what_is_there),
      TEST(pci__bound_to_the_kernel_names_devbind),
      TEST(pci__bound_to_nothing),
      TEST(pci__vfio_group_must_be_ours),
      TEST(pci__without_iommu_needs_huge_pages),
      TEST(pci__pages_of_its_node),
      TEST(iface__permission_for_raw_sockets),
  };
  return cmocka_run_group_tests_name("preflight", tests, NULL, NULL);
}
