/* leaks.h - include it once in a test program that opens af_xdp. libxdp and libbpf keep a loaded program and its socket
 * through pointers that lie in DPDK's memory, where the leak checker does not look. */
#ifndef TB_TEST_DPDK_LEAKS_H
#define TB_TEST_DPDK_LEAKS_H
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libxdp.so\nleak:libbpf.so\n"; }
/* Freed memory is not kept back for long: tests measure the resident size. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=1:thread_local_quarantine_size_kb=16"; }
#endif
