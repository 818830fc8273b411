/* config_table.c - the rows. Why the order of the launchers: the one that started this very process comes before the
 * one that granted the machines, so torchrun or mpirun inside a SLURM job is understood. */
#include "engine/config_table.h"

#include "protocol/tunables.h"

#define PLAIN .tunable = SIZE_MAX

const tb_option tb_options[] = {
    {PLAIN, .name = "rank", .kind = TB_OPT_COUNT, .def = "0", .hi = 1023, .unit = "rank",
     .launchers = "RANK OMPI_COMM_WORLD_RANK PMI_RANK SLURM_PROCID", .why = "number of this process, from 0"},
    {PLAIN, .name = "size", .kind = TB_OPT_COUNT, .def = "1", .lo = 1, .hi = 1024, .unit = "ranks",
     .launchers = "WORLD_SIZE OMPI_COMM_WORLD_SIZE PMI_SIZE SLURM_NTASKS", .why = "processes of the job"},
    {PLAIN, .name = "local_rank", .kind = TB_OPT_COUNT, .def = "0", .hi = 1023, .unit = "rank",
     .launchers = "LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID",
     .why = "number of this process on its host, from 0"},
    {PLAIN, .name = "local_size", .kind = TB_OPT_COUNT, .def = "0", .hi = 1024, .unit = "ranks", .derived = 1,
     .launchers = "LOCAL_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS SLURM_STEP_TASKS_PER_NODE "
                  "SLURM_TASKS_PER_NODE",
     .why = "processes on this host; 0 = not known"},
    {PLAIN, .name = "master_addr", .kind = TB_OPT_HOST, .def = "127.0.0.1", .hi = 255, .unit = "host or address",
     .derived = 1, .launchers = "MASTER_ADDR SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST",
     .why = "where rank 0 listens for the rendezvous; of a node list the first host"},
    {PLAIN, .name = "master_port", .kind = TB_OPT_COUNT, .def = "29501", .lo = 1, .hi = 65535, .unit = "TCP port",
     .derived = 1, .launchers = "MASTER_PORT SLURM_JOB_ID SLURM_JOBID",
     .why = "rendezvous port; MASTER_PORT + 1 because torch's store sits on MASTER_PORT; of a SLURM job 20000 + its "
            "number mod 10000"},
    {PLAIN, .name = "job", .kind = TB_OPT_TEXT, .def = "default", .hi = 255, .unit = "name", .derived = 1,
     .launchers = "TORCHELASTIC_RUN_ID SLURM_JOB_ID SLURM_JOBID PMIX_NAMESPACE OMPI_MCA_ess_base_jobid PMI_JOBID",
     .why = "same on every rank; frames and connections of another job are turned away"},
    {PLAIN, .name = "restart", .kind = TB_OPT_COUNT, .def = "0", .hi = 4294967295u, .unit = "restarts",
     .launchers = "TORCHELASTIC_RESTART_COUNT SLURM_RESTART_COUNT",
     .why = "part of the job's identity: a restarted job ignores what its past left on the wire"},
    {PLAIN, .name = "link", .kind = TB_OPT_CHOICE, .def = "auto", .choices = "auto udp dpdk verbs sim",
     .unit = "auto | udp | dpdk | verbs | sim",
     .why = "what moves the frames; auto may fall back and says so, a named one is strict"},
    {PLAIN, .name = "interface", .kind = TB_OPT_TEXT, .def = "", .hi = 255,
     .unit = "eth,ib | =eth0 | ^docker | address | CIDR",
     .why = "which network to use; empty = the one that leads to the rendezvous"},
    {PLAIN, .name = "advertise", .kind = TB_OPT_HOST, .def = "", .hi = 255, .unit = "host or address",
     .why = "address told to the peers instead of the bound one (NAT); empty = the bound one"},
    {PLAIN, .name = "port_range", .kind = TB_OPT_PORTS, .def = "0", .unit = "lo-hi, 0 = any",
     .why = "UDP ports of the data, for firewalls"},
    {PLAIN, .name = "mtu", .kind = TB_OPT_COUNT, .def = "0", .hi = 65535, .unit = "bytes, 0 = the interface's",
     .why = "upper limit on a frame, header and payload together"},
    {PLAIN, .name = "flows", .kind = TB_OPT_COUNT, .def = "4", .lo = 1, .hi = 64, .unit = "sockets per rank",
     .why = "several source ports spread over equal-cost paths, receive queues and per-flow limits of clouds"},
    {PLAIN, .name = "buffer", .kind = TB_OPT_SIZE, .def = "8M", .lo = 4096, .hi = 1ull << 31, .unit = "bytes",
     .why = "socket buffer to ask for; the system may grant less, which is then reported. Link verbs: locked memory"},
    {PLAIN, .name = "device", .kind = TB_OPT_TEXT, .def = "", .hi = 400,
     .unit = "af_packet:eth1 | af_xdp:eth1 | 0000:03:00.0 | memif:/run/x.sock | net_...,k=v | mlx5_0:1",
     .why = "link dpdk: the device it takes for itself; two ranks of a host cannot share one, but for memif. Link verbs: "
            "the RDMA device, which ranks share; empty = the only one that is up"},
    {PLAIN, .name = "ip", .kind = TB_OPT_TEXT, .def = "", .hi = 60, .unit = "10.0.0.5/24 | fd00::5/64",
     .why = "link dpdk: this rank's address on its device, another for each rank; empty on all = link-local ones "
            "(169.254.x.y). Link verbs: the address of the GID to use; empty = chosen"},
    {PLAIN, .name = "gateway", .kind = TB_OPT_TEXT, .def = "", .hi = 60, .unit = "10.0.0.1 | fd00::1",
     .why = "link dpdk: the way to peers outside the network of `ip`"},
    {PLAIN, .name = "vlan", .kind = TB_OPT_COUNT, .def = "0", .hi = 4094, .unit = "1-4094, 0 = no tag",
     .why = "link dpdk: the 802.1Q tag of every frame to and from this rank; the same on all dpdk ranks"},
    {PLAIN, .name = "poll", .kind = TB_OPT_CHOICE, .def = "adaptive", .choices = "adaptive busy",
     .unit = "adaptive | busy",
     .why = "links dpdk and verbs: busy keeps a core for each rank; adaptive sleeps when nothing comes"},
    {PLAIN, .name = "zero_copy_from", .kind = TB_OPT_SIZE, .def = "0", .lo = 0, .hi = 1ull << 40, .unit = "bytes, 0 = 1 MiB",
     .why = "link verbs: tensors of at least this size are registered for the time of a call and sent from where they "
            "lie; smaller ones are copied"},
    {PLAIN, .name = "hugepages", .kind = TB_OPT_CHOICE, .def = "auto", .choices = "auto on off",
     .unit = "auto | on | off", .why = "link dpdk: the device's memory in huge pages; auto: where enough are free"},
    {PLAIN, .name = "eal_args", .kind = TB_OPT_TEXT, .def = "", .hi = 1000, .code = 1, .unit = "words",
     .why = "link dpdk: more arguments for DPDK's start"},
    {PLAIN, .name = "plugins", .kind = TB_OPT_TEXT, .def = "", .hi = 2000, .code = 1, .unit = "folder:folder",
     .why = "where links with a library of their own are looked for; empty = beside the core, then the user's folder"},
    {PLAIN, .name = "init_timeout", .kind = TB_OPT_TIME, .def = "60s", .lo = TB_MS, .hi = 24 * 3600 * TB_SEC,
     .unit = "ns", .why = "rendezvous and first probes end by then, with an error that names who is missing"},
    {PLAIN, .name = "offload", .kind = TB_OPT_SWITCH, .def = "on", .unit = "on | off",
     .why = "segmentation offloads where the system has them"},
    {PLAIN, .name = "fault", .kind = TB_OPT_FAULT, .def = "", .hi = 1000, .unit = "drop=0.01,type=data;...",
     .why = "drop, delay or duplicate frames on any link on purpose, for tests and demonstrations"},
    {PLAIN, .name = "log", .kind = TB_OPT_LEVEL, .def = "warning", .unit = "off | error | warning | info | debug",
     .why = "lines of at least this level go to stderr; a program that reads the log itself sets off"},
    {PLAIN, .name = "deadline", .kind = TB_OPT_DEADLINE, .def = "auto", .lo = 1000, .hi = 3600 * TB_SEC,
     .unit = "auto | exact | time",
     .why = "of lossy operations that name none themselves; exact waits until all has arrived"},
    {PLAIN, .name = "min_received", .kind = TB_OPT_SHARE, .def = "0.5", .unit = "share, 0 to 1",
     .why = "an operation that received less is not committed (verdict skip)"},
    {PLAIN, .name = "min_received_stage1", .kind = TB_OPT_SHARE, .def = "0", .unit = "share, 0 to 1",
     .why = "... the same for contributions to the shard that is reduced here; 0 = no such threshold"},
    {PLAIN, .name = "min_received_stage2", .kind = TB_OPT_SHARE, .def = "0", .unit = "share, 0 to 1",
     .why = "... and for the others' decided shards"},
    {PLAIN, .name = "on_skip", .kind = TB_OPT_CHOICE, .def = "skip", .choices = "skip halt", .unit = "skip | halt",
     .why = "what is not committed raises after max_skips in a row, or (halt) at once"},
    {PLAIN, .name = "missing", .kind = TB_OPT_CHOICE, .def = "renormalise", .choices = "renormalise carry",
     .unit = "renormalise | carry",
     .why = "what did not arrive in time is estimated from the rest; carry: it is added to the key's next round"},
    {PLAIN, .name = "consistency", .kind = TB_OPT_CHOICE, .def = "local", .choices = "local agree",
     .unit = "local | agree",
     .why = "each rank returns what it got in time; agree: all return the same bytes, a repair after the deadline"},
    {PLAIN, .name = "wire_dtype", .kind = TB_OPT_CHOICE, .def = "none", .choices = "none bf16 fp16 int8",
     .unit = "none | bf16 | fp16 | int8",
     .why = "what float32 sums and averages travel as: half or a quarter of the bytes, at the cost of rounding"},
    {PLAIN, .name = "hadamard", .kind = TB_OPT_CHOICE, .def = "off", .choices = "off on auto", .unit = "off | on | auto",
     .why = "float sums and averages are transformed on their way: what is lost costs all of them a little, none all; auto: by loss"},
    {PLAIN, .name = "deterministic", .kind = TB_OPT_CHOICE, .def = "off", .choices = "off on", .unit = "off | on",
     .why = "contributions are added in the order of ranks: the same bits each time, for memory of the tensor's size"},
    {PLAIN, .name = "groups", .kind = TB_OPT_TEXT, .def = "off", .hi = 8000,
     .unit = "off | auto | host | local_rank | ranks in each | 0-3/4-7",
     .why = "all_reduce within groups, across them and within again: fewer peers for each rank; the same on all ranks"},
#define X(field, value, low, high, unit_, why_) \
  {.name = #field,                              \
   .kind = TB_OPT_COUNT,                        \
   .number = value,                             \
   .lo = low,                                   \
   .hi = high,                                  \
   .unit = unit_,                               \
   .why = why_,                                 \
   .tunable = offsetof(tb_tunables, field)},
    TB_TUNABLES(X)
#undef X
#define X(field, value, place, words, unit_, why_) \
  {.name = #field,                                 \
   .kind = TB_OPT_CHOICE,                          \
   .def = value,                                   \
   .choices = words,                               \
   .unit = unit_,                                  \
   .why = why_,                                    \
   .tunable = offsetof(tb_tunables, field)},
    TB_CHOICES(X)
#undef X
};

const uint32_t tb_option_count = sizeof tb_options / sizeof *tb_options;
