/* common_ar_args.c - the command line of all_reduce_perf: nccl-tests' letters where they make sense for one rank per
 * process and memory of the host, a reason where they do not. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include "common_ar_perf.h"

const char *const ar_op_names[] = {"sum", "avg", "min", "max", "prod"}; /* in order of tb_redop */

enum { O_DEADLINE = 256, O_LINK, O_RANKS, O_SET, O_HELP };

static const struct option longs[] = {
    {"minbytes", 1, 0, 'b'},   {"maxbytes", 1, 0, 'e'},  {"stepbytes", 1, 0, 'i'},      {"stepfactor", 1, 0, 'f'},
    {"iters", 1, 0, 'n'},      {"warmup_iters", 1, 0, 'w'}, {"run_cycles", 1, 0, 'N'},  {"op", 1, 0, 'o'},
    {"datatype", 1, 0, 'd'},   {"check", 1, 0, 'c'},     {"average", 1, 0, 'a'},        {"iter_stats", 0, 0, 'I'},
    {"output_file", 1, 0, 'J'}, {"timeout", 1, 0, 'T'},  {"blocking", 1, 0, 'z'},       {"nthreads", 1, 0, 't'},
    {"ngpus", 1, 0, 'g'},      {"agg_iters", 1, 0, 'm'}, {"root", 1, 0, 'r'},           {"cudagraph", 1, 0, 'G'},
    {"local_register", 1, 0, 'R'}, {"parallel_init", 1, 0, 'p'}, {"report_cputime", 1, 0, 'C'},
    {"deadline", 1, 0, O_DEADLINE}, {"link", 1, 0, O_LINK}, {"ranks", 1, 0, O_RANKS},   {"set", 1, 0, O_SET},
    {"help", 0, 0, O_HELP},    {0, 0, 0, 0},
};

static void help(void) {
  printf(
      "all_reduce_perf: time, bandwidth and correctness of all-reduce, in nccl-tests' dialect\n\n"
      "  all_reduce_perf --ranks 4 -b 64K -e 16M -f 4     64K, 256K, 1M, 4M, 16M; without -f 64K, 1088K, 2112K, ...\n\n"
      "  --ranks N            N processes on this host; without it rank and size come from the launcher's environment\n"
      "  --deadline D         auto, inf (exact) or a time: 5ms, 200us, 0.5 (seconds); default: the option deadline (auto)\n"
      "  --link NAME          link to use (default: the configuration's)\n"
      "  --set NAME=VALUE     any option of the library; may be repeated\n\n"
      "  -b, --minbytes SIZE  first size, default 32M; sizes are base 2\n"
      "  -e, --maxbytes SIZE  last size, default 32M\n"
      "  -i, --stepbytes SIZE add this between sizes, default 1M;   -f, --stepfactor F  multiply by F instead\n"
      "  -n, --iters N        timed operations, default 20;         -w, --warmup_iters N  default 1\n"
      "                       (deadline auto: the first rounds of a key are exact and are added to the warm-up)\n"
      "  -N, --run_cycles N   run all sizes N times, default 1; 0 = until stopped\n"
      "  -o, --op OP          sum (default), avg, min, max, prod, all\n"
      "  -d, --datatype TYPE  float (default), double, half, bfloat16, [u]int8, 16, 32, 64, all\n"
      "  -c, --check N        check N operations of each kind, default 1; 0 = none\n"
      "  -a, --average A      time over ranks: 0 rank 0, 1 mean (default), 2 least, 3 most\n"
      "  -I, --iter_stats     adds i_min i_max i_p99 (us) and i_cv%%\n"
      "  -J, --output_file F  JSON\n"
      "  -T, --timeout S      give up when a size takes longer than S seconds\n"
      "  -z, --blocking 1     a barrier after each operation; it is not timed\n\n"
      "time is from issue to return. algbw = size / time. busbw = algbw * 2(n-1)/n. GB/s is 1e9 bytes a second.\n"
      "#wrong counts received elements only; recv%% is the mean share of the others' data that was counted, at the\n"
      "rank that received least; miss is the number of operations that hit their deadline at any rank; nmse is the\n"
      "squared error against the complete answer, relative to it, on data that differ between ranks. A bandwidth says\n"
      "nothing without the recv%% on its line. p99 is of each operation's time at its slowest rank.\n"
      "See bench/README.md.\n");
}

int ar_op_of(const char *name) {
  for (int i = 0; i < TB_REDOPS; i++)
    if (!strcmp(name, ar_op_names[i])) return i;
  return -1;
}

static const ar_type *type_of(const char *name) {
  for (const ar_type *t = ar_types; t->name; t++)
    if (!strcmp(name, t->name)) return t;
  return NULL;
}

