"""Carry and late delivery over the simulated network: what is received in its round, how old what is carried gets, and
whether the account closes. A fifth of all frames, of every type, is lost in bursts; the last rank begins every third
round late. Each row is also run without one mechanism, and without any.

    python bench/sim_carry.py                   8 ranks, 200 rounds, 5 seeds: table and sim_carry.png
    python bench/sim_carry.py --quick           4 ranks, 40 rounds, 2 seeds
    python bench/sim_carry.py --deadline 0.002 --seeds 11,12,13

Columns, median over the seeds (least .. most): `received`, mean over rounds and ranks of the share of the others'
contributions in the output; `age`, mean rounds after its own in which a carried chunk was counted, by the oldest
contribution in it; `equal`, ranks whose outputs and last correction add up to all contributions to the last bit;
`error`, norm of the difference over the norm of the sum, worst rank; `flush`, ms that flush took. Values are integers
whose sums are exact. Rounds that a rank skipped count as not received by it, but not in `received`.

The second table is of wire dtypes, with and without what rounding takes being carried (carry_rounding), on a quiet
network and on the same lossy one. `outputs`: |sum of outputs - sum of contributions| over rounds, as a share of the
largest contribution, root of the mean square over elements, worst rank: it falls as 1/rounds where rounding is carried.
`flushed`: the same with the last correction.
"""

import argparse
import logging
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "transport"))

import sim_carry

ROWS = {
    "carry": {},
    "carry, own input filled in": {"fill": "own"},
    "carry without late delivery": {"late_delivery": 0},
    "renormalise": {"missing": "renormalise", "keep_rounds": 64},
    "renormalise without late delivery": {"missing": "renormalise", "late_delivery": 0},
}


def one(args, seed, options):
    """Figures of one run."""
    net = {"delay": args.delay, "rate": args.rate, **sim_carry.BURSTS}
    account = sim_carry.run(
        args.ranks, args.rounds, args.count, seed, net, deadline=args.deadline, late=1.5 * args.deadline, **options
    )
    whole = np.linalg.norm(account.given)
    return {
        "received": float(np.mean(account.received)),
        "age": account.stat("carry_rounds") / max(account.stat("carry_applied"), 1),
        "equal": sum(bool((got == account.given).all()) for got in account.got),
        "error": max(float(np.linalg.norm(got - account.given)) for got in account.got) / whole,
        "flush": 1e3 * account.flush_time,
        "carried": account.stat("carry_deferred"),
        "late": account.stat("late_delivered"),
        "lost": account.stat("dropped_values") + account.stat("rounds_lost"),
        "behind": account.behind,
    }


def rounded(args, seed, wire, carried, lossy, rounds):
    """The errors of float32 values that travel in another type."""
    net = {"delay": args.delay, "rate": args.rate, **(sim_carry.BURSTS if lossy else {})}
    account = sim_carry.run(
        args.ranks, rounds, args.count // 4, seed, net, deadline=args.deadline, dtype=np.float32, op="avg",
        wire_dtype=wire, carry_rounding=int(carried),
    )
    scale = 1000.0 * args.ranks * rounds

    def off(sums):
        return max(float(np.sqrt(np.mean(np.square(got - account.given)))) for got in sums) / scale

    return off(account.outputs), off(account.got)


def wires(args, seeds):
    """Rows by wire dtype; True if what is carried falls with the rounds, and what is not does not."""
    few, many = max(args.rounds // 10, 5), args.rounds
    print(f"\nwire dtypes, op avg: error of the mean after {few} and {many} rounds, medians of the seeds")
    good = True
    for wire in ("bf16", "fp16", "int8"):
        for lossy in (False, True):
            for carried in (True, False):
                runs = [[rounded(args, s, wire, carried, lossy, n) for s in seeds] for n in (few, many)]
                (begin, _), (end, flushed) = (np.median(run, 0) for run in runs)
                print(
                    f"{wire:5} {'bursts of loss' if lossy else 'quiet':15}"
                    f" rounding {'carried' if carried else 'lost':8}"
                    f"outputs {begin:.1e} {end:.1e}  (x {begin / end:.1f})  flushed {flushed:.1e}",
                    flush=True,
                )
                good &= flushed < 1e-6 if carried else flushed > 1e-6
    return good


def spread(values, form):
    return f"{np.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"


def plot(found, path):
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    names = list(found)
    left.boxplot([[100 * run["received"] for run in found[name]] for name in names], orientation="horizontal")
    left.set_yticklabels(names)
    left.set_xlabel("received in its round, %")
    right.boxplot([[run["error"] for run in found[name]] for name in names], orientation="horizontal")
    right.set_yticklabels([])
    right.set_xscale("symlog", linthresh=1e-6)
    right.set_xlabel("error of the total after flush, worst rank")
    figure.savefig(path, dpi=120)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--count", type=int, default=8000, help="float64 values")
    parser.add_argument("--deadline", type=float, default=0.003, help="seconds")
    parser.add_argument("--delay", type=float, default=50e-6, help="seconds, one way")
    parser.add_argument("--rate", default="10G", help="bit/s")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--png", default="sim_carry.png")
    args = parser.parse_args()
    if args.quick:
        args.ranks, args.rounds, args.count, args.seeds = 4, 40, 1500, "1,2"
    seeds = [int(seed) for seed in args.seeds.split(",")]
    logging.getLogger("tailbound").setLevel(logging.CRITICAL)
    print(
        f"{args.ranks} ranks, {args.rounds} rounds of {args.count} float64, deadline {1e3 * args.deadline:g} ms, "
        f"{100 * 0.2:g} % of all frames lost in bursts of 5, last rank {1.5e3 * args.deadline:g} ms late every third "
        f"round, seeds {args.seeds}"
    )
    found = {}
    for name, options in ROWS.items():
        runs = found[name] = [one(args, seed, options) for seed in seeds]

        def column(key, runs=runs):
            return [run[key] for run in runs]

        print(
            f"{name:34} received {spread(column('received'), '.2%')}  age {spread(column('age'), '.2f')}  "
            f"equal {min(column('equal'))} of {args.ranks}  error {spread(column('error'), '.1e')}  "
            f"flush {spread(column('flush'), '.1f')}  chunks carried {np.median(column('carried')):.0f}, "
            f"late {np.median(column('late')):.0f}; lost {max(column('lost')):.0f}; skipped rounds "
            f"{np.median(column('behind')):.0f}",
            flush=True,
        )
    if plot(found, args.png):
        print(f"plot: {args.png}")
    rounding = wires(args, seeds)
    carried = found["carry"]
    good = all(run["equal"] == args.ranks for run in carried)
    print(f"with carry the account closes to the last bit on every rank: {'yes' if good else 'NO'}")
    print(f"with its rounding carried, it closes for wire dtypes as well: {'yes' if rounding else 'NO'}")
    return 0 if good and rounding else 1


if __name__ == "__main__":
    sys.exit(main())
