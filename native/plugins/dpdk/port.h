/* port.h - what port.c and its parts share: the list's lock, and the steps of an open. port.c tells a port's life. */
#ifndef TB_DPDK_PORT_H
#define TB_DPDK_PORT_H
#include "plugins/dpdk/dpdk.h"

typedef struct { char *error; size_t n; } dpdk_answer;

extern pthread_mutex_t dpdk_ports_lock; /* of the list, and of opens and parks altogether */

/* port.c */
void dpdk_ports_nap(void); /* within an open: without the lock, and with the caller's signals, which may end it */
/* The sentence of a call that failed, with the first that DPDK said of it. */
int dpdk_refuse_call(dpdk_answer a, const dpdk_device *d, int rc, const char *what);

/* port_pools.c: as p->pools says. */
int dpdk_pools_make(dpdk_port *p, dpdk_answer a);
void dpdk_pools_free(dpdk_port *p);

/* port_configure.c. wanted: the largest IP packet, 0 = the device's. Makes the pools that it needs. */
int dpdk_port_configure(dpdk_port *p, uint32_t wanted, bool interrupts, dpdk_answer a);

/* port_start.c */
int dpdk_port_start(dpdk_port *p, const dpdk_wish *w, dpdk_answer a);
int dpdk_port_switch(const dpdk_port *p, bool on); /* the device alone */
void dpdk_port_drain(const dpdk_port *p);
int dpdk_port_find_mac(dpdk_port *p);

#endif
