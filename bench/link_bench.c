/* link_bench.c - a link without the protocol: frames from one process to another, and what each of them costs.
 *
 * For each frame size and burst: what arrived; then, of sender and receiver, frames per call of the device; per frame
 * the time and the time stamp counter's ticks inside tx_burst (rx_burst and rx_release), median of slices of 4,096
 * frames; processor time of the whole loop, with polling busily all of it; instructions of user space, by single steps
 * over 128 frames after the timed part, and those of the whole loop where the machine has a counter for them; payload
 * bytes that the link says it copied, per byte sent. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common.h"
#include "common_lb.h"
#include "links/registry.h"

enum { LIST_MAX = 16, O_LINK = 256, O_DEVICE, O_IP, O_NETNS, O_BUSY, O_CPUS, O_HUGE, O_NO_STEPS, O_JSON };

typedef struct {
  lb_outcome end[2];
  double steps[2];         /* instructions per frame; < 0 = none */
} figures;

static void help(void) {
  printf("link_bench: a link alone, between two processes\n\n"
         "  link_bench [options] [FRAME ...]       bytes, with a 64 byte header; default 1472\n\n"
         "  --link NAME          udp (default) or dpdk\n"
         "  --device A,B         of the sender and the receiver (dpdk): af_packet:v0,af_packet:v1; memif:/run/s.sock\n"
         "  --ip A,B             their addresses (dpdk): 10.9.0.1/24,10.9.0.2/24\n"
         "  --netns A,B          network namespaces that they live in\n"
         "  --hugepages auto|on|off   (dpdk)\n"
         "  -i, --interface I    (udp) default 127.0.0.1\n"
         "  -b, --burst LIST     frames handed over, or asked for, at once; at most 256; default 1,8,32,64\n"
         "  -s, --seconds S      of each row, default 2\n"
         "  -w, --window MIB     under way at most, default 1; 0 = as fast as the link takes them\n"
         "  -f, --flows N;  -n, --no-offload (one datagram a call);  -r, --reduce (the receiver adds up the floats)\n"
         "  --busy               both look without end, and never sleep\n"
         "  -p, --pin            the same as --cpus 0,1;   --cpus A,B   pins sender and receiver\n"
         "  --no-steps           do not count instructions by single steps\n"
         "  --json               an object a line instead of the table\n");
}

/* "A,B", or one word for both; memif's device is one word, and words of DPDK's own have commas: those want ';'. */
static void two(const char *text, const char *out[2]) {
  char *copy = strdup(text), *comma = strchr(copy, strchr(copy, ';') ? ';' : ',');
  out[0] = out[1] = copy;
  if (!comma) return;
  *comma = 0;
  out[1] = comma + 1;
}

static uint32_t numbers(const char *flag, const char *text, uint32_t *out, uint64_t most) {
  char *copy = strdup(text), *rest = copy;
  uint32_t n = 0;
  for (char *word; (word = strsep(&rest, ",")); n++) {
    if (n == LIST_MAX) bench_usage("%s: at most %d values", flag, LIST_MAX);
    out[n] = (uint32_t)bench_number(flag, word, 1, most);
  }
  free(copy);
  return n;
}

static pid_t begin(const lb_options *o, int who, int *fd) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) bench_die("socketpair: %s", strerror(errno));
  fflush(stdout);
  pid_t child = fork();
  if (child < 0) bench_die("fork: %s", strerror(errno));
  if (!child) {
    close(pair[0]);
    if (who == LB_SENDER) lb_sender(o, pair[1]);
    lb_receiver(o, pair[1]);
  }
  close(pair[1]);
  *fd = pair[0];
  return child;
}

static double median(double *v, int n) { return n ? bench_summary(v, (size_t)n).p50 : -1; }

/* What an end's frames cost in instructions: its stretches, less an empty one. */
static double step(pid_t child, int fd) {
  uint64_t counts[LB_STEP_TURNS + 1];
  double each[LB_STEP_TURNS];
  lb_message m = {.kind = LB_STEP};
  int n = 0, rc = bench_steps_seize(child);
  if (rc) bench_die("this system does not let us step through our own child (%s): --no-steps", strerror(-rc));
  lb_say(fd, &m);
  int found = bench_steps_follow(child, fd, counts, LB_STEP_TURNS + 1);
  lb_hear(fd, LB_STEPPED, &m);
  for (int i = 1; i < found; i++)
    if (m.frames[i]) each[n++] = (double)(counts[i] - counts[0]) / m.frames[i];
  return median(each, n);
}

static void pass(int from, int to, char kind, lb_message *m) {
  lb_hear(from, kind, m);
  lb_say(to, m);
}

static void finish(pid_t child, int fd) {
  int status;
  lb_message m = {.kind = LB_OVER};
  lb_say(fd, &m);
  if (waitpid(child, &status, __WALL) != child || !WIFEXITED(status) || WEXITSTATUS(status))
    bench_die("a process of this run failed");
  close(fd);
}

