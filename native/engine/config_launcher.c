/* config_launcher.c - what torchrun, SLURM and Open MPI say in a form of their own. */
#include "engine/config_parse.h"
#include "engine/config_table.h"
#include "engine/error.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set and not empty; the name is kept as the source. */
static const char *first_of(const char *const *names, char *source, size_t n) {
  for (; *names; names++) {
    const char *value = getenv(*names);
    if (value && *value) {
      snprintf(source, n, "%s", *names);
      return value;
    }
  }
  return NULL;
}

static int host_char(char c) { return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_'; }

/* A name may hold several brackets ("rack[1-2]n[3-4]"): the first host takes the first number of each. */
int tb_nodelist_first(const char *list, char *host, size_t n) {
  size_t used = 0;
  const char *p = list;
  while (*p && *p != ',') {
    const char *from = p, *to;
    if (*p == '[') {
      from = ++p;
      while (isdigit((unsigned char)*p)) p++;
      to = p;
      if (to == from) return -EINVAL;
      while (*p && *p != ']') {
        if (!isdigit((unsigned char)*p) && *p != '-' && *p != ',') return -EINVAL;
        p++;
      }
      if (*p++ != ']') return -EINVAL;
    } else {
      while (host_char(*p)) p++;
      to = p;
      if (to == from) return -EINVAL;
    }
    if ((size_t)(to - from) >= n - used) return -EINVAL;
    memcpy(host + used, from, (size_t)(to - from));
    used += (size_t)(to - from);
  }
  if (used == 0) return -EINVAL;
  host[used] = 0;
  return 0;
}

int tb_tasks_on_node(const char *list, uint64_t node, uint64_t *tasks) {
  const char *p = list;
  uint64_t next = 0;
  while (*p) {
    char *end;
    if (!isdigit((unsigned char)*p)) return -EINVAL;
    uint64_t count = strtoull(p, &end, 10), repeat = 1;
    p = end;
    if (strncmp(p, "(x", 2) == 0) {
      if (!isdigit((unsigned char)p[2])) return -EINVAL;
      repeat = strtoull(p + 2, &end, 10);
      if (*end != ')') return -EINVAL;
      p = end + 1;
    }
    if (repeat > node - next) {
      *tasks = count;
      return 0;
    }
    next += repeat;
    if (*p == ',')
      p++;
    else if (*p)
      return -EINVAL;
  }
  return -EINVAL;
}

static int master_addr(char *value, size_t n, char *source, size_t source_n) {
  static const char *const plain[] = {"MASTER_ADDR", NULL};
  static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", NULL};
  const char *text = first_of(plain, source, source_n);
  if (text) {
    snprintf(value, n, "%s", text);
    return 1;
  }
  text = first_of(lists, source, source_n);
  if (!text) return 0;
  if (tb_nodelist_first(text, value, n))
    return tb_fail(-EINVAL,
                   "%s=%s is not a node list like node[001-004,7],x; set TAILBOUND_MASTER_ADDR to the host of rank 0",
                   source, text);
  return 1;
}

/* torch keeps its own store on MASTER_PORT, so ours is the next one. A SLURM job has no port of its own: its number
 * gives every rank the same one, below the kernel's ephemeral ports. */
static int master_port(char *value, size_t n, char *source, size_t source_n) {
  static const char *const plain[] = {"MASTER_PORT", NULL};
  static const char *const jobs[] = {"SLURM_JOB_ID", "SLURM_JOBID", NULL};
  uint64_t number;
  const char *text = first_of(plain, source, source_n);
  if (text) {
    if (tb_parse_count(text, &number) || number < 1 || number > 65535)
      return tb_fail(-EINVAL, "MASTER_PORT=%s is not a port: a whole number from 1 to 65535", text);
    snprintf(value, n, "%" PRIu64, number < 65535 ? number + 1 : number - 1);
    return 1;
  }
  text = first_of(jobs, source, source_n);
  if (!text) return 0;
  if (tb_parse_count(text, &number))
    return tb_fail(-EINVAL, "%s=%s is not a job number; set TAILBOUND_MASTER_PORT", source, text);
  snprintf(value, n, "%" PRIu64, 20000 + number % 10000);
  return 1;
}

static int job(char *value, size_t n, char *source, size_t source_n) {
  static const char *const elastic[] = {"TORCHELASTIC_RUN_ID", NULL};
  static const char *const slurm[] = {"SLURM_JOB_ID", "SLURM_JOBID", NULL};
  static const char *const step[] = {"SLURM_STEP_ID", "SLURM_STEPID", NULL};
  static const char *const pmi[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", NULL};
  char step_source[32];
  const char *text = first_of(elastic, source, source_n);
  if (!text && (text = first_of(slurm, source, source_n))) {
    const char *number = first_of(step, step_source, sizeof step_source);
    snprintf(value, n, "%s%s%s", text, number ? "." : "", number ? number : "");
    return 1;
  }
  if (!text) text = first_of(pmi, source, source_n);
  if (!text) return 0;
  snprintf(value, n, "%s", text);
  return 1;
}

static int local_size(char *value, size_t n, char *source, size_t source_n) {
  static const char *const plain[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", NULL};
  static const char *const lists[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", NULL};
  uint64_t node, tasks;
  const char *text = first_of(plain, source, source_n);
  if (text) {
    snprintf(value, n, "%s", text);
    return 1;
  }
  const char *here = getenv("SLURM_NODEID");
  if (!here || tb_parse_count(here, &node) || !(text = first_of(lists, source, source_n))) return 0;
  if (tb_tasks_on_node(text, node, &tasks)) return 0; /* a hint only: not worth an error */
  snprintf(value, n, "%" PRIu64, tasks);
  return 1;
}

int tb_launcher_derive(const char *option, char *value, size_t value_len, char *source, size_t source_len) {
  if (strcmp(option, "master_addr") == 0) return master_addr(value, value_len, source, source_len);
  if (strcmp(option, "master_port") == 0) return master_port(value, value_len, source, source_len);
  if (strcmp(option, "job") == 0) return job(value, value_len, source, source_len);
  if (strcmp(option, "local_size") == 0) return local_size(value, value_len, source, source_len);
  return 0;
}
