/* loaded.c - what the drivers that EAL loaded, with local symbols, offer beyond DPDK's interface. The plugin is not linked
 * with any of them, so that it can be loaded where they are not installed.
 *
 * libxdp and libbpf talk on stderr of whichever program uses them. While af_xdp is set up they talk to us: the last thing
 * they said is part of the sentence of a failure. */
#include "plugins/dpdk/dpdk.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct { const char *name; char path[PATH_MAX]; } wanted;

static int note_path(struct dl_phdr_info *info, size_t size, void *data) {
  wanted *w = data;
  (void)size;
  if (!info->dlpi_name || !strstr(info->dlpi_name, w->name)) return 0;
  snprintf(w->path, sizeof w->path, "%s", info->dlpi_name);
  return 1;
}

void *dpdk_loaded_symbol(const char *library, const char *symbol) {
  wanted w = {.name = library};
  if (!dl_iterate_phdr(note_path, &w)) return NULL;
  void *handle = dlopen(w.path, RTLD_NOW | RTLD_NOLOAD);
  void *found = handle ? dlsym(handle, symbol) : NULL;
  if (handle) dlclose(handle); /* whoever loaded it keeps it */
  return found;
}

typedef int (*print_fn)(int level, const char *format, va_list args); /* the level is an enum of theirs, 0 = warning */
typedef print_fn (*set_print_fn)(print_fn print);

static const char *const talkers[2][2] = {{"libxdp.so", "libxdp_set_print"}, {"libbpf.so", "libbpf_set_print"}};
static print_fn before[2];
static char last[160];

static int note(int level, const char *format, va_list args) {
  if (level == 0) vsnprintf(last, sizeof last, format, args);
  return 0;
}

static print_fn set(int i, print_fn print) {
  set_print_fn call = NULL;
  void *symbol = dpdk_loaded_symbol(talkers[i][0], talkers[i][1]);
  memcpy(&call, &symbol, sizeof call);
  return call ? call(print) : NULL;
}

void dpdk_xdp_listen(bool on) {
  if (on) *last = 0;
  for (int i = 0; i < 2; i++) {
    if (on)
      before[i] = set(i, note);
    else
      (void)set(i, before[i]);
  }
}

const char *dpdk_xdp_said(void) {
  last[strcspn(last, "\n")] = 0;
  return last;
}
