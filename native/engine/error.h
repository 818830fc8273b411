/* error.h - the sentence behind the last -errno, one per thread; tb_last_error() of the public header reads it. */
#ifndef TB_ERROR_H
#define TB_ERROR_H
#include "tailbound.h"

/* Arguments may point into tb_last_error() itself, so a caller can wrap the sentence it was given. */
void tb_set_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Sets the sentence and returns err (a -errno), so that a failure is one statement. */
int tb_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
