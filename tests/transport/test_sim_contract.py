"""The contract, rule by rule, over the simulated network: named scenarios with figures."""

import time

import numpy as np
import pytest
import sim_shows
import tailbound as tb
from sim_job import Job, Op, Step, run
from sim_record import contribution

pytestmark = pytest.mark.usefixtures("quiet")


# ---- the figures of sim_shows, few operations each


def test_one_peer_blackholed__the_others_lose_nothing_on_live_shards():
    figure = sim_shows.blackholed(16)
    assert figure.wrong == []
    assert figure.values["rounds in the dark"] == 8
    assert figure.values["live data on live shards, least"] >= 0.95
    assert figure.values["worst overshoot us"] == 0


def test_late_issuer__owner_duty_keeps_its_shard_alive():
    figure = sim_shows.late_issuer(10)
    assert figure.wrong == []
    assert figure.values["rounds"] == 10
    assert figure.values["the others' data, least"] >= 0.95
    assert figure.values["on the late rank's shard, least"] >= 0.95
    assert figure.values["worst overshoot us"] == 0


@pytest.mark.parametrize(("chunks", "turns"), [(10, 300), (500, 8)])
def test_one_percent_loss__repaired_within_twice_the_lossless_time(chunks, turns):
    figure = sim_shows.lossy(turns, chunks)
    assert figure.wrong == []
    assert figure.values["refused"] == 0
    assert figure.values["mean received, worst rank %"] >= 99.99


@pytest.mark.parametrize(
    ("n", "chunks", "delay"),
    [
        *((n, chunks, 50e-6) for n in (2, 4, 8) for chunks in (1, 10, 100)),
        (4, 1000, 50e-6),
        (4, 100, 5e-6),
        (4, 100, 1e-3),
    ],
)
def test_no_faults__all_received_and_near_the_ideal(n, chunks, delay):
    figure = sim_shows.faultless(4, n, chunks, delay)
    assert figure.wrong == []
    assert figure.values["received, least"] == 1
    assert figure.values["time / ideal, first"] <= 1.1
    assert figure.values["time / ideal, worst after it"] <= 1.1


# ---- rounds


def test_stopped_rank__jumps_to_the_others_round():
    """Rule 8: it is behind when it wakes, says so, and is in step from the next beat on."""
    beat = 0.006
    with tb.simulate(4, delay="50us") as world:

        def rank(comm):
            found = []
            while world.now < 12 * beat:
                if comm.rank == 3 and round(world.now / beat) == 3:
                    world.set(3, None, pause=f"{world.now + 4.2 * beat}s")
                    world.sleep(comm, 4.2 * beat)
                world.sleep(comm, (int(world.now / beat + 1e-6) + 1) * beat - world.now)
                at = round(world.now / beat)
                found.append((at, comm.all_reduce(np.ones(2000), key="k", deadline=0.005)))
            return found

        ranks = world.run(rank)
    rounds = {at: r.round for at, r in ranks[0]}
    jumps = [(at, r) for at, r in ranks[3] if r.behind]
    assert len(jumps) == 1
    at, r = jumps[0]
    assert r.behind == 4
    assert r.round == rounds[at]
    assert {r.received for found in ranks for when, r in found if when > at} == {1.0}
    assert all(r.round == rounds[when] for when, r in ranks[3])
    assert all(r.elapsed <= 0.005 for _, r in ranks[0])


def test_anonymous_operations__never_jump():
    op = Op(2000, None, deadline=0.005)
    plan = [Step((op,), pause=(0.0, 0.0, 0.02) if t == 1 else ()) for t in range(6)]
    found = run(Job(3, tuple(plan), net={"delay": 50e-6}))
    assert found.check().wrong == []
    for rank in range(3):
        assert [c.result.round for c in found.calls if c.rank == rank] == list(range(6))


def test_absent_peer__costs_nothing_and_comes_back():
    """Rule 9: after three rounds of silence nobody waits; any frame revives it."""
    times, received = [], []
    with tb.simulate(4, delay="50us", min_received=0) as world:

        def rank(comm):
            for turn in range(16):
                if comm.rank == 0 and turn in (2, 9):
                    for src, dst in ((3, None), (None, 3)):
                        world.set(src, dst, blackhole=turn == 2)
                if world.now < 0.3 * turn:
                    world.sleep(comm, 0.3 * turn - world.now)
                r = comm.all_reduce(np.ones(5000), deadline=0.02)
                if comm.rank == 0:
                    times.append(r.elapsed)
                    received.append(r.received)
                    if turn == 8:
                        assert comm.stats()["peers"][3]["absent"] == 1

        world.run(rank)
        assert all(comm.stats()["peers"][p]["absent"] == 0 for comm in world.comms for p in comm.stats()["peers"])
    assert max(times[:2]) < 0.001
    assert max(times[2:5]) <= 0.02
    assert max(times[5:9]) < 0.001
    assert min(received[2:9]) > 0
    assert received[13:] == [1, 1, 1]
    assert times[-1] < 0.001


