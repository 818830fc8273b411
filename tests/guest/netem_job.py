"""Two ranks over a network with delay and loss; runs in the guest, because not every kernel has netem.

Two namespaces and a switch, as in bench/netlab.py; netem sits on the switch's port towards each rank.
"""
import re
import sys

import ranks

sys.path.append(str(ranks.ROOT / "bench"))

import netlab
import netlab_host

DELAY, LOSS = "5ms", "5%"
DEADLINE, OPERATIONS = 1.0, 6
LATE = 1.0  # of the worst: on a loaded host an emulated processor stands still for a while. The median may not be late.


def main():
    with netlab.Lab(2, families=(4,)) as lab:
        for rank in range(2):
            lab.offload(rank, False)  # else one loss takes a batch of datagrams
            netlab_host.tool("tc", "-n", lab.namespace(), "qdisc", "add", "dev", f"p{rank}", "root",
                             "netem", "delay", DELAY, "loss", LOSS)
        env = {"TAILBOUND_LINK": "udp", "MASTER_ADDR": lab.ip4(0)}
        specs = [{"env": env, "namespace": f"{netlab_host.NETNS}/{lab.namespace(rank)}"} for rank in range(2)]
        results = ranks.run(specs, count=40_000, operations=OPERATIONS, deadline=DEADLINE)
        ranks.check(results, OPERATIONS, least=0.99)
        for rank, result in enumerate(results):
            shown = netlab_host.tool("tc", "-s", "-n", lab.namespace(), "qdisc", "show", "dev", f"p{rank}")
            sent, dropped = map(int, re.search(r"(\d+) pkt \(dropped (\d+)", shown).groups())
            assert dropped >= 3, f"netem dropped {dropped} of {sent}:\n{shown}"
            elapsed = sorted(o["wall"] for o in result["ops"])
            assert max(o["overshoot"] for o in result["ops"]) < LATE, elapsed
            assert elapsed[OPERATIONS // 2] < DEADLINE, elapsed
            assert elapsed[0] >= 0.005, elapsed  # what the other sent takes at least one delay
            print(f"rank {rank}: {dropped} of {sent} frames dropped by netem, all_reduce {elapsed[0]:.3f} to "
                  f"{elapsed[-1]:.3f} s, deadline {DEADLINE} s")


if __name__ == "__main__":
    main()
