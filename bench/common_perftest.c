/* common_perftest.c - see common_perftest.h. Letters are perftest's; those that choose an RDMA device have a reason. */
#include "common_perftest.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { O_DEADLINE = 256, O_LINK, O_SET, O_GBITS, O_JSON, O_JSON_FILE, O_BIND, O_HELP };

static const struct option longs[] = {
    {"port", 1, 0, 'p'},          {"size", 1, 0, 's'},      {"iters", 1, 0, 'n'},        {"duration", 1, 0, 'D'},
    {"all", 0, 0, 'a'},           {"bidirectional", 0, 0, 'b'}, {"tx-depth", 1, 0, 't'}, {"rx-depth", 1, 0, 'r'},
    {"CPU-freq", 0, 0, 'F'},      {"ib-dev", 1, 0, 'd'},    {"ib-port", 1, 0, 'i'},      {"gid-index", 1, 0, 'x'},
    {"mtu", 1, 0, 'm'},           {"connection", 1, 0, 'c'}, {"qp", 1, 0, 'q'},          {"rdma_cm", 0, 0, 'R'},
    {"post_list", 1, 0, 'l'},     {"cq-mod", 1, 0, 'Q'},    {"report_gbits", 0, 0, O_GBITS}, {"out_json", 0, 0, O_JSON},
    {"out_json_file", 1, 0, O_JSON_FILE}, {"deadline", 1, 0, O_DEADLINE}, {"link", 1, 0, O_LINK},
    {"set", 1, 0, O_SET},         {"bind_source_ip", 1, 0, O_BIND}, {"help", 0, 0, O_HELP}, {0, 0, 0, 0},
};

static void help(const pt_options *o, const char *what, int latency) {
  printf("%s\n\n  server: %s [options]      client: %s [options] HOST      with the same options on both sides\n\n",
         what, bench_program, bench_program);
  printf("  -p, --port PORT      of the rendezvous, TCP, default %u\n"
         "  -s, --size BYTES     of a message, even, default %llu;   -a, --all  2, 4, ... 2^23\n"
         "  -n, --iters N        messages, default %u;   -D, --duration S  seconds instead\n",
         o->port, (unsigned long long)o->bytes, o->iters);
  if (!latency)
    printf("  -b, --bidirectional  both sides send; bandwidths are sums over both ways\n"
           "  -t, --tx-depth N     messages under way, default %u (fewer when they would hold more than 256 MiB)\n"
           "      --report_gbits   Gb/sec instead of MiB/sec (1 Gb = 1e9 bits)\n", o->depth);
  printf("      --deadline D     of each message: inf (default: repeated until it arrived), auto or a time: 5ms\n"
         "      --link NAME, --set NAME=VALUE      link, and any option of the library\n"
         "      --bind_source_ip ADDRESS           server: where to listen, default all addresses\n"
         "      --out_json, --out_json_file FILE   default perftest_out.json\n\n"
         "recv%% is the share of the bytes that arrived in time. See bench/README.md.\n");
}

static void refuse(int letter) {
  static const struct {
    int letter;
    const char *why;
  } reasons[] = {
      {'d', "there is no RDMA device to choose; the interface is --set interface=eth0"},
      {'i', "there is no RDMA port to choose; the interface is --set interface=eth0"},
      {'x', "there is no GID to choose; the interface is --set interface=eth0"},
      {'m', "the MTU is agreed between the peers; an upper limit is --set mtu=BYTES"},
      {'c', "the transport is the link: --link NAME"},
      {'q', "the number of flows is --set flows=N"},
      {'R', "the rendezvous is always Tailbound's own"},
      {'l', "the library batches by itself"},
      {'Q', "the library reaps completions by itself"},
  };
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (reasons[i].letter == letter) bench_usage("-%c: %s", letter, reasons[i].why);
  bench_usage("this option is not part of Tailbound's dialect");
}

