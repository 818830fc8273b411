"""What one more rank costs: all-reduces of many simulated ranks, by number of ranks.

    python bench/sim_scale.py                        8, 64, 256 and 1024 ranks, 4 MiB each, payloads of 4 KiB
    python bench/sim_scale.py --bytes 64 --per-rank  tiny shards: 64 bytes of each rank for each other one
    python bench/sim_scale.py --loss 0.001           with a deadline far away: all that is lost is repaired in time

cpu/fr     processor time over all frames, of data and control, us: that of both ends and of the simulator
data, ctl  frames from one rank to another
ctl %      of the bytes sent: control frames; headers of data frames are not among them
MB/rank    memory of the process at its end, less that before the world was made and less the tensors, by rank
bound      2(N-1)/N * bytes / rate, with the 64 byte header that each data frame has, and two one-way delays: first and
           last bit of the two stages
ratio      virtual time over that
wire       virtual time over the same with all bytes that were really sent: what control frames do not explain
"""

import argparse
import math
import resource
import subprocess
import sys
import time

import numpy as np
import tailbound as tb

RATE, DELAY, HEADER = 10e9, 50e-6, 64
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
COLUMNS = "{:>6} {:>9} {:>6} {:>8} {:>7} {:>6} {:>6} {:>6} {:>8} {:>9} {:>8} {:>6} {:>6}"


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def sent(world):
    """Frames of data, of control, and bytes of all, so far."""
    stats = [comm.stats() for comm in world.comms]
    data = sum(peer["data_sent"] for one in stats for peer in one["peers"].values())
    return np.array([data, sum(one["tx_frames"] for one in stats) - data, sum(one["tx_bytes"] for one in stats)])


def measure(n, nbytes, mtu, loss, rounds):
    """One row per round. Inputs are shared where they are equal: of a thousand ranks' tensors one side fits."""
    count = max(nbytes // 4, n)
    before = resident()
    deadline = 10.0 if loss else float("inf")
    with tb.simulate(n, seed=1, rate="10G", delay=DELAY, loss=loss, mtu=mtu) as world:
        inputs = [np.full(count, i, np.float32) for i in range(7)]
        outputs = [np.full(count, -1, np.float32) for _ in range(n)]
        chunk = (mtu - HEADER) // 4  # elements of a full frame
        chunks = math.ceil(math.ceil(count / n) / chunk)
        payload = 2 * (n - 1) / n * 4 * count
        bound = (payload + 2 * (n - 1) * chunks * HEADER) * 8 / RATE + 2 * DELAY
        for r in range(rounds):
            for x in outputs:
                x[:] = -1
            base, start, cpu = sent(world), world.now, time.process_time()
            works = [
                comm.all_reduce_async(inputs[i % 7], x, key="k", deadline=deadline)
                for i, (comm, x) in enumerate(zip(world.comms, outputs, strict=True))
            ]
            results = [work.wait() for work in works]
            cpu = time.process_time() - cpu
            ended = max(result.elapsed for result in results)
            assert start + ended <= world.now + 1e-9
            assert all(result.received == 1 for result in results), "incomplete"
            assert all((x == sum(i % 7 for i in range(n))).all() for x in outputs), "wrong"
            data, control, wire = sent(world) - base
            memory = (resident() - before - sum(x.nbytes for x in (*inputs, *outputs))) / n
            pairs = n * (n - 1)
            of_data = n * payload + data * HEADER
            yield COLUMNS.format(
                n,
                4 * count,
                r,
                f"{cpu:.2f}",
                f"{1e6 * cpu / max(data + control, 1):.2f}",
                f"{data / pairs:.2f}",
                f"{control / pairs:.2f}",
                f"{100 * (1 - of_data / wire):.1f}",
                f"{memory / 1e6:.2f}",
                f"{1e6 * ended:.1f}",
                f"{1e6 * bound:.1f}",
                f"{ended / bound:.3f}",
                f"{ended / (wire / n * 8 / RATE + 2 * DELAY):.3f}",
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,256,1024", metavar="A,B", help="(default: %(default)s)")
    parser.add_argument("--bytes", default="4M", metavar="SIZE", help="of the tensor (default: %(default)s)")
    parser.add_argument("--per-rank", action="store_true", help="... times the number of ranks")
    parser.add_argument("--mtu", type=int, default=4096 + HEADER, help="of a frame, header included")
    parser.add_argument("--loss", type=float, default=0.0, metavar="P", help="probability, of each frame")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few ranks only")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    ranks = [int(n) for n in ("2,8" if args.quick else args.ranks).split(",")]
    if args.row:
        nbytes = size(args.bytes) * (ranks[0] if args.per_rank else 1)
        for line in measure(ranks[0], nbytes, args.mtu, args.loss, args.rounds):
            print(line, flush=True)
        return 0
    kind = "lossy" if args.loss else "exact"
    print(f"network: {RATE / 1e9:g} Gb/s, delay {DELAY * 1e6:g} us, frames of {args.mtu}, loss {args.loss:g}; {kind}")
    names = [
        "ranks",
        "bytes",
        "round",
        "cpu(s)",
        "cpu/fr",
        "data",
        "ctl",
        "ctl %",
        "MB/rank",
        "time(us)",
        "bound",
        "ratio",
    ]
    print(COLUMNS.format(*names, "wire"), flush=True)
    options = ["--loss", str(args.loss), "--rounds", str(args.rounds), "--bytes", args.bytes, "--mtu", str(args.mtu)]
    options += ["--per-rank"] if args.per_rank else []
    for n in ranks:  # a process each: memory is counted from nothing
        if subprocess.run([sys.executable, __file__, "--row", "--ranks", str(n), *options], check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
