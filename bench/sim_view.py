"""A rank is killed at each step of a round, over the simulated network; the others vote it out. What does that cost,
and what would the dead rank cost without it?

    python bench/sim_view.py            8 ranks, 12 moments, 5 seeds: table
    python bench/sim_view.py --quick    4 moments, 1 seed
    python bench/sim_view.py --png a.png

Rounds of 96 KB of float32, deadline 3 ms, 10 Gb/s, 50 us one way, 1 % of all frames lost; peer_timeout 50 ms stands
for the 10 s of real jobs. One rank dies at a moment spread over the length of a round. Columns, median over all
runs (least .. most): `rounds hit`, rounds of the survivors that lacked something until the view changed; `until
view`, ms from the death to the first survivor's new view, and `spread`, ms until the last has it; `received before`
and `after`, means of the survivors' rounds while the dead rank is a member, and after; `time`, median round after
over median round before the death; `dropped`, values of the survivors that nobody can account for, in parts per
million of what they gave in the 50 ms (carry: told by dropped_values; the rest of what the dead owner had taken
went back); `failed`, calls that raised, per survivor. `back`: ms that rejoin() took for a rank that was only cut
off.
"""

from __future__ import annotations

import statistics

import numpy as np
import tailbound as tb
from common_sim import arguments, side_by_side
from sim_tools import picture, spread, table

RANKS, COUNT, DEADLINE, BEFORE, AFTER = 8, 24_000, 3e-3, 20, 40
DEAD = RANKS - 1
NET = {"delay": 50e-6, "rate": "10G", "loss": 0.01, "peer_timeout": "50ms", "probe_every": "5ms"}
CLASSES = {
    "renormalise": {},
    "carry": {"missing": "carry", "min_received": 0},
    "agree": {"consistency": "agree"},
    "renormalise, never voted out": {"evict_after": 0},
    "carry, never voted out": {"missing": "carry", "min_received": 0, "evict_after": 0},
}


def _cut(world, off):
    world.set(DEAD, None, blackhole=off)
    world.set(None, DEAD, blackhole=off)


def _in_step(comm):
    while True:
        try:
            return comm.resync("w")
        except tb.MembershipChanged:  # it is said once
            continue


def _one(name, moment, seed):
    """One life: rounds, a death `moment` seconds into a round, rounds until the view changed, rounds after it."""
    options = {"evict_after": 10} | CLASSES[name]
    got = {"hit": [], "until": [], "before": [], "during": [], "after": [], "t_before": [], "t_after": [], "failed": 0}
    with tb.simulate(RANKS, seed=seed, **NET, **options) as world:
        x = [np.empty(COUNT, np.float32) for _ in range(RANKS)]

        def round_of(comm):
            x[comm.rank][:] = 1.0
            try:
                return comm.all_reduce(x[comm.rank], key="w", deadline=DEADLINE)
            except tb.SkippedTooOften as error:
                return error.result

        for _ in range(BEFORE):
            for r in world.run(round_of):
                got["before"].append(r.received)
                got["t_before"].append(r.elapsed)
        start = world.now

        def life(comm):
            if comm.rank == DEAD:
                try:
                    round_of(comm)
                except tb.Error:
                    return
                return
            if comm.rank == 0:  # the one that looks at the clock
                world.sleep(comm, moment)
                _cut(world, True)
            hit, failed, limit = 0, 0, start + 0.4
            while comm.view == 1 and world.now < (limit if options["evict_after"] else start + 0.1):
                try:
                    r = round_of(comm)
                    got["during"].append(r.received)
                    hit += r.received < 1
                except tb.ResyncNeeded:
                    failed += 1
                    try:
                        comm.resync("w", timeout=0.2)
                    except (tb.PeerLost, tb.MembershipChanged, tb.TimedOut):
                        world.sleep(comm, 1e-3)
                except (tb.PeerLost, tb.MembershipChanged):
                    failed += 1
                    world.sleep(comm, 1e-3)
            got["hit"].append(hit)
            got["until"].append(world.now - start - moment)
            got["failed"] += failed

        world.run(life)
        if options.get("consistency") == "agree" and options["evict_after"]:
            world.run(lambda comm: _in_step(comm) if comm.rank != DEAD else None)
        given = (RANKS - 1) * COUNT * statistics.mean(got["hit"]) or 1
        for _ in range(AFTER):
            for r in world.run(lambda comm: round_of(comm) if comm.rank != DEAD else None)[:DEAD]:
                got["after"].append(r.received)
                got["t_after"].append(r.elapsed)
        dropped = sum(comm.stats()["dropped_values"] for comm in world.comms[:DEAD])
        back = float("nan")
        if options["evict_after"]:
            _cut(world, False)

            def come_back(comm):
                if comm.rank != DEAD:
                    while comm.view == 2:
                        try:
                            round_of(comm)
                        except (tb.MembershipChanged, tb.ResyncNeeded, tb.PeerLost):
                            world.sleep(comm, 1e-3)
                    return 0.0
                while True:
                    try:
                        try:
                            round_of(comm)
                        except tb.ResyncNeeded:
                            comm.resync("w", timeout=0.05)
                    except tb.MembershipChanged:
                        since = world.now
                        comm.rejoin(timeout=1.0)
                        return world.now - since
                    except (tb.PeerLost, tb.TimedOut):
                        world.sleep(comm, 1e-3)

            back = world.run(come_back)[DEAD]
    return {
        "rounds hit": statistics.mean(got["hit"]),
        "until view": 1e3 * min(got["until"]),
        "spread": 1e3 * (max(got["until"]) - min(got["until"])),
        "received before": 100 * statistics.mean(got["during"] or [float("nan")]),
        "after": 100 * statistics.mean(got["after"]),
        "time": statistics.median(got["t_after"]) / statistics.median(got["t_before"]),
        "dropped": 1e6 * dropped / given,
        "failed": got["failed"] / (RANKS - 1),
        "back": 1e3 * back,
    }


def main():
    args = arguments(__doc__)
    moments = np.linspace(0, 1e-3, 4 if args.quick else 12)
    names = list(CLASSES)
    tasks = [(name, float(moment), seed) for name in names for moment in moments for seed in args.seeds]
    runs = side_by_side(_one, tasks, args.quick)
    rows, by_name = [], {name: [] for name in names}
    for (name, _, _), found in zip(tasks, runs, strict=True):
        by_name[name].append(found)
    for name, found in by_name.items():
        row = {"": name}
        for column in found[0]:
            values = [run[column] for run in found if run[column] == run[column]]
            row[column] = spread(values, "{:.2f}".format) if values else "-"
        rows.append(row)
    print(f"{RANKS} ranks, one killed at {len(moments)} moments of a round, seeds {args.seeds}")
    table(rows)
    for name in names:
        if "never" not in name:
            after = [run["after"] for run in by_name[name]]
            print(f"{name}: received after the change {min(after):.2f} % at least, of all members")

    def draw(axes):
        axes.boxplot([[run["after"] for run in by_name[name]] for name in names], orientation="horizontal")
        axes.set_yticklabels(names)
        axes.set_xlabel("received after the change, %")

    picture(args.png, draw)


if __name__ == "__main__":
    main()