static void only(char letter, const char *value, const char *accepted, const char *why) {
  if (strcmp(value, accepted) != 0) bench_usage("-%c %s: %s", letter, value, why);
}

static void check(ar_options *o) {
  if (o->min_bytes > o->max_bytes) bench_usage("-b is larger than -e");
  if (o->factor == 0 && o->step_bytes == 0 && o->min_bytes != o->max_bytes) bench_usage("-i 0 would never end");
  if (o->factor > 0 && o->min_bytes == 0 && o->max_bytes > 0)
    bench_usage("-b 0 with -f would never end: a product with 0 stays 0");
  const ar_type *t = type_of(o->type);
  if (!t && strcmp(o->type, "all") != 0)
    bench_usage("-d %s: unknown type (float, double, half, bfloat16, int32, ...)", o->type);
  int op = ar_op_of(o->op);
  if (op < 0 && strcmp(o->op, "all") != 0)
    bench_usage("-o %s: unknown operation (sum, avg, min, max, prod, all)", o->op);
  if (t && !t->is_float && op == TB_AVG)
    bench_usage("-o avg -d %s: the average of integers is not an integer", o->type);
}

void ar_parse(int argc, char **argv, ar_options *o) {
  *o = (ar_options){.min_bytes = 32 << 20, .max_bytes = 32 << 20, .step_bytes = 1 << 20, .iters = 20, .warmup = 1,
                    .cycles = 1, .checks = 1, .average = 1, .deadline_ns = BENCH_AUTO, .deadline_given = 0, .type = "float", .op = "sum"};
  int c, have_max = 0, have_min = 0;
  while ((c = getopt_long(argc, argv, "b:e:i:f:n:w:N:o:d:c:a:IJ:T:z:t:g:m:r:G:R:p:C:", longs, NULL)) != -1) {
    switch (c) {
      case 'b': o->min_bytes = bench_size("-b", optarg); have_min = 1; break;
      case 'e': o->max_bytes = bench_size("-e", optarg); have_max = 1; break;
      case 'i': o->step_bytes = bench_size("-i", optarg); break;
      case 'f': {
        char *end;
        o->factor = strtod(optarg, &end);
        if (end == optarg || *end || !(o->factor > 1 && o->factor < 1e6))
          bench_usage("-f: \"%s\" is not a factor above 1", optarg);
        break;
      }
      case 'n': o->iters = (uint32_t)bench_number("-n", optarg, 1, 10000000); break;
      case 'w': o->warmup = (uint32_t)bench_number("-w", optarg, 0, 10000000); break;
      case 'N': o->cycles = (uint32_t)bench_number("-N", optarg, 0, 1000000000); break;
      case 'o': o->op = optarg; break;
      case 'd': o->type = optarg; break;
      case 'c': o->checks = (uint32_t)bench_number("-c", optarg, 0, 1000000); break;
      case 'a': o->average = (int)bench_number("-a", optarg, 0, 3); break;
      case 'I': o->per_iteration = 1; break;
      case 'J': o->json = optarg; break;
      case 'T': o->timeout_s = (uint32_t)bench_number("-T", optarg, 1, 1000000); break;
      case 'z': o->blocking = (int)bench_number("-z", optarg, 0, 1); break;
      case 't': only('t', optarg, "1", "a process is one rank; use --ranks N or a launcher for more"); break;
      case 'g': only('g', optarg, "1", "a process is one rank; use --ranks N or a launcher for more"); break;
      case 'm': only('m', optarg, "1", "operations are not aggregated; each is timed by itself"); break;
      case 'r': only('r', optarg, "0", "an all-reduce has no root"); break;
      case 'G': only('G', optarg, "0", "there are no CUDA graphs on host memory"); break;
      case 'R': only('R', optarg, "0", "the library registers memory where a link needs it"); break;
      case 'p': only('p', optarg, "0", "every process initialises itself, in parallel"); break;
      case 'C': only('C', optarg, "0", "CPU time is reported by bench/vs_gloo.py"); break;
      case O_DEADLINE: o->deadline_ns = bench_deadline("--deadline", optarg); o->deadline_given = 1; break;
      case O_LINK: o->link = optarg; break;
      case O_RANKS: o->ranks = (int)bench_number("--ranks", optarg, 1, 1024); break;
      case O_SET:
        if (o->sets == AR_MAX_SET) bench_usage("--set: at most %d of them", AR_MAX_SET);
        o->set[o->sets++] = optarg;
        break;
      case O_HELP: help(); exit(0);
      default: bench_usage("this option is not part of Tailbound's dialect");
    }
  }
  if (optind < argc) bench_usage("\"%s\" was not expected", argv[optind]);
  if (have_min && !have_max && o->max_bytes < o->min_bytes) o->max_bytes = o->min_bytes;
  check(o);
}
