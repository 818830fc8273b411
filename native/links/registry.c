/* registry.c - finds and loads links. A plugin is judged before it is used: its ABI number and the sizes of what passes
 * between it and the core must be this build's, or a structure would be read with another's offsets.
 *
 * Several files may be there, one for each version of the library (libtailbound_dpdk-23.so, -25.so): the first that
 * loads is taken, newest first; if none does, the reasons of all of them are told.
 *
 * A program that gained rights when it was started (setuid, file capabilities) loads nothing from a folder that its
 * caller's environment names: the caller would have those rights. */
#include "links/registry.h"
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLUGINS_MOST = 8, FOLDERS = 4096 };

static struct {
  const tb_link_plugin *plugin;
  char file[512];
} loaded[PLUGINS_MOST];
static int loaded_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void append(char *out, size_t n, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *out, size_t n, const char *format, ...) {
  size_t used = strlen(out);
  va_list args;
  va_start(args, format);
  if (used < n) vsnprintf(out + used, n - used, format, args);
  va_end(args);
}

/* The file that this code is in, "" = unknown. A program is told as it was called, which may be a bare name: that names
 * no file, and the working folder, where anybody may have put things, is not a place to load code from. */
static void own_file(char out[PATH_MAX]) {
  Dl_info here;
  bool told = dladdr(&loaded, &here) && here.dli_fname && strchr(here.dli_fname, '/');
  if (!realpath(told ? here.dli_fname : "/proc/self/exe", out)) *out = 0;
}

void tb_plugin_folders(char *out, size_t n) {
  const char *data = secure_getenv("XDG_DATA_HOME"), *home = secure_getenv("HOME");
  char at[PATH_MAX], *slash;
  *out = 0;
  own_file(at);
  for (int level = 0; level < 2 && (slash = strrchr(at, '/')); level++) {
    *slash = 0;
    append(out, n, "%s%s/plugins", level ? ":" : "", at);
  }
  const char *colon = *out ? ":" : "";
  if (data && *data) append(out, n, "%s%s/tailbound/plugins", colon, data);
  else if (home && *home) append(out, n, "%s%s/.local/share/tailbound/plugins", colon, home);
}

/* In a folder that nobody named, only what root, this user, or whoever owns this code has put there. */
static bool trusted(const char *folder, const char *file, char *why, size_t n) {
  struct stat own, dir, it;
  char self[PATH_MAX];
  own_file(self);
  if (stat(folder, &dir) || stat(file, &it)) return true; /* dlopen says what is wrong */
  bool ours = !it.st_uid || it.st_uid == geteuid() || (!stat(self, &own) && it.st_uid == own.st_uid);
  bool open_to_all = it.st_mode & S_IWOTH || (dir.st_mode & S_IWOTH && !(dir.st_mode & S_ISVTX));
  if (ours && !open_to_all) return true;
  append(why, n, "; %s %s: if it is to be trusted, name its folder in TAILBOUND_PLUGINS", file,
         ours ? "can be changed by anybody" : "belongs to another user");
  return false;
}

static const tb_link_plugin *judged(void *object, const char *file, char *why, size_t n) {
  tb_link_plugin_fn get;
  void *symbol = dlsym(object, TB_PLUGIN_SYMBOL);
  memcpy(&get, &symbol, sizeof get); /* ISO C has no conversion from an object's pointer to a function's */
  const tb_link_plugin *p = symbol ? get() : NULL;
  if (p && p->abi == TB_PLUGIN_ABI && p->sizes == TB_PLUGIN_SIZES) return p;
  append(why, n, "; %s was built for %s: build it again", file, p ? "another version of tailbound" : "something else");
  return NULL;
}

static const tb_link_plugin *load(const char *file, char *why, size_t n) {
  void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!object) {
    append(why, n, "; %s", dlerror());
    return NULL;
  }
  const tb_link_plugin *p = judged(object, file, why, n);
  if (!p) dlclose(object);
  return p;
}

