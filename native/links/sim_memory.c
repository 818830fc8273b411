/* sim_memory.c - the simulator's frame pool and its event heap. Both grow by doubling and never shrink. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "links/sim_internal.h"

#define SLAB_LEAST 64u       /* frames */
#define SLAB_MOST (8u << 20) /* bytes */
#define HUGE_PAGE (2u << 20)

/* 4-ary: half the levels of a binary heap, and the four children share a cache line or two. */
static bool before(const tb_sim_event *a, const tb_sim_event *b) {
  return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void sift_up(tb_sim_event *heap, size_t i, tb_sim_event ev) {
  while (i > 0) {
    size_t parent = (i - 1) / 4;
    if (!before(&ev, &heap[parent])) break;
    heap[i] = heap[parent];
    i = parent;
  }
  heap[i] = ev;
}

static void sift_down(tb_sim_event *heap, size_t n, size_t i, tb_sim_event ev) {
  for (;;) {
    size_t child = 4 * i + 1, end = child + 4 < n ? child + 4 : n, least = child;
    if (child >= n) break;
    for (size_t c = child + 1; c < end; c++)
      if (before(&heap[c], &heap[least])) least = c;
    if (!before(&heap[least], &ev)) break;
    heap[i] = heap[least];
    i = least;
  }
  heap[i] = ev;
}

int tb_sim_heap_reserve(tb_sim *net, size_t events) {
  if (events <= net->heap_cap) return 0;
  size_t cap = net->heap_cap ? net->heap_cap : 64;
  while (cap < events) cap *= 2;
  tb_sim_event *heap = realloc(net->heap, cap * sizeof *heap);
  if (!heap) return -ENOMEM;
  net->heap = heap;
  net->heap_cap = cap;
  return 0;
}

void tb_sim_push(tb_sim *net, uint64_t time, int kind, void *of) {
  tb_sim_event ev = {time, net->pushed++ << 3 | (unsigned)kind, of};
  sift_up(net->heap, net->heap_n++, ev);
}

void tb_sim_pop(tb_sim *net, tb_sim_event *out) {
  *out = net->heap[0];
  net->heap_n--;
  if (net->heap_n) sift_down(net->heap, net->heap_n, 0, net->heap[net->heap_n]);
}

/* Rare (abort, close, a changed pause), so a scan is good enough and no event ever has to be recognised as stale. */
void tb_sim_cancel(tb_sim *net, int kind, const void *of) {
  for (size_t i = 0; i < net->heap_n; i++) {
    if (net->heap[i].of != of || (int)(net->heap[i].order & 7) != kind) continue;
    tb_sim_event last = net->heap[--net->heap_n];
    if (i == net->heap_n) return;
    if (i > 0 && before(&last, &net->heap[(i - 1) / 4])) sift_up(net->heap, i, last);
    else sift_down(net->heap, net->heap_n, i, last);
    return;
  }
}

/* As many again as there are, but not too much at a time. */
static int grow_pool(tb_sim *net, bool small) {
  if (net->slabs_n == net->slabs_cap) {
    size_t cap = net->slabs_cap ? net->slabs_cap * 2 : 64;
    void **slabs = realloc(net->slabs, cap * sizeof *slabs);
    if (!slabs) return -ENOMEM;
    net->slabs = slabs;
    net->slabs_cap = cap;
  }
  size_t each = sizeof(tb_sim_frame) + net->data_size[small], n = net->frames_n[small];
  if (n > SLAB_MOST / each) n = SLAB_MOST / each;
  if (n < SLAB_LEAST) n = SLAB_LEAST;
  if (tb_sim_heap_reserve(net, TB_SIM_EVENTS * (size_t)net->n + net->frames_n[0] + net->frames_n[1] + n)) return -ENOMEM;
  size_t huge = n * each > HUGE_PAGE ? HUGE_PAGE : 64;
  uint8_t *slab = aligned_alloc(huge, (n * each + huge - 1) / huge * huge);
  if (!slab) return -ENOMEM;
  /* frames come back in any order: page after page */
  if (huge == HUGE_PAGE) (void)madvise(slab, n * each, MADV_HUGEPAGE);
  net->slabs[net->slabs_n++] = slab;
  net->frames_n[small] += n;
  for (size_t i = n; i-- > 0;) {
    tb_sim_frame *f = (tb_sim_frame *)(void *)(slab + i * each);
    f->data = (uint8_t *)(f + 1);
    f->small = small;
    tb_sim_frame_put(net, f);
  }
  return 0;
}

tb_sim_frame *tb_sim_frame_get(tb_sim *net, uint32_t len) {
  bool small = len <= TB_SIM_SMALL && net->data_size[0] > TB_SIM_SMALL;
  if (!net->pool[small] && grow_pool(net, small)) return NULL;
  tb_sim_frame *f = net->pool[small];
  net->pool[small] = f->next;
  return f;
}

void tb_sim_frame_put(tb_sim *net, tb_sim_frame *f) {
  f->next = net->pool[f->small];
  net->pool[f->small] = f;
}

void tb_sim_fifo_put(tb_sim_fifo *q, tb_sim_frame *f) {
  f->next = NULL;
  if (q->head) q->tail->next = f;
  else q->head = f;
  q->tail = f;
}

tb_sim_frame *tb_sim_fifo_get(tb_sim_fifo *q) {
  tb_sim_frame *f = q->head;
  if (f && (q->head = f->next)) __builtin_prefetch(q->head->next); /* looked at when the new head is taken */
  return f;
}

void tb_sim_fifo_free(tb_sim *net, tb_sim_fifo *q) {
  for (tb_sim_frame *f; (f = tb_sim_fifo_get(q));) tb_sim_frame_put(net, f);
}
