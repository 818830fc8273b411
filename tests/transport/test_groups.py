"""all_reduce in groups of ranks: the same values in less company, by the deadline, whatever ranks and paths do.

Contributions are weights of which all subsets of eight ranks have different means: the value of an element tells whose
contributions are in it, and `received` must say the same.
"""

import itertools
import sys

import numpy as np
import pytest
import tailbound as tb

N, COUNT = 8, 3000
WEIGHTS = np.array([1009, 2503, 4001, 7919, 16033, 30011, 64007, 120011], np.float64)
SETS = np.array(list(itertools.product((0, 1), repeat=N)))[1:]  # whose
SUMS = SETS @ WEIGHTS * N / SETS.sum(axis=1)
ORDER = np.argsort(SUMS)


def whose(values):
    """Rows of SETS for these values; fails where a value is no combination of whole contributions."""
    at = np.clip(np.searchsorted(SUMS[ORDER], values - 1e-6), 0, len(ORDER) - 1)
    assert np.allclose(SUMS[ORDER][at], values, rtol=0, atol=1e-6), values
    return SETS[ORDER][at]


def check(results, outs):
    """By rank (None: it made no call): every element is right, counted right, and the same everywhere."""
    common = np.full(COUNT, np.nan)
    for rank, (result, x) in enumerate(zip(results, outs, strict=True)):
        if result is None or result.verdict == "skip":
            continue
        mask = result.mask()
        assert (x[~mask] == 0).all()
        other = common[mask]
        assert ((x[mask] == other) | np.isnan(other)).all()
        common[mask] = x[mask]
        foreign = whose(x[mask]).sum() - whose(x[mask])[:, rank].sum()
        assert result.received == pytest.approx(foreign / COUNT / (N - 1), abs=1e-12)


@pytest.mark.parametrize("seed", range(1, 6))
def test_groups__one_percent_loss__the_flat_sums_from_few_peers(seed):
    n, count = 16, 20_000
    rng = np.random.default_rng(seed)
    with tb.simulate(n, seed=seed, groups=4, rate="10G", delay="50us", loss=0.01) as world:
        for _ in range(8):
            tensors = [rng.integers(-99, 99, count).astype(np.float32) for _ in range(n)]
            expected = np.sum(tensors, axis=0)
            works = [
                comm.all_reduce_async(x, key="k", deadline=0.1) for comm, x in zip(world.comms, tensors, strict=True)
            ]
            results = [work.wait() for work in works]
            assert {(r.received, r.verdict) for r in results} == {(1.0, "ok")}
            assert all(np.array_equal(x, expected) for x in tensors)
        for comm in world.comms:
            for peer, seen in comm.stats()["peers"].items():
                kin = comm.rank // 4 == peer // 4 or comm.rank % 4 == peer % 4
                assert (seen["data_sent"] > 0) == kin
                assert (peer in results[comm.rank].by_stage[1]) == kin
                assert (peer in results[comm.rank].by_stage[2]) == kin


SHAPES = [4, 2, [[0, 2, 4, 6], [1, 3, 5, 7]], [[7, 0], [1, 6], [5, 2], [3, 4]]]


@pytest.mark.parametrize("seed", range(1, 13))
def test_groups__random_faults(seed):
    """Frames of all types lost, repeated, overtaken, damaged; ranks late, skipping rounds, in the dark for a while."""
    rng = np.random.default_rng(seed)
    limit = float(rng.choice([0.002, 0.02]))
    plan = rng.random((N, 12))
    dark = (int(rng.integers(N)), int(rng.integers(N)))
    with tb.simulate(
        N,
        seed=seed,
        groups=SHAPES[seed % len(SHAPES)],
        rate="1G",
        delay="50us",
        loss=float(rng.choice([0, 0.02, 0.1])),
        dup=0.02,
        reorder=0.02,
        corrupt=0.01,
        late_delivery=0,
        min_received=0.05,
        max_skips=1000,
    ) as world:
        rounds = {}

        def work(comm):
            for turn in range(12):
                chance = plan[comm.rank, turn]
                if chance < 0.1:
                    continue  # one call fewer: it will be behind, and jump
                if chance < 0.3:
                    world.sleep(comm, chance * 3 * limit)
                if comm.rank == dark[0] and turn in (4, 8):
                    world.set(dark[0], dark[1], blackhole=turn == 4)
                x = np.full(COUNT, WEIGHTS[comm.rank])
                result = comm.all_reduce(x, key="k", deadline=limit)
                assert result.elapsed <= limit + 1e-9
                rounds.setdefault(result.round, [(None, None)] * N)[comm.rank] = (result, x)

        world.run(work)
        assert len(rounds) >= 6
        for made in rounds.values():
            check([result for result, _ in made], [x for _, x in made])


