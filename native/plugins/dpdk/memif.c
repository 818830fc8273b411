/* memif.c - who serves a memif: at most one process a socket; and whether it takes clients just now.
 *
 * A server that died leaves its socket behind, and no other can take the name; one that lives must keep it. Whether one
 * lives cannot be asked by connecting: DPDK's driver answers a connection that is closed again before it was accepted by
 * closing a file that EAL's interrupt thread still watches, and that aborts the server's process. So a server holds a
 * lock on SOCKET.lock for as long as it has the device, parked or open, and only under that lock a stale socket is
 * removed. The kernel ends the lock with the process, whatever killed it. It holds between network namespaces, where
 * lists of sockets do not, and it tells the holder's number. The file stays: removing it would let one process lock the
 * old file and another a new one.
 *
 * The file also holds a number that a server raises at each start and each stop of its device: odd = it takes clients. A
 * client connects when it does, and again when the number is another: while the device is stopped the driver turns
 * clients away, and it never connects again by itself.
 *
 * Servers that know nothing of the lock (testpmd, VPP) are seen in the kernel's list of this network namespace. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATH = sizeof ((struct sockaddr_un *)0)->sun_path, LOCK_PATH = PATH + 8 };

/* A lock of this kind goes with any close of its file in the process: each is opened once, and remembered. */
typedef struct claim {
  struct claim *next;
  int fd;
  uint64_t turn;
  char path[PATH];
} claim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static claim *claims;

/* The socket's path, if this device has one. */
static bool path_of(const dpdk_device *d, char path[PATH]) {
  const char *at = strstr(d->devargs, ",socket=");
  if (d->kind != DPDK_MEMIF || !at || !strstr(d->devargs, ",socket-abstract=no")) return false;
  at += 8;
  snprintf(path, PATH, "%.*s", (int)strcspn(at, ","), at);
  return *path;
}

static bool served(const dpdk_device *d, char path[PATH]) {
  return path_of(d, path) && strstr(d->devargs, ",role=server");
}

static claim **find(const char *path) {
  claim **c = &claims;
  while (*c && strcmp((*c)->path, path)) c = &(*c)->next;
  return c;
}

/* Opened without O_CREAT first: in /tmp the kernel may refuse that to root for a file of somebody else's. */
static int open_lock(const char *file, char *error, size_t n) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK; /* of a pipe in its place: no waiting */
  int fd = open(file, flags);
  if (fd < 0 && errno == ENOENT) fd = open(file, flags | O_CREAT, 0644);
  if (fd >= 0) return fd;
  int rc = -errno;
  if (rc == -ENOENT)
    return dpdk_refuse(error, n, rc, "dpdk: there is no folder for %s: make it, or give memif another path", file);
  return dpdk_refuse(error, n, rc, "dpdk: cannot lock %s: %s: run as the user who made it, remove it if nobody serves "
                     "there any more, or give memif another path", file, strerror(-rc));
}

static int take_lock(int fd, const char *path, char *error, size_t n) {
  struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  char who[32] = "";
  if (!fcntl(fd, F_SETLK, &all)) return 0;
  int rc = -errno;
  if (rc != -EAGAIN && rc != -EACCES)
    return dpdk_refuse(error, n, rc, "dpdk: cannot lock %s.lock: %s: give memif a path on a file system with locks", path,
                       strerror(-rc));
  all = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (!fcntl(fd, F_GETLK, &all) && all.l_type != F_UNLCK && all.l_pid > 0)
    snprintf(who, sizeof who, ", number %d,", (int)all.l_pid);
  return dpdk_refuse(error, n, -EADDRINUSE, "dpdk: another process%s serves %s: end it, give this one the role client, or "
                     "another path", who, path);
}

/* In this network namespace somebody has a socket of that name. */
static bool is_listed(const char *path) {
  char line[512];
  bool yes = false;
  FILE *f = fopen("/proc/thread-self/net/unix", "re");
  if (!f) return false;
  while (!yes && fgets(line, sizeof line, f)) {
    const char *name = strchr(line, '/');
    line[strcspn(line, "\n")] = 0;
    yes = name && !strcmp(name, path);
  }
  fclose(f);
  return yes;
}

