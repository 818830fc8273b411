"""What one more rank costs: all-reduces of many simulated ranks, by number of ranks.

    python bench/sim_scale.py                        8, 64, 256 and 1024 ranks, each shard a few elements: one chunk
    python bench/sim_scale.py --ranks 8,64,256 --bytes 4M
    python bench/sim_scale.py --loss 0.001           with a deadline far away: all that is lost is repaired in time

us/frame   processor time over all frames, of data and control: that of both ends and of the simulator
f/pair     frames from one rank to another
MB/rank    memory of the process at its end, less that before the world was made and less the tensors, by rank
ratio      virtual time over 2(N-1)/N * (bytes + headers) / rate + 2 one-way delays
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import tailbound as tb

RATE, DELAY, HEADER = 10e9, 50e-6, 64
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
COLUMNS = "{:>6} {:>9} {:>6} {:>9} {:>9} {:>7} {:>8} {:>9} {:>8} {:>6}"


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def frames(world):
    return sum(comm.stats()["tx_frames"] for comm in world.comms)


def measure(n, nbytes, loss, rounds):
    """One row per round."""
    count = max(nbytes // 4, n)
    before = resident()
    deadline = 10.0 if loss else float("inf")
    with tb.simulate(n, seed=1, rate="10G", delay=DELAY, loss=loss) as world:
        tensors = [np.empty(count, np.float32) for _ in range(n)]
        chunk = (1472 - HEADER) // 4  # elements of a full frame
        chunks = -(-(count // n) // chunk)
        bound = 2 * (n - 1) / n * (4 * count + n * chunks * HEADER) * 8 / RATE + 2 * DELAY
        for r in range(rounds):
            for rank, tensor in enumerate(tensors):
                tensor[:] = rank % 7
            sent, start, cpu = frames(world), world.now, time.process_time()
            works = [
                comm.all_reduce_async(x, key="k", deadline=deadline)
                for comm, x in zip(world.comms, tensors, strict=True)
            ]
            results = [work.wait() for work in works]
            cpu = time.process_time() - cpu
            ended = max(result.elapsed for result in results)
            assert start + ended <= world.now + 1e-9
            assert all(result.received == 1 for result in results), "incomplete"
            assert all((x == sum(i % 7 for i in range(n))).all() for x in tensors), "wrong"
            sent = frames(world) - sent
            memory = (resident() - before - sum(x.nbytes for x in tensors)) / n
            yield COLUMNS.format(
                n,
                4 * count,
                r,
                f"{cpu:.2f}",
                f"{1e6 * cpu / max(sent, 1):.2f}",
                f"{sent / n / (n - 1):.2f}",
                f"{memory / 1e6:.2f}",
                f"{1e6 * ended:.1f}",
                f"{1e6 * bound:.1f}",
                f"{ended / bound:.2f}",
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,256,1024", metavar="A,B", help="(default: %(default)s)")
    parser.add_argument("--bytes", default="", metavar="SIZE", help="of the tensor; left out: 64 bytes a rank")
    parser.add_argument("--loss", type=float, default=0.0, metavar="P", help="probability, of each frame")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few ranks only")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    ranks = [int(n) for n in ("2,8" if args.quick else args.ranks).split(",")]
    if args.row:
        for line in measure(ranks[0], size(args.bytes) if args.bytes else 64 * ranks[0], args.loss, args.rounds):
            print(line, flush=True)
        return 0
    kind = "lossy" if args.loss else "exact"
    print(f"network: {RATE / 1e9:g} Gb/s, delay {DELAY * 1e6:g} us, loss {args.loss:g}; float32, {kind}")
    print(
        COLUMNS.format(
            *["ranks", "bytes", "round", "cpu(s)", "us/frame", "f/pair", "MB/rank", "time(us)", "bound", "ratio"]
        )
    )
    options = ["--loss", str(args.loss), "--rounds", str(args.rounds)]
    for n in ranks:  # a process each: memory is counted from nothing
        argv = [sys.executable, __file__, "--row", "--ranks", str(n), *options]
        if subprocess.run(argv + (["--bytes", args.bytes] if args.bytes else []), check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
