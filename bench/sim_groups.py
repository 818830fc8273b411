"""All-reduce in groups of ranks beside the flat one: the same bytes from fewer peers.

    python bench/sim_groups.py                  8, 64, 256 and 1024 ranks, 4 MB each, packets of 4 KB
    python bench/sim_groups.py --ranks 64 --size 4,8,16

time/bound  virtual time over 2(N-1)/N * (bytes + headers) / rate + 2 one-way delays; exact, the last of 3 rounds (of
            1024 ranks: the first)
peers       with whom a rank exchanged data
us/frame    processor time over all frames: that of both ends and of the simulator
MB/rank     memory of the process at its end, less that before the world was made and less the tensors, by rank

Then one rank of 64 is dead, and its peers wait for a deadline of 50 ms: what the others received, and how long they
took once it counts as absent.
"""

import argparse
import logging
import subprocess
import sys
import time

import numpy as np
import tailbound as tb
from sim_scale import DELAY, HEADER, RATE, resident, sent
from sim_tools import picture, table

PAYLOAD = 4096
NAMES = ("ranks", "groups of", "time/bound", "peers", "frames/rank", "us/frame", "MB/rank")
FLAT = "-"


def nearest_root(n):
    """The divisor of n closest to its root: ranks in each group."""
    return min((d for d in range(2, n // 2 + 1) if n % d == 0), key=lambda d: abs(d - n**0.5))


def bound(n, count):
    chunks = -(-(count // n) * 4 // PAYLOAD)
    return 2 * (n - 1) / n * (4 * count + n * chunks * HEADER) * 8 / RATE + 2 * DELAY


def measure(n, size, nbytes, rounds):
    """One row: the last round."""
    count = nbytes // 4
    before = resident()
    options = {"rate": "10G", "delay": DELAY, "mtu": PAYLOAD + HEADER, "memory_cap": "1G"}
    with tb.simulate(n, seed=1, groups="off" if size == FLAT else size, **options) as world:
        kinds = [np.full(count, value, np.float32) for value in range(7)]  # ranks share them: 1024 copies are too many
        outs = [np.empty(count, np.float32) for _ in range(n)]
        for _ in range(rounds):
            frames, cpu = sum(sent(world)[:2]), time.process_time()
            works = [
                comm.all_reduce_async(kinds[comm.rank % 7], out, key="k", deadline=float("inf"))
                for comm, out in zip(world.comms, outs, strict=True)
            ]
            ended = max(work.wait().elapsed for work in works)
            cpu, frames = time.process_time() - cpu, sum(sent(world)[:2]) - frames
            assert all((out == sum(rank % 7 for rank in range(n))).all() for out in outs), "wrong"
        peers = sum(peer["data_sent"] > 0 for peer in world.comms[0].stats()["peers"].values())
        memory = (resident() - before - 4 * count * (n + 7)) / n
    per_frame = f"{1e6 * cpu / frames:.2f}"
    values = f"{ended / bound(n, count):.3f}", peers, round(frames / n), per_frame, f"{memory / 1e6:.2f}"
    return dict(zip(NAMES, (n, size, *values), strict=True))


def dead(n, size, rounds=8, limit=0.05):
    """One rank has died: what the others got, those of its group (flat: all) and those of other groups."""
    lost, mates = n - 2, []
    with tb.simulate(
        n, seed=1, groups="off" if size == FLAT else size, rate="10G", delay=DELAY, mtu=PAYLOAD + HEADER, evict_after=0
    ) as world:
        if size != FLAT:
            mates = [rank for rank in range(n) if rank // size == lost // size]
        for turn in range(rounds):
            if turn == 2:  # two rounds with everybody first: costs and round trips are measured
                world.set(lost, None, blackhole=True)
                world.set(None, lost, blackhole=True)
            works = [
                comm.all_reduce_async(np.ones(n * 4096, np.float32), op="avg", key="k", deadline=limit, min_received=0)
                for comm in world.comms
            ]
            results = [work.wait() for work in works]
            if turn == 2:
                first = results
    near = [rank for rank in range(n) if rank in mates or not mates]

    def least(found, ranks):
        return min((found[rank].received for rank in ranks if rank != lost), default=float("nan"))

    far = [rank for rank in range(n) if rank not in near]
    return {
        "ranks": n,
        "groups of": size,
        "its group %": f"{100 * least(first, near):.2f}",
        "others %": f"{100 * least(first, far):.2f}",
        "first ms": f"{1e3 * max(r.elapsed for r in first):.2f}",
        "then ms": f"{1e3 * max(r.elapsed for rank, r in enumerate(results) if rank != lost):.2f}",
    }


def row(n, size, nbytes, rounds):
    """In a process of its own: memory is counted from nothing."""
    argv = [sys.executable, __file__, "--row", str(n), str(size), str(nbytes), str(rounds)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    values = done.stdout.split()
    return dict(zip(NAMES, values, strict=True))


def draw(axes, rows):
    for flat, label in ((True, "flat"), (False, "in groups")):
        part = [r for r in rows if (r["groups of"] == FLAT) == flat]
        axes.plot([int(r["ranks"]) for r in part], [float(r["time/bound"]) for r in part], "o-", label=label)
    axes.set(xscale="log", xlabel="ranks", ylabel="time over the bandwidth bound", ylim=(0.9, None))
    axes.legend()


def main():
    if sys.argv[1:2] == ["--row"]:
        n, size, nbytes, rounds = sys.argv[2:]
        print(*measure(int(n), size if size == FLAT else int(size), int(nbytes), int(rounds)).values())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,256,1024", metavar="A,B", help="(default: %(default)s)")
    parser.add_argument("--size", default="", metavar="A,B", help="ranks in each group; left out: near the root")
    parser.add_argument("--quick", action="store_true", help="few ranks only: does it run, not what it says")
    parser.add_argument("--png", metavar="FILE", help="a picture of it")
    args = parser.parse_args()
    logging.getLogger("tailbound").setLevel(logging.CRITICAL)  # the ranks warn of the dead one
    print(f"network: {RATE / 1e9:g} Gb/s, delay {DELAY * 1e6:g} us; float32, {PAYLOAD} bytes a packet")
    rows = []
    for n in [int(n) for n in ("8" if args.quick else args.ranks).split(",")]:
        sizes = [size for size in map(int, args.size.split(",")) if n % size == 0 and size < n] if args.size else []
        for size in (FLAT, *(sizes or [nearest_root(n)])):
            rows.append(row(n, size, 2**18 if args.quick else 2**22, 1 if n > 256 else 3))
    table(rows)
    print()
    n = 8 if args.quick else 64
    table([dead(n, size) for size in (FLAT, nearest_root(n))])
    picture(args.png, lambda axes: draw(axes, rows))


if __name__ == "__main__":
    main()