static int clear(const char *path, char *error, size_t n) {
  struct stat st;
  if (lstat(path, &st)) return errno == ENOENT ? 0 : dpdk_refuse(error, n, -errno, "dpdk: %s: %s: give memif another path",
                                                                 path, strerror(errno));
  if (!S_ISSOCK(st.st_mode))
    return dpdk_refuse(error, n, -EEXIST, "dpdk: %s is no socket: give memif another path", path);
  if (is_listed(path))
    return dpdk_refuse(error, n, -EADDRINUSE, "dpdk: another program, or a forked child of a server that died, has %s open "
                       "(ss -xlp names it): end it, or give memif another path", path);
  if (!unlink(path) || errno == ENOENT) return 0;
  return dpdk_refuse(error, n, -errno, "dpdk: cannot remove %s, which a dead server left: %s: remove it, or give memif "
                     "another path", path, strerror(errno));
}

static int take(const char *path, char *error, size_t n) {
  char file[LOCK_PATH];
  snprintf(file, sizeof file, "%s.lock", path);
  claim *c = calloc(1, sizeof *c);
  if (!c) return dpdk_refuse(error, n, -ENOMEM, "dpdk: out of memory");
  c->fd = open_lock(file, error, n);
  int rc = c->fd < 0 ? c->fd : take_lock(c->fd, path, error, n);
  if (!rc) rc = clear(path, error, n);
  if (rc) {
    if (c->fd >= 0) close(c->fd);
    free(c);
    return rc;
  }
  if (pread(c->fd, &c->turn, sizeof c->turn, 0) != sizeof c->turn) c->turn = 0; /* of the one before, so that it grows */
  c->turn += c->turn & 1;
  snprintf(c->path, sizeof c->path, "%s", path);
  c->next = claims;
  claims = c;
  return 0;
}

int dpdk_memif_claim(const dpdk_device *d, char *error, size_t n) {
  char path[PATH];
  if (!served(d, path)) return 0;
  pthread_mutex_lock(&lock);
  int rc = *find(path) ? 0 : take(path, error, n);
  pthread_mutex_unlock(&lock);
  return rc;
}

void dpdk_memif_release(const dpdk_device *d) {
  char path[PATH];
  if (!served(d, path)) return;
  pthread_mutex_lock(&lock);
  claim **at = find(path), *gone = *at;
  if (gone) {
    *at = gone->next;
    close(gone->fd);
    free(gone);
  }
  pthread_mutex_unlock(&lock);
}

void dpdk_memif_takes(const dpdk_device *d, bool clients) {
  char path[PATH];
  if (!served(d, path)) return;
  pthread_mutex_lock(&lock);
  claim *c = *find(path);
  if (c && (c->turn & 1) != clients) {
    c->turn++;
    if (pwrite(c->fd, &c->turn, sizeof c->turn, 0) < 0) c->turn = 0; /* a full disk: clients wait, and say so */
  }
  pthread_mutex_unlock(&lock);
}

/* A lock of another process tells that the number in the file is a living server's. */
static uint64_t turn_of_other(const char *path) {
  char file[LOCK_PATH];
  struct flock any = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  uint64_t turn = 0;
  snprintf(file, sizeof file, "%s.lock", path);
  int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return DPDK_MEMIF_UNTOLD;
  bool held = !fcntl(fd, F_GETLK, &any) && any.l_type != F_UNLCK;
  if (!held || pread(fd, &turn, sizeof turn, 0) != sizeof turn || !(turn & 1)) turn = 0;
  close(fd);
  return turn || held || !is_listed(path) ? turn : DPDK_MEMIF_UNTOLD;
}

uint64_t dpdk_memif_turn(const dpdk_device *d) {
  char path[PATH];
  if (!path_of(d, path)) return DPDK_MEMIF_UNTOLD;
  pthread_mutex_lock(&lock);
  const claim *c = *find(path);
  uint64_t turn = !c ? turn_of_other(path) : c->turn & 1 ? c->turn : 0;
  pthread_mutex_unlock(&lock);
  return turn;
}
