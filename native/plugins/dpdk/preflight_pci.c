/* preflight_pci.c - a PCI device as sysfs shows it: there, a network device, bound to a driver that hands it over, and
 * its vfio group open to us. And the list of devices that a wrong name is answered with. */
#include "plugins/dpdk/dpdk.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH = 512 };

/* The last part of what a link below root points at; "" = there is none. */
static void link_end(const char *root, const char *path, char *out, size_t n) {
  char full[PATH], to[PATH];
  *out = 0;
  snprintf(full, sizeof full, "%s%s", root, path);
  ssize_t len = readlink(full, to, sizeof to - 1);
  if (len <= 0) return;
  to[len] = 0;
  const char *slash = strrchr(to, '/');
  snprintf(out, n, "%.*s", (int)n - 1, slash ? slash + 1 : to);
}

static long number_at(const char *root, const char *path, long otherwise) {
  char full[PATH], text[32];
  snprintf(full, sizeof full, "%s%s", root, path);
  FILE *f = fopen(full, "re");
  if (!f) return otherwise;
  char *end = text, *got = fgets(text, sizeof text, f);
  long value = got ? strtol(text, &end, 0) : otherwise;
  fclose(f);
  return end == text ? otherwise : value;
}

int dpdk_pci_node(const char *root, const char *name) {
  char path[PATH];
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", name);
  return (int)number_at(root, path, -1);
}

static bool is_network(const char *root, const char *name) {
  char path[PATH];
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%.64s/class", name);
  return number_at(root, path, 0) >> 16 == 2;
}

static size_t append(char *out, size_t n, size_t at, const char *name, const char *driver) {
  int len = at >= n ? 0 : snprintf(out + at, n - at, "%s%s (%s)", at ? ", " : "", name, *driver ? driver : "no driver");
  return at + (size_t)(len > 0 ? len : 0);
}

void dpdk_list_devices(const char *root, char *out, size_t n) {
  char path[PATH], driver[64];
  size_t at = 0;
  snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
  DIR *d = opendir(path);
  for (struct dirent *e; d && (e = readdir(d));) {
    if (e->d_name[0] == '.' || !is_network(root, e->d_name)) continue;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.64s/driver", e->d_name);
    link_end(root, path, driver, sizeof driver);
    at = append(out, n, at, e->d_name, driver);
  }
  if (d) closedir(d);
  struct if_nameindex *all = if_nameindex();
  for (struct if_nameindex *i = all; i && i->if_index; i++) {
    snprintf(path, sizeof path, "/sys/class/net/%s/device/driver", i->if_name);
    link_end(root, path, driver, sizeof driver);
    at = append(out, n, at, i->if_name, *driver ? driver : "virtual");
  }
  if (all) if_freenameindex(all);
  if (!at) snprintf(out, n, "none");
}

/* vfio pins what a device may reach, and counts it against the limit of those who lack the capability. */
static int check_lock(const dpdk_device *d, uint64_t bytes, char *error, size_t n) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes || !geteuid())
    return 0;
  return dpdk_refuse(error, n, -EPERM, "dpdk: %s needs %llu kB of locked memory and the limit is %llu: ulimit -l unlimited "
                     "(limits.conf: memlock)", d->name, (unsigned long long)bytes / 1024,
                     (unsigned long long)limit.rlim_cur / 1024);
}

static int check_group(const char *root, const dpdk_device *d, const char *group, char *error, size_t n) {
  char path[PATH];
  snprintf(path, sizeof path, "%s/dev/vfio/%s", root, group);
  if (access(path, F_OK))
    return dpdk_refuse(error, n, -ENODEV, "dpdk: %s is in IOMMU group %s and there is no /dev/vfio/%s: modprobe vfio-pci; "
                       "in a container: --device /dev/vfio/vfio --device /dev/vfio/%s", d->name, group, group, group);
  if (access(path, R_OK | W_OK))
    return dpdk_refuse(error, n, -EACCES, "dpdk: no permission for /dev/vfio/%s, the group of %s: "
                       "chown $(id -un) /dev/vfio/%s", group, d->name, group);
  return 0;
}

static int check_vfio(const char *root, const dpdk_device *d, bool huge, uint64_t bytes, char *error, size_t n) {
  char path[PATH], group[64], lone[72];
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", d->name);
  link_end(root, path, group, sizeof group);
  if (!*group)
    return dpdk_refuse(error, n, -ENODEV, "dpdk: %s is bound to vfio-pci and in no IOMMU group: boot with intel_iommu=on "
                       "or amd_iommu=on, or echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode", d->name);
  snprintf(lone, sizeof lone, "noiommu-%.60s", group);
  snprintf(path, sizeof path, "%s/dev/vfio/%s", root, lone);
  bool none = !access(path, F_OK);
  if (none && !huge)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: %s has no IOMMU, so its memory must be huge pages: leave "
                       "TAILBOUND_HUGEPAGES at auto", d->name);
  int rc = check_group(root, d, none ? lone : group, error, n);
  return rc ? rc : check_lock(d, bytes, error, n);
}

/* These share a device with the kernel: DPDK's driver uses it through the kernel's. */
static bool stays_with_kernel(const char *driver) {
  static const char *const all[] = {"mlx4_core", "mlx5_core", "mana"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(driver, all[i])) return true;
  return false;
}

int dpdk_preflight_pci(const char *root, const dpdk_device *d, bool huge, uint64_t bytes, char *error, size_t n) {
  char path[PATH], driver[64], there[300];
  snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s", root, d->name);
  bool absent = access(path, F_OK), other = !absent && !is_network(root, d->name);
  if (absent || other) dpdk_list_devices(root, there, sizeof there);
  if (absent)
    return dpdk_refuse(error, n, -ENODEV, "dpdk: there is no PCI device %s; here are: %s", d->name, there);
  if (other)
    return dpdk_refuse(error, n, -ENODEV, "dpdk: PCI device %s is no network device; here are: %s", d->name, there);
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/driver", d->name);
  link_end(root, path, driver, sizeof driver);
  if (stays_with_kernel(driver)) return 0;
  if (!strcmp(driver, "vfio-pci")) return check_vfio(root, d, huge, bytes, error, n);
  bool uio = !strcmp(driver, "igb_uio") || !strcmp(driver, "uio_pci_generic");
  if (uio && !huge)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: %s is bound to %s, so its memory must be huge pages: leave "
                       "TAILBOUND_HUGEPAGES at auto", d->name, driver);
  if (uio) return 0;
  return dpdk_refuse(error, n, -ENODEV, "dpdk: %s is bound to %s: modprobe vfio-pci && dpdk-devbind.py -b vfio-pci %s (its "
                     "interface leaves the kernel: never the one you are logged in by)", d->name,
                     *driver ? driver : "no driver", d->name);
}
