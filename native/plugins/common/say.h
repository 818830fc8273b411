/* say.h - what plugins share: the clock, sentences of refusal, events in words, threads that take no signals. Plugins
 * use no symbol of the core, so each compiles this for itself. */
#ifndef TB_PLUGIN_SAY_H
#define TB_PLUGIN_SAY_H
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include "links/events.h"

uint64_t tb_plugin_now(void); /* CLOCK_MONOTONIC, ns */
/* Writes the sentence, if anybody wants it, and gives rc back. */
int tb_plugin_refuse(char *error, size_t n, int rc, const char *format, ...) __attribute__((format(printf, 4, 5)));
void tb_plugin_event(tb_events *e, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
void tb_plugin_signals_hold(sigset_t *before); /* threads made from here on take none of the program's signals */
#endif