def test_groups__a_dark_rank_costs_what_it_relays():
    """Its group lacks its column (a quarter), the others its group's part of that and its own: nobody is late."""
    n, size, dead, limit = 16, 4, 5, 0.02
    with tb.simulate(n, seed=3, groups=size, rate="10G", delay="50us", absent_after=1000, evict_after=0) as world:
        world.set(dead, None, blackhole=True)
        world.set(None, dead, blackhole=True)
        for _ in range(3):
            tensors = [np.ones(64 * n, np.float32) for _ in range(n)]
            results = [
                work.wait()
                for work in [
                    comm.all_reduce_async(x, op="avg", deadline=limit, min_received=0)
                    for comm, x in zip(world.comms, tensors, strict=True)
                ]
            ]
            for rank, (result, x) in enumerate(zip(results, tensors, strict=True)):
                if rank == dead:
                    continue
                assert result.elapsed <= limit + 1e-9
                mask = result.mask()
                assert (x[mask] == 1).all()
                mate = rank // size == dead // size
                owners_lost = size if mate else 1
                assert mask.mean() == 1 - owners_lost / n
                if mate:  # each of the other columns has all but the dead rank
                    assert result.received == pytest.approx((n - size) / n * (n - 2) / (n - 1))
                else:  # of its column they lack the whole group
                    whole, column = (n - size) / n * (n - 2), (size - 1) / n * (n - 1 - size)
                    assert result.received == pytest.approx((whole + column) / (n - 1))


@pytest.mark.parametrize("early", range(N))
@pytest.mark.parametrize("ahead", [3e-4, 3e-3])
def test_groups__a_rank_that_is_ahead_costs_no_other_group_its_part(ahead, early):
    """Owners near it close by its deadline. The other group's relays do not hear of it and have to be earlier."""
    missing, limit = 5, 0.02
    with tb.simulate(N, seed=1, groups=4, min_received=0, rate="10G", delay="50us") as world:

        def work(comm):
            for turn in range(4):
                begun = world.now
                if comm.rank == missing and turn == 3:
                    return None
                if comm.rank != early:
                    world.sleep(comm, ahead)
                received = comm.all_reduce(np.ones(8 * 97), op="avg", key="k", deadline=limit).received
                world.sleep(comm, begun + 0.03 - world.now)
            return received

        received = world.run(work)
    assert [r for r in received if r is not None] == [pytest.approx(6 / 7)] * 7, "all but the missing rank's"


def test_groups__auto_deadline_keeps_all():
    with tb.simulate(12, seed=1, groups=3, rate="10G", delay="50us", jitter="20us") as world:

        def work(comm):
            received = []
            for turn in range(40):
                world.sleep(comm, 1e-4 * ((comm.rank * 7 + turn) % 5))
                x = np.full(50_000, comm.rank, np.float32)
                received.append(comm.all_reduce(x, key="k").received)
                assert (x == 66).all()
            return received

        assert {share for shares in world.run(work) for share in shares} == {1.0}


