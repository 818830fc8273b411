/* pool.h - large buffers of operations, kept for the next one: a fresh mapping costs a page fault per 4 KiB, which at
 * these sizes is dearer than the arithmetic done on it. */
#ifndef TB_POOL_H
#define TB_POOL_H
#include <stddef.h>

typedef struct tb_pool tb_pool;
tb_pool *tb_pool_new(void);
void tb_pool_keep(tb_pool *p, size_t most); /* from now on it keeps no more bytes than that; 0 at first */
size_t tb_pool_kept(const tb_pool *p);
void tb_pool_free(tb_pool *p);
void *tb_pool_get(tb_pool *p, size_t bytes); /* 64-byte aligned, contents undefined; NULL = no memory */
void tb_pool_put(tb_pool *p, void *buf);     /* NULL is fine */

#endif
