/* registry.h - links by name: those of the core, and those of plugins (plugin.h), which are looked for when asked. */
#ifndef TB_REGISTRY_H
#define TB_REGISTRY_H
#include "links/plugin.h"

/* The link of that name. folders: where plugins are looked for, separated by ':', best first; "" = tb_plugin_folders.
 * -ENOENT: no plugin of that name in any of the folders; -ELIBACC: there is one, and it cannot
 * be loaded here; error then has the sentence with the remedy. A plugin stays loaded for the process's life. */
int tb_link_find(const char *name, const char *folders, const tb_link_ops **ops, char *error, size_t n);

/* For people: what there is of that name, one line: which library and file. Same return values; out has the sentence. */
int tb_link_words(const char *name, const char *folders, char *out, size_t n);

/* The usual places: `plugins` beside the object that this code is in, and beside its folder; then the user's own. */
void tb_plugin_folders(char *out, size_t n);
#endif