def test_groups__kinds_of_numbers_and_outputs():
    with tb.simulate(6, seed=1, groups=[[0, 5], [1, 4], [2, 3]]) as world:

        def work(comm):
            x = np.arange(100) + comm.rank
            assert (comm.all_reduce(x.copy(), op="max", groups=True).out == np.arange(100) + 5).all()
            wide = x.astype(np.int64)
            out = np.empty_like(wide)
            comm.all_reduce(wide, out, groups=True)
            assert (out == 6 * np.arange(100) + 15).all()
            mean = x.astype(np.float64)
            comm.all_reduce(mean, op="avg", deadline=1.0, fill="own", groups=True)
            assert np.allclose(mean, np.arange(100) + 2.5)
            for half in ("float16", "agree", "carry", "bf16", "hadamard"):  # these go without, unasked
                y = x.astype(np.float16 if half == "float16" else np.float32)
                options = {
                    "agree": {"consistency": "agree"},
                    "carry": {"missing": "carry"},
                    "bf16": {"wire_dtype": "bf16"},
                    "hadamard": {"hadamard": True},
                }.get(half, {})
                comm.all_reduce(y, key=half, deadline=1.0, **options)
                assert np.allclose(y, 6 * np.arange(100) + 15, rtol=0.01)
                if comm.rank == 0:
                    with pytest.raises(tb.ArgumentError, match="groups"):
                        comm.all_reduce(y, deadline=1.0, groups=True, **{"key": "other", **options})

        world.run(work)


def test_groups__a_call_without_them():
    with tb.simulate(4, seed=1, groups=2) as world:
        works = [comm.all_reduce_async(np.ones(100, np.float32), deadline=1.0, groups=False) for comm in world.comms]
        assert {work.wait().received for work in works} == {1.0}
        assert all(peer["data_sent"] for comm in world.comms for peer in comm.stats()["peers"].values())


def test_groups__mismatch_is_named_on_every_rank():
    with tb.simulate(4, seed=1, groups=2) as world:
        works = [
            comm.all_reduce_async(np.ones(100, np.float32), key="k", deadline=float("inf"), groups=comm.rank != 2)
            for comm in world.comms
        ]
        for work in works:
            with pytest.raises(tb.MismatchError, match=r"groups=of 2 \(#.*groups=off|groups=off.*groups=of 2 \(#"):
                work.wait()


def test_groups__what_comes_late_is_flushed():
    """Rule 13: through relays as well. What was never added to an output is in the correction."""
    with tb.simulate(4, seed=1, groups=2, rate="10G", delay="50us") as world:
        world.set(2, 0, delay="30ms")  # rank 0 relays for rank 2, of the other group

        def work(comm):
            x = np.ones(1000, np.float32)
            first = comm.all_reduce(x, key="k", deadline=0.02, min_received=0.1)
            world.sleep(comm, 0.5)
            return first.received, x.copy() + comm.flush("k")

        results = world.run(work)
        assert [share < 0.7 for share, _ in results] == [True, True, False, False]
        assert all((total == 4).all() for _, total in results)


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (3, "not of one size"),
        ("0-1/2", "rank 3 is in none"),
        ([[0, 1], [1, 2]], "rank 1 is in two"),
        ([[0, 1], [2, 9]], "ranks below 4"),
        ("host", "no hosts"),
        ("many", "ranks below 4"),
        ("node", "host, local_rank, auto, off"),
        (64, "how many in each .at most 4."),
        (np.arange(4).reshape(2, 2), "lists of ranks"),
        ([], "list of lists"),
        ([[0, 1], []], "list of lists"),
        ([[0, "1"], [2, 3]], "a rank of groups"),
        (True, "groups=True"),
        (2.0, "groups=2.0"),
    ],
)
def test_groups__refused(groups, sentence):
    with pytest.raises(tb.Error, match=sentence):
        tb.simulate(4, groups=groups)


@pytest.mark.parametrize(("groups", "peers"), [(np.int64(2), 2), (None, 3), ((range(2), range(2, 4)), 2)])
def test_groups__any_whole_number_or_none(groups, peers):
    with tb.simulate(4, groups=groups) as world:
        world.run(lambda comm: comm.all_reduce(np.ones(1000, np.float32), deadline=0.1))
        assert sum(seen["data_sent"] > 0 for seen in world.comms[0].stats()["peers"].values()) == peers


def test_groups__asked_for_where_there_are_none():
    with tb.simulate(4, seed=1, groups="auto") as world:
        with pytest.raises(tb.ArgumentError, match="has no groups"):
            world.comms[0].all_reduce_async(np.ones(4, np.float32), groups=True)
        with pytest.raises(tb.ArgumentError, match="groups=2"):
            world.comms[0].all_reduce_async(np.ones(4, np.float32), groups=2)