def test_returned_is_not_retired__repairs_come_from_the_librarys_copy():
    """Rule 5: rank 0 gives up first, and its memory is its own again; the owner still gets what rank 0 contributed."""
    n, size = 4, 4 * 2000
    with tb.simulate(n, delay="50us") as world:

        def rank(comm):
            if comm.rank == 0:
                world.set(0, 1, blackhole=True)
            x = np.arange(size) * 10.0**comm.rank
            work = comm.all_reduce_async(x, deadline=0.002 if comm.rank == 0 else 0.02, min_received=0)
            if comm.rank != 0:
                r = work.wait()
                return r, x
            r = work.wait()
            x.fill(1e300)
            world.sleep(comm, 0.001)  # that it has closed the round is lost as well: the owner would not wait
            world.set(0, 1, blackhole=False)
            world.sleep(comm, 0.03)
            assert (x == 1e300).all()
            return r, None

        results = world.run(rank)
    mine, _ = results[0]
    assert mine.deadline_hit
    assert mine.received < 1
    for r, x in results[1:]:
        assert r.received == 1
        assert (x == np.arange(size) * 1111.0).all()


# ---- verdicts


def deaf_world(n=3, **options):
    """Nothing reaches anybody."""
    return tb.simulate(n, blackhole=True, **options)


def test_skip__leaves_the_input_in_place_and_elsewhere():
    with deaf_world() as world:

        def rank(comm):
            x = contribution(comm.rank, 0, 999, "float64", "sum", 3).astype(float)
            keep = x.copy()
            r = comm.all_reduce(x, deadline=0.005)
            out = np.zeros_like(x)
            s = comm.all_reduce(x, out, deadline=0.005)
            return r.verdict, s.verdict, (x == keep).all(), (out == keep).all()

        assert world.run(rank) == [("skip", "skip", True, True)] * 3


def test_max_skips__raises_and_restores():
    with deaf_world(absent_after=100) as world:

        def rank(comm):
            x = np.arange(50, dtype=np.float32)
            verdicts = [comm.all_reduce(x, key="k", deadline=0.005).verdict for _ in range(2)]
            with pytest.raises(tb.SkippedTooOften, match=r"3 rounds in a row.*min_received=0.5"):
                comm.all_reduce(x, key="k", deadline=0.005)
            verdicts.append(comm.all_reduce(x, key="k", deadline=0.005).verdict)  # the count starts again
            return verdicts, (x == np.arange(50)).all()

        assert world.run(rank) == [(["skip"] * 3, True)] * 3


# ---- the exact class


def test_exact__a_stopped_peer_ends_it_with_its_name():
    with tb.simulate(3, peer_timeout="2s") as world:

        def rank(comm):
            if comm.rank == 1:
                world.set(1, None, pause="never")
                world.sleep(comm, 5)
                return None
            x = np.arange(40, dtype=np.int32)
            began = world.now
            with pytest.raises(tb.PeerLost, match="rank 1 was silent"):
                comm.all_reduce(x)
            assert 2 <= world.now - began < 2.2
            assert (x == np.arange(40)).all()
            with pytest.raises(tb.PeerLost, match="rank 1"):  # at once, until it is heard
                comm.barrier()
            return world.now - began

        first, _, third = world.run(rank)
        assert max(first, third) < 2.3


def test_exact__lateness_alone_ends_nothing():
    with tb.simulate(3, peer_timeout="1s") as world:

        def rank(comm):
            x = np.full(10, comm.rank + 1, np.int64)
            world.sleep(comm, 7.0 * (comm.rank == 2))
            comm.all_reduce(x)
            return x[0]

        assert world.run(rank) == [6, 6, 6]


def test_exact__an_error_bound_restores_the_input():
    with tb.simulate(2) as world:

        def rank(comm):
            if comm.rank == 1:
                world.sleep(comm, 1)
                return
            x = np.arange(6, dtype=np.int32)
            with pytest.raises(tb.TimedOut, match="rank 1 has not issued"):
                comm.all_reduce(x, deadline=0.25)
            assert 0.25 <= world.now < 0.26
            assert (x == np.arange(6)).all()

        world.run(rank)