void pt_parse(int argc, char **argv, pt_options *o, const char *what, int latency) {
  int c;
  while ((c = getopt_long(argc, argv, "p:s:n:D:abt:r:Fd:i:x:m:c:q:Rl:Q:h", longs, NULL)) != -1) {
    switch (c) {
      case 'p': o->port = (uint32_t)bench_number("-p", optarg, 1, 65535); break;
      case 's': o->bytes = bench_size("-s", optarg); break;
      case 'n': o->iters = (uint32_t)bench_number("-n", optarg, 1, 100000000); break;
      case 'D': o->duration_ns = bench_number("-D", optarg, 1, 1000000) * 1000000000ull; break;
      case 'a': o->all = 1; break;
      case 'F': break; /* no warning about CPU frequencies to switch off; scripts pass it */
      case 'b':
        if (latency) bench_usage("-b: a ping-pong goes both ways already");
        o->both = 1;
        break;
      case 't': case 'r':
        if (latency) bench_usage("-%c: a ping-pong has one message under way", c);
        o->depth = (uint32_t)bench_number(c == 't' ? "-t" : "-r", optarg, 1, 65536);
        break;
      case O_GBITS:
        if (latency) bench_usage("--report_gbits: this is a latency test");
        o->gbits = 1;
        break;
      case O_JSON: if (!o->json) o->json = "perftest_out.json"; break;
      case O_JSON_FILE: o->json = optarg; break;
      case O_DEADLINE: o->deadline_ns = bench_deadline("--deadline", optarg); break;
      case O_LINK: o->link = optarg; break;
      case O_BIND: o->bind = optarg; break;
      case O_SET:
        if (o->sets == PT_MAX_SET) bench_usage("--set: at most %d of them", PT_MAX_SET);
        o->set[o->sets++] = optarg;
        break;
      case 'h': case O_HELP: help(o, what, latency); exit(0);
      default: refuse(c);
    }
  }
  if (optind < argc) o->host = argv[optind++];
  if (optind < argc) bench_usage("\"%s\" was not expected: one host name makes this side the client", argv[optind]);
  if (o->bytes < 2 || o->bytes % 2) bench_usage("-s %llu: sizes are even and at least 2", (unsigned long long)o->bytes);
}

/* With different options each side would wait for messages that the other never sends. */
static void compare(const pt_options *o, tb_comm *comm) {
  static const char *const names[] = {"-s", "-n", "-D", "-a", "-b", "-t", "--deadline inf"};
  enum { N = sizeof names / sizeof *names };
  double mine[N] = {(double)o->bytes, o->iters, (double)o->duration_ns / 1e9, o->all, o->both, o->depth,
                    o->deadline_ns == BENCH_EXACT}, ends[2 * N];
  for (int i = 0; i < N; i++) ends[i] = mine[i], ends[N + i] = -mine[i];
  bench_reduce(comm, TB_MAX, ends, 2 * N);
  for (int i = 0; i < N; i++) {
    if (ends[i] == -ends[N + i]) continue;
    double other = mine[i] == ends[i] ? -ends[N + i] : ends[i];
    bench_die("%s differs: %.0f here (%s), %.0f on the other side; start both with the same options", names[i], mine[i],
              o->host ? "client" : "server", other);
  }
}

tb_comm *pt_connect(const pt_options *o) {
  tb_config *cfg;
  char port[16];
  if (tb_config_new(&cfg) != 0) bench_die("configuration: %s", tb_last_error());
  snprintf(port, sizeof port, "%u", o->port);
  bench_set(cfg, "rank", o->host ? "1" : "0");
  bench_set(cfg, "size", "2");
  bench_set(cfg, "job", "perftest");
  bench_set(cfg, "master_addr", o->host ? o->host : o->bind ? o->bind : "0.0.0.0");
  bench_set(cfg, "master_port", port);
  if (!o->host) bench_set(cfg, "init_timeout", "1h"); /* a server waits for its client */
  if (o->link) bench_set(cfg, "link", o->link);
  for (int i = 0; i < o->sets; i++) bench_set_pair(cfg, "--set", o->set[i]);
  static const char line[] = "************************************";
  if (!o->host) printf("\n%s\n* Waiting for client to connect... *\n%s\n", line, line);
  fflush(stdout);
  tb_comm *comm = bench_init(cfg);
  tb_config_free(cfg);
  compare(o, comm);
  return comm;
}