/* By the number behind the last dash: 100 is newer than 23. */
static int by_version(const void *a, const void *b) {
  const char *const *x = a, *const *y = b;
  return strverscmp(strrchr(*x, '-'), strrchr(*y, '-'));
}

/* All candidates in one folder, the highest library version first. */
static const tb_link_plugin *load_from(const char *folder, const char *name, bool named, char *file, size_t file_len,
                                       char *why, size_t n) {
  char pattern[700];
  glob_t found;
  const tb_link_plugin *p = NULL;
  snprintf(pattern, sizeof pattern, "%s/libtailbound_%s-*.so", folder, name);
  if (glob(pattern, 0, NULL, &found)) return NULL;
  qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_version);
  for (size_t i = found.gl_pathc; i-- > 0 && !p;) {
    if (named || trusted(folder, found.gl_pathv[i], why, n)) p = load(found.gl_pathv[i], why, n);
    if (p) snprintf(file, file_len, "%s", found.gl_pathv[i]);
  }
  globfree(&found);
  return p;
}

/* Under the lock: the loaded entry of that name, or NULL. */
static const tb_link_plugin *known(const char *name, const char **file) {
  for (int i = 0; i < loaded_count; i++)
    if (!strcmp(loaded[i].plugin->name, name)) {
      *file = loaded[i].file;
      return loaded[i].plugin;
    }
  return NULL;
}

static const tb_link_plugin *search(const char *name, const char **file, const char *folders, bool named, char *why,
                                    size_t n) {
  const tb_link_plugin *p = known(name, file);
  if (p || loaded_count == PLUGINS_MOST) return p;
  char list[FOLDERS], *rest = list, *at = loaded[loaded_count].file;
  snprintf(list, sizeof list, "%s", folders);
  for (char *folder; !p && (folder = strsep(&rest, ":"));)
    if (*folder) p = load_from(folder, name, named, at, sizeof loaded[0].file, why, n);
  if (!p) return NULL;
  *file = at;
  loaded[loaded_count++].plugin = p;
  return p;
}

static int find(const char *name, const char *asked, const tb_link_plugin **out, const char **file, char *error, size_t n) {
  char folders[FOLDERS], why[1200] = "";
  bool named = asked && *asked;
  if (named) snprintf(folders, sizeof folders, "%s", asked);
  else tb_plugin_folders(folders, sizeof folders);
  pthread_mutex_lock(&lock);
  *out = search(name, file, folders, named, why, sizeof why);
  pthread_mutex_unlock(&lock);
  if (*out) return 0;
  if (*why)
    snprintf(error, n, "link '%s' cannot be loaded: %s. Install what it names, or build the plugin for what is here: "
             "tailbound build-plugin %s", name, why + 2, name);
  else
    snprintf(error, n, "link '%s' needs its plugin, and there is no libtailbound_%s-*.so in %s. Build it: tailbound "
             "build-plugin %s", name, name, folders, name);
  return *why ? -ELIBACC : -ENOENT;
}

int tb_link_find(const char *name, const char *folders, const tb_link_ops **ops, char *error, size_t n) {
  const tb_link_plugin *p;
  const char *file;
  if (!strcmp(name, "udp") || !strcmp(name, "auto")) {
    *ops = &tb_link_udp;
    return 0;
  }
  int rc = find(name, folders, &p, &file, error, n);
  if (!rc) *ops = p->ops;
  return rc;
}

int tb_link_words(const char *name, const char *folders, char *out, size_t n) {
  const tb_link_plugin *p;
  const char *file;
  if (!strcmp(name, "udp") || !strcmp(name, "auto")) {
    snprintf(out, n, "kernel UDP, IPv4 and IPv6, no privileges; what link=auto takes");
    return 0;
  }
  int rc = find(name, folders, &p, &file, out, n);
  if (!rc) snprintf(out, n, "%s, %s", p->library, file);
  return rc;
}