HOSTILE = {"loss": 0.1, "dup": 0.05, "jitter": "100us", "corrupt": 0.03, "truncate": 0.03} | {
    "reorder": 0.1,
    "reorder_by": "200us",
}


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_exact_collectives__complete_over_a_hostile_network(n):
    size = 700
    with tb.simulate(n, seed=n, delay="80us", **HOSTILE) as world:

        def rank(comm):
            me = comm.rank
            x = np.arange(n * size, dtype=np.int64) * (me + 1)
            whole = n * (n + 1) // 2
            piece = comm.reduce_scatter(x).out
            assert (piece == np.arange(n * size)[me * size : (me + 1) * size] * whole).all()
            gathered = comm.all_gather(piece).out
            assert (gathered.ravel() == np.arange(n * size) * whole).all()
            root = n - 1
            y = np.linspace(0, 1, size) if me == root else np.zeros(size)
            comm.broadcast(y, root)
            assert (y == np.linspace(0, 1, size)).all()
            z = np.full(size, me + 0.5)
            assert comm.all_reduce(z, deadline=float("inf")).received == 1
            assert (z == n * (n - 1) / 2 + n / 2).all()
            world.sleep(comm, 0.001 * me)
            last = world.now
            comm.barrier()
            return last, world.now

        ends = world.run(rank)
        assert min(after for _, after in ends) >= max(before for before, _ in ends)


def test_send_recv__lossy_says_what_arrived():
    with tb.simulate(2, loss=0.1, delay="100us", rate="1G", min_received=0) as world:

        def rank(comm):
            x = np.arange(1, 60_001, dtype=np.float32)
            if comm.rank == 0:
                return comm.send(x, 1, tag=3, deadline=0.003).received, None
            y = np.full_like(x, 7)
            r = comm.recv(y, 0, tag=3, deadline=0.003)
            mask = r.mask()
            assert (y[mask] == x[mask]).all()
            assert (y[~mask] == 0).all()
            assert abs(mask.mean() - r.received) < 1e-9
            return r.received, r.elapsed

        (_, _), (received, elapsed) = world.run(rank)
        assert 0.1 < received < 1
        assert elapsed <= 0.003


def test_send_recv__tags_match_whatever_the_order():
    with tb.simulate(3, seed=4, delay="80us", **HOSTILE) as world:

        def rank(comm):
            if comm.rank == 0:
                works = [comm.send_async(np.full(900, i, np.int32), 2, tag=i % 2) for i in range(6)]
                return [w.wait().received for w in works]
            found = []
            if comm.rank == 2:
                for tag in (1, 0, 1, 0, 1, 0):
                    x = np.zeros(900, np.int32)
                    comm.recv(x, 0, tag=tag)
                    assert (x == x[0]).all()
                    found.append(int(x[0]))
            return found

        assert world.run(rank) == [[1.0] * 6, [], [1, 0, 3, 2, 5, 4]]


# ---- mismatch


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda comm: comm.all_reduce_async(np.ones(11), key="k", deadline=0.02), ("10", "11")),
        (lambda comm: comm.all_reduce_async(np.ones(10, np.float32), key="k", deadline=0.02), ("float64", "float32")),
        (lambda comm: comm.all_reduce_async(np.ones(10), key="k", op="avg", deadline=0.02), ("sum", "avg")),
        (lambda comm: comm.all_reduce_async(np.ones(10), key="k", deadline=float("inf")), ("lossy", "exact")),
    ],
)
def test_mismatch__is_named_on_every_rank_and_restores(wrong, words):
    with tb.simulate(4, delay="100us", loss=0.05) as world:

        def rank(comm):
            x = np.full(10, comm.rank + 1.0)
            work = wrong(comm) if comm.rank == 2 else comm.all_reduce_async(x, key="k", deadline=0.02)
            try:
                work.wait()
                comm.all_reduce(np.ones(10), key="k", deadline=0.02)  # it may learn only after it returned
            except tb.MismatchError as error:
                assert (x == comm.rank + 1).all() or comm.rank != 2
                return str(error)
            return "no error"

        said = world.run(rank)
    for text in said:
        assert "rank 2" in text, said
        assert all(word in text for word in words), said


def test_time__thousands_of_virtual_rounds_are_cheap():
    began = time.monotonic()
    op = Op(100, "k", deadline=0.01)
    found = run(Job(2, (Step((op,)),) * 300, net={"delay": 50e-6}))
    assert {c.result.received for c in found.calls} == {1.0}
    assert time.monotonic() - began < 30


def test_rank_that_never_issues__leaves_time_to_hand_out():
    """All chunks close at the same moment then, and everything is handed out at once in what was reserved for it. The
    reserve comes from rounds in which both stages went side by side."""
    n, shares = 8, []
    net = {"delay": "50us", "rate": "10G", "queue": "1M"}
    with tb.simulate(n, **net, min_received=0, max_skips=1000, absent_after=1000) as world:

        def rounds(comm, deadline):
            return comm.all_reduce(np.ones(262_144, np.float32), key="k", deadline=deadline)

        for _ in range(5):
            world.run(lambda comm: rounds(comm, 0.05))
        for _ in range(8):
            for r in world.run(lambda comm: rounds(comm, 3e-3) if comm.rank else None)[1:]:
                shares += [share for peer, share in r.by_stage[2].items() if peer]
    assert np.mean(shares) > 0.9  # 0.82 while four round trips were taken off what a byte costs, and not two
