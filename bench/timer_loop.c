/* timer_loop.c - how late the operating system alone wakes a process: the yardstick for overshooting a deadline.
 *
 * N processes do nothing but sleep until "now + period", as an operation with that deadline would, and note how much
 * later they run again. Under the same load no transport can do better than this. No Tailbound call is made. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common.h"

#define MAX_SAMPLES 10000000u /* of one process */

typedef struct {
  uint64_t n;
  double us[];
} samples;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void loop(samples *s, uint64_t period, uint64_t duration, uint64_t iters) {
  uint64_t end = now_ns() + duration;
  for (s->n = 0; s->n < iters && (!duration || now_ns() < end);) {
    uint64_t due = now_ns() + period;
    struct timespec t = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
    s->us[s->n++] = (double)(now_ns() - due) / 1e3;
  }
}

static void help(void) {
  printf("timer_loop: how late absolute sleeps end, in several processes at once\n\n"
         "  -N, --processes N   default 1\n"
         "  -p, --period TIME   length of a sleep, default 1ms\n"
         "  -n, --iters N       sleeps of each process, default 1000;   -D, --duration TIME   instead\n"
         "  -J FILE             JSON\n\n"
         "overshoot = (time it ran again) - (time asked for), CLOCK_MONOTONIC, default timer slack.\n");
}

static void print_row(const char *name, double *us, size_t n, FILE *json, int first) {
  bench_stats s = bench_summary(us, n);
  printf(" %-8s %12zu %12.1f %12.1f %12.1f %12.1f\n", name, n, s.p50, s.p99, s.p999, s.max);
  if (!json) return;
  fprintf(json, "%s{\"process\": \"%s\", \"sleeps\": %zu, \"p50_us\": %.3f, \"p99_us\": %.3f, "
          "\"p999_us\": %.3f, \"max_us\": %.3f}", first ? "\n" : ",\n", name, n, s.p50, s.p99, s.p999, s.max);
}

int main(int argc, char **argv) {
  static const struct option longs[] = {{"processes", 1, 0, 'N'}, {"period", 1, 0, 'p'}, {"iters", 1, 0, 'n'},
                                        {"duration", 1, 0, 'D'}, {"help", 0, 0, 'h'}, {0, 0, 0, 0}};
  bench_program = "timer_loop";
  uint64_t processes = 1, period = 1000000, iters = 0, duration = 0;
  const char *file = NULL;
  int c;
  while ((c = getopt_long(argc, argv, "N:p:n:D:J:h", longs, NULL)) != -1) {
    switch (c) {
      case 'N': processes = bench_number("-N", optarg, 1, 1024); break;
      case 'p': period = bench_time("-p", optarg); break;
      case 'n': iters = bench_number("-n", optarg, 1, MAX_SAMPLES); break;
      case 'D': duration = bench_time("-D", optarg); break;
      case 'J': file = optarg; break;
      case 'h': help(); return 0;
      default: bench_usage("unknown option");
    }
  }
  if (optind < argc) bench_usage("\"%s\" was not expected", argv[optind]);
  if (duration && duration / period > MAX_SAMPLES) bench_usage("-D: more than %u sleeps", MAX_SAMPLES);
  if (!iters) iters = duration ? duration / period + 1 : 1000;

  size_t each = sizeof(samples) + iters * sizeof(double);
  each = (each + 4095) / 4096 * 4096;
  uint8_t *shared = mmap(NULL, each * processes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) bench_die("%zu bytes of samples: %s", each * processes, strerror(errno));
  pid_t parent = getpid();
  for (uint64_t i = 0; i < processes; i++) {
    pid_t pid = fork();
    if (pid < 0) bench_die("fork: %s", strerror(errno));
    if (pid) continue;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    samples *mine = (samples *)(shared + i * each);
    for (uint64_t k = 0; k < iters; k++) mine->us[k] = 0; /* no page fault inside the loop */
    loop(mine, period, duration, iters);
    _exit(0);
  }
  int failed = 0, status;
  for (pid_t pid; (pid = wait(&status)) > 0 || errno == EINTR;)
    if (pid > 0 && (!WIFEXITED(status) || WEXITSTATUS(status))) failed = 1;
  if (failed) bench_die("a process of the loop was ended");

  FILE *json = file ? fopen(file, "w") : NULL;
  if (file && !json) bench_die("-J %s: %s", file, strerror(errno));
  if (json) fprintf(json, "{\"test\": \"timer_loop\", \"processes\": %llu, \"period_us\": %.3f,\n\"results\": [",
                    (unsigned long long)processes, (double)period / 1e3);
  printf("# timer_loop processes: %llu period: %gus\n", (unsigned long long)processes, (double)period / 1e3);
  printf("# %-8s %12s %12s %12s %12s %12s\n# %-8s %12s %12s %12s %12s %12s\n",
         "process", "sleeps", "overshoot", "overshoot", "overshoot", "overshoot", "", "",
         "p50(us)", "p99(us)", "p99.9(us)", "max(us)");
  double *all = malloc(iters * processes * sizeof *all);
  if (!all) bench_die("out of memory");
  size_t n = 0;
  for (uint64_t i = 0; i < processes; i++) {
    samples *s = (samples *)(shared + i * each);
    char name[16];
    memcpy(all + n, s->us, s->n * sizeof *all);
    n += s->n;
    snprintf(name, sizeof name, "%llu", (unsigned long long)i);
    print_row(name, s->us, s->n, json, i == 0);
  }
  print_row("all", all, n, json, 0);
  if (json) fputs("]}\n", json);
  if (json && fclose(json) != 0) bench_die("-J %s: %s", file, strerror(errno));
  free(all);
  return 0;
}