REAL = """
import numpy as np
import tailbound as tb

with tb.init(groups={groups}, log="info") as comm:
    for turn in range(5):
        x = np.full(50_000, comm.rank + turn, np.float32)
        r = comm.all_reduce(x, key=turn, deadline=float("inf") if turn < 2 else 5.0)
        assert r.received == 1 and (x == 6 + 4 * turn).all(), r
    print(sorted(p for p, seen in comm.stats()["peers"].items() if seen["data_sent"]))
"""


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("[[0, 1], [2, 3]]", {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}),
        ("'auto'", {rank: [p for p in range(4) if p != rank] for rank in range(4)}),  # one host
        ("'local_rank'", {rank: [p for p in range(4) if p != rank] for rank in range(4)}),
    ],
)
def test_groups__real_processes(run_python, groups, expected):
    launch = [sys.executable, "-m", "tailbound", "launch", "-n", "4"]
    done = run_python(REAL.format(groups=groups), command=launch, env={"TAILBOUND_INIT_TIMEOUT": "30s"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {peers}" for rank, peers in expected.items()]


def test_groups__without_a_member_rounds_go_to_everybody():
    """A dead rank is voted out, and rounds of the same key go on among the members, flat; with it back, in groups."""
    n, dead = 8, 5
    soon = {"peer_timeout": "20ms", "probe_every": "2ms", "evict_after": 4, "delay": "30us", "max_skips": 1000}
    with tb.simulate(n, seed=1, groups=4, **soon) as world:

        def rounds(comm, most=1000):
            result = None
            for _ in range(most):
                if comm.rank == dead or (most > 1 and comm.view > 1):
                    break
                x = np.full(2000, 1.0 + comm.rank, np.float32)
                result = comm.all_reduce(x, key="k", deadline=2e-3, min_received=0.1)
            return result, x if result else None

        def back(comm):
            if comm.rank == dead:
                with pytest.raises(tb.MembershipChanged, match="rejoin"):
                    for _ in range(20):
                        whole(comm)
                comm.rejoin()

        def whole(comm):
            x = np.full(2000, 1.0 + comm.rank, np.float32)
            return comm.all_reduce(x, key="k", deadline=2e-3), x

        world.run(whole)
        for path in ((dead, None), (None, dead)):
            world.set(*path, blackhole=True)
        world.run(rounds)
        world.advance(2e-3)
        for rank, (result, x) in enumerate(world.run(lambda comm: rounds(comm, 1))):
            if rank != dead:
                assert (result.received, result.verdict, result.view) == (1.0, "ok", 2)
                assert (x == 36 - (1 + dead)).all()
        sent = world.comms[0].stats()["peers"]
        assert sent[6]["data_sent"] > 0  # no kin of rank 0 before
        for path in ((dead, None), (None, dead)):
            world.set(*path, blackhole=False)
        world.run(back)
        world.advance(0.01)
        world.run(whole)  # those that take part anew learn of each other's rounds
        before = world.comms[0].stats()["peers"][6]["data_sent"]
        for result, x in world.run(whole):
            assert (result.received, result.verdict) == (1.0, "ok")
            assert (x == 36).all()
        assert world.comms[0].stats()["peers"][6]["data_sent"] == before


def test_groups__a_relay_is_not_blamed_for_an_owner():
    """Rank 1 has nothing of dead rank 5's shard to hand out: that is no fault of its own."""
    with tb.simulate(8, seed=1, groups=4, delay="30us", evict_after=0, late_delivery=0) as world:
        for path in ((5, None), (None, 5)):
            world.set(*path, blackhole=True)
        for _ in range(12):
            works = [
                comm.all_reduce_async(np.ones(999, np.float32), key="k", deadline=2e-3, min_received=0)
                for comm in world.comms
            ]
            results = [work.wait() for work in works]
        assert all(result.elapsed < 1e-3 for result in results)  # absent: nobody waits
        missed = world.comms[0].stats()["peers"][1]["rounds_missed"]
        assert missed <= 4  # until it was known to be absent