static figures measure(const lb_options *o) {
  figures f = {.steps = {-1, -1}};
  lb_message m, theirs;
  int s, r;
  pid_t receiver = begin(o, LB_RECEIVER, &r);
  lb_hear(r, LB_ADDRESS, &theirs);
  pid_t sender = begin(o, LB_SENDER, &s);
  pass(s, r, LB_ADDRESS, &m);
  lb_say(s, &theirs);
  pass(r, s, LB_HEARD, &m);
  lb_hear(s, LB_OUTCOME, &m);
  f.end[LB_SENDER] = m.outcome;
  usleep(50000);
  m.kind = LB_OVER;
  lb_say(r, &m);
  lb_hear(r, LB_OUTCOME, &m);
  f.end[LB_RECEIVER] = m.outcome;
  if (o->steps) {
    f.steps[LB_SENDER] = step(sender, s);
    usleep(20000); /* what it sent has arrived */
    f.steps[LB_RECEIVER] = step(receiver, r);
  }
  finish(sender, s);
  finish(receiver, r);
  return f;
}

static const char *number(double v, int digits, char out[32]) {
  if (v < 0) snprintf(out, 32, "none");
  else snprintf(out, 32, "%.*f", digits, v);
  return out;
}

static double per(double a, double b) { return b > 0 ? a / b : 0; }

static double ns_of(const lb_outcome *e) { return e->call_ticks * per((double)e->loop.ns, (double)e->loop.ticks); }

static double counted(const lb_outcome *e) {
  return e->no_counter ? -1 : per((double)e->loop.instructions, (double)e->frames);
}

static void print_row(const lb_options *o, const figures *f) {
  const lb_outcome *s = &f->end[LB_SENDER], *r = &f->end[LB_RECEIVER];
  double rate = per((double)r->frames, (double)r->active_ns * 1e-9), payload = o->frame - LB_HEAD;
  char a[32];
  printf("%7u %5u %9.4f %7.2f %7.3f |", o->frame, o->burst, rate * 1e-6, rate * payload * 8e-9,
         100 * (1 - per((double)r->frames, (double)s->frames)));
  for (int i = 0; i < 2; i++) {
    const lb_outcome *e = &f->end[i];
    printf(" %6.1f %7.0f %7.0f %7.0f", per((double)e->frames, (double)e->link_calls), ns_of(e), e->call_ticks,
           per((double)e->loop.cpu_ns, (double)e->frames));
    printf(" %6s", number(f->steps[i], 0, a));
    printf(" %6s |", number(counted(e), 0, a));
  }
  printf(" %s\n", number(s->copied == TB_NONE ? -1 : per((double)s->copied, (double)s->payload), 3, a));
  fflush(stdout);
}

static void print_json(const lb_options *o, const figures *f) {
  const lb_outcome *s = &f->end[LB_SENDER], *r = &f->end[LB_RECEIVER];
  const char *const names[] = {"tx", "rx"};
  printf("{\"link\": \"%s\", \"frame\": %u, \"burst\": %u, \"sent\": %llu, \"received\": %llu", o->ops->name, o->frame,
         o->burst, (unsigned long long)s->frames, (unsigned long long)r->frames);
  printf(", \"packets_per_s\": ");
  bench_json_num(stdout, per((double)r->frames, (double)r->active_ns * 1e-9));
  printf(", \"copied\": ");
  bench_json_num(stdout, s->copied == TB_NONE ? (double)NAN : per((double)s->copied, (double)s->payload));
  for (int i = 0; i < 2; i++) {
    const lb_outcome *e = &f->end[i];
    const struct { const char *name; double value; } v[] = {
        {"frames_per_call", per((double)e->frames, (double)e->link_calls)}, {"ns", ns_of(e)}, {"ticks", e->call_ticks},
        {"cpu_ns", per((double)e->loop.cpu_ns, (double)e->frames)}, {"instructions", f->steps[i]},
        {"counted_instructions", counted(e)}};
    printf(", \"%s\": {", names[i]);
    for (size_t j = 0; j < sizeof v / sizeof *v; j++) {
      printf("%s\"%s\": ", j ? ", " : "", v[j].name);
      bench_json_num(stdout, v[j].value < 0 ? (double)NAN : v[j].value);
    }
    printf("}");
  }
  printf("}\n");
  fflush(stdout);
}

