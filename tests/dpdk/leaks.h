/* leaks.h - include it once in a test program that opens af_xdp. libxdp and libbpf keep a loaded program and its socket
 * through pointers that lie in DPDK's memory, where the leak checker does not look. */
#ifndef TB_TEST_DPDK_LEAKS_H
#define TB_TEST_DPDK_LEAKS_H
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libxdp.so\nleak:libbpf.so\n"; }
#endif