void pt_banner(const pt_options *o, tb_comm *comm) {
  char deadline[32];
  bench_deadline_name(o->deadline_ns, deadline, sizeof deadline);
  printf("---------------------------------------------------------------------------------------\n"
         " tailbound %s %s, %s\n %s\n deadline of a message: %s%s\n"
         "---------------------------------------------------------------------------------------\n",
         tb_version(), bench_program, o->host ? "client" : "server", tb_describe(comm), deadline,
         o->both ? "   bidirectional" : "");
}

static uint32_t tag_of(uint64_t bytes, int way) {
  uint32_t log = 0;
  while (bytes >> log > 1) log++;
  return log * 4 + (uint32_t)way + 1;
}

tb_call pt_message(const pt_options *o, int kind, int peer, uint64_t bytes, int way, void *buffer) {
  tb_call call = {.struct_size = sizeof call, .kind = kind, .dtype = TB_BF16, .root = peer, .count = bytes / 2,
                  .tag = tag_of(bytes, way),
                  .deadline_ns = o->deadline_ns};
  if (kind == TB_SEND) call.in = buffer;
  else call.out = buffer;
  return call;
}

static void stop_issue(pt_stop *s, tb_comm *comm, int kind, int peer, uint64_t bytes, int way) {
  tb_call call = {.struct_size = sizeof call, .kind = kind, .dtype = TB_U64, .root = peer, .count = 1,
                  .tag = tag_of(bytes, PT_STOP + way),
                  .deadline_ns = BENCH_EXACT};
  if (kind == TB_SEND) call.in = &s->total;
  else call.out = &s->total;
  s->work = bench_issue(comm, &call);
}

void pt_stop_post(pt_stop *s, tb_comm *comm, int peer, uint64_t bytes, int way) {
  stop_issue(s, comm, TB_RECV, peer, bytes, way);
}

void pt_stop_tell(pt_stop *s, tb_comm *comm, int peer, uint64_t bytes, int way, uint64_t total) {
  s->total = total;
  stop_issue(s, comm, TB_SEND, peer, bytes, way);
}

int pt_stop_heard(pt_stop *s) {
  if (s->work && tb_done(s->work)) pt_stop_end(s);
  return s->work == NULL;
}

void pt_stop_end(pt_stop *s) {
  if (s->work) bench_finish(s->work, "the message that ends the run");
  s->work = NULL;
}

FILE *pt_json_open(const pt_options *o, tb_comm *comm, const char *test) {
  if (!o->json) return NULL;
  FILE *f = fopen(o->json, "w");
  if (!f) bench_die("%s: %s", o->json, strerror(errno));
  char deadline[32];
  bench_deadline_name(o->deadline_ns, deadline, sizeof deadline);
  fputs("{\"test\": ", f);
  bench_json_str(f, test);
  fputs(", \"side\": ", f);
  bench_json_str(f, o->host ? "client" : "server");
  fputs(", \"tailbound_version\": ", f);
  bench_json_str(f, tb_version());
  fputs(", \"link\": ", f);
  bench_json_str(f, tb_describe(comm));
  fputs(", \"deadline\": ", f);
  bench_json_str(f, deadline);
  fprintf(f, ", \"bidirectional\": %s,\n\"results\": [", o->both ? "true" : "false");
  return f;
}

void pt_json_row(FILE *f, int first, const char *const *names, const double *values, int n) {
  if (!f) return;
  fputs(first ? "\n{" : ",\n{", f);
  for (int i = 0; i < n; i++) {
    fprintf(f, "%s\"%s\": ", i ? ", " : "", names[i]);
    bench_json_num(f, values[i]);
  }
  fputc('}', f);
}

void pt_json_close(const pt_options *o, FILE *f) {
  if (!f) return;
  fputs("]}\n", f);
  if (fclose(f) != 0) bench_die("%s: %s", o->json, strerror(errno));
}