static void print_head(const lb_options *o) {
  bench_meter m;
  bench_meter_open(&m);
  printf("# %.1f s a row, %s, %s; per frame; ticks: of the time stamp counter, which counts at a fixed rate; instr:\n"
         "# of user space in the call%s; all: of the whole loop, kernel included: ", o->seconds,
         o->window_mib > 0 ? "with a window" : "no window", o->busy ? "busy" : "sleeping",
         o->steps ? ", by single steps" : "");
  if (m.fd < 0) printf("none, this machine does not count them (perf_event_open: %s)\n", strerror(m.why_not));
  else printf("by its counter\n");
  bench_meter_close(&m);
  const char *half = "fr/call      ns   ticks  cpu ns  instr    all";
  printf("#                                          |%46s |%46s |\n", "sender   ", "receiver   ");
  printf("# frame burst      Mpps    Gb/s  lost(%%) | %s | %s | copied\n", half, half);
}

typedef struct {
  const char *link;
  uint32_t bursts[LIST_MAX], count;
  bool json;
} request;

static const struct option longs[] = {
    {"link", 1, 0, O_LINK}, {"device", 1, 0, O_DEVICE}, {"ip", 1, 0, O_IP}, {"netns", 1, 0, O_NETNS},
    {"hugepages", 1, 0, O_HUGE}, {"interface", 1, 0, 'i'}, {"burst", 1, 0, 'b'}, {"seconds", 1, 0, 's'},
    {"window", 1, 0, 'w'}, {"flows", 1, 0, 'f'}, {"no-offload", 0, 0, 'n'}, {"reduce", 0, 0, 'r'},
    {"busy", 0, 0, O_BUSY}, {"pin", 0, 0, 'p'}, {"cpus", 1, 0, O_CPUS}, {"no-steps", 0, 0, O_NO_STEPS},
    {"json", 0, 0, O_JSON}, {"help", 0, 0, 'h'}, {0, 0, 0, 0}};

static void parse_cpus(const char *text, int cpu[2]) {
  const char *each[2];
  two(text, each);
  for (int i = 0; i < 2; i++) cpu[i] = (int)bench_number("--cpus", each[i], 0, 1023);
}

static int parse_pages(const char *text) {
  if (!strcmp(text, "on")) return TB_HUGE_ON;
  if (!strcmp(text, "off")) return TB_HUGE_OFF;
  if (strcmp(text, "auto")) bench_usage("--hugepages is auto, on or off");
  return TB_HUGE_AUTO;
}

static double parse_window(const char *text) {
  char *end;
  double mib = strtod(text, &end);
  if (end == text || *end || !(mib >= 0) || mib > 4096) bench_usage("-w: \"%s\" is not a number of MiB", text);
  return mib;
}

static void parse(int argc, char **argv, lb_options *o, request *q) {
  int c;
  while ((c = getopt_long(argc, argv, "i:b:s:f:w:nrph", longs, NULL)) != -1) switch (c) {
    case O_LINK: q->link = optarg; break;
    case O_DEVICE: two(optarg, o->device); break;
    case O_IP: two(optarg, o->ip); break;
    case O_NETNS: two(optarg, o->netns); break;
    case O_CPUS: parse_cpus(optarg, o->cpu); break;
    case O_HUGE: o->hugepages = parse_pages(optarg); break;
    case O_BUSY: o->busy = true; break;
    case O_NO_STEPS: o->steps = false; break;
    case O_JSON: q->json = true; break;
    case 'i': o->interface = optarg; break;
    case 'b': q->count = numbers("-b", optarg, q->bursts, LB_BURST_MAX); break;
    case 's': o->seconds = (double)bench_time("-s", optarg) * 1e-9; break;
    case 'f': o->flows = (uint32_t)bench_number("-f", optarg, 1, 1024); break;
    case 'w': o->window_mib = parse_window(optarg); break;
    case 'n': o->no_offload = true; break;
    case 'r': o->reduce = true; break;
    case 'p': o->cpu[0] = 0, o->cpu[1] = 1; break;
    case 'h': help(); exit(0);
    default: bench_usage("--help lists the options");
  }
}

static void run(lb_options *o, const request *q, const char *frame) {
  o->frame = (uint32_t)bench_number("a frame size", frame, LB_HEAD + 4, 65507);
  for (uint32_t b = 0; b < q->count; b++) {
    o->burst = q->bursts[b];
    figures f = measure(o);
    o->said = true;
    if (q->json) print_json(o, &f);
    else print_row(o, &f);
  }
}

int main(int argc, char **argv) {
  lb_options o = {.seconds = 2, .window_mib = 1, .interface = "127.0.0.1", .cpu = {-1, -1}, .steps = true};
  request q = {.link = "udp", .bursts = {1, 8, 32, 64}, .count = 4};
  char folders[2048], error[1024] = "";
  bench_program = "link_bench";
  parse(argc, argv, &o, &q);
  signal(SIGPIPE, SIG_IGN);
  tb_plugin_folders(folders, sizeof folders);
  if (tb_link_find(q.link, folders, &o.ops, error, sizeof error)) bench_die("%s", error);
  if (!q.json) print_head(&o);
  if (optind == argc) run(&o, &q, "1472");
  for (; optind < argc; optind++) run(&o, &q, argv[optind]);
  return 0;
}
