"""Rules of docs/contract.md that no other file asks for, over the simulated network and its delivery log."""

import logging

import numpy as np
import pytest
import tailbound as tb
from tailbound.arguments import call_key
from tailbound.core import lib

DATA, OPEN, RECEIPT, PROBE = 1, 2, 3, 6
EXACT = float("inf")
RING_OVERFLOW = 6


def key_hash(key):
    text = call_key(key)
    return lib.tb_key_hash(text, len(text))


def frames(world, src, dst, **fields):
    """Lines of the delivery log of one direction whose fields have these values."""
    log = world.log()
    keep = (log["src"] == src) & (log["dst"] == dst)
    for name, value in fields.items():
        keep &= log[name] == value
    return log[keep]


# ---- any number of ranks


@pytest.mark.parametrize(("ranks", "count"), [(64, 6400), (64, 3), (160, 1001)])
def test_ranks__many_of_them(ranks, count):
    with tb.simulate(ranks, delay="50us", rate="100G") as world:
        xs = [np.full(count, rank % 7, np.float32) for rank in range(ranks)]
        works = [comm.all_reduce_async(x, deadline=1.0) for comm, x in zip(world.comms, xs, strict=True)]
        results = [work.wait() for work in works]
    whole = sum(rank % 7 for rank in range(ranks))
    assert {r.received for r in results} == {1.0}
    assert all((x == whole).all() for x in xs)


# ---- rule 1: the deadline


def test_deadline__a_full_ring_does_not_hold_the_callers_memory_beyond_it():
    """What the link was slow to take counts from when it is taken: by then there may be no time to read it in place."""
    ranks, limit = 7, 0.003
    for seed in range(3):
        with tb.simulate(ranks, seed=seed, rate="1G", delay="50us", loss=0.02, min_received=0) as world:

            def rank(comm, world=world):
                works = []
                for turn in range(4):
                    works.append(comm.all_reduce_async(np.full(20_011, 1.0), key="k", deadline=limit))
                    if turn == 1:
                        world.sleep(comm, 0.001 * (comm.rank % 3))
                return [work.wait() for work in works]

            results = [result for made in world.run(rank) for result in made]
        assert max(result.elapsed for result in results) <= limit + 1e-9
        assert {result.abort for result in results} == {0.0}


# ---- rule 2: when an owner closes


def test_close__waits_for_ranks_that_have_not_announced():
    """Rank 0 runs a whole deadline ahead. Nobody closes its shard by that clock before the others have issued."""
    with tb.simulate(3, delay="50us", min_received=0) as world:

        def rank(comm):
            if comm.rank:
                world.sleep(comm, 0.015)
            return comm.all_reduce(np.ones(3000, np.float32), key="k", deadline=0.010).received

        got = world.run(rank)
    assert got[0] < 0.7, "it was too early to get the others' data"
    assert got[1:] == [pytest.approx(5 / 6)] * 2, "all but what rank 0 decided alone"


@pytest.mark.parametrize(("deadline", "served"), [(0.017, True), (0.010, False)])
def test_close__serves_ranks_within_a_quarter_of_the_budget(deadline, served):
    """Rank 3 is silent, so owners wait until they must close. Rank 2 has less time than ranks 0 and 1."""
    with tb.simulate(4, delay="50us", min_received=0) as world:
        world.set(3, None, blackhole=True)

        def rank(comm):
            seconds = deadline if comm.rank == 2 else 0.020
            return comm.all_reduce(np.ones(4000, np.float32), key="k", deadline=seconds)

        found = world.run(rank)
    assert all(found[r].elapsed <= found[r].deadline for r in range(3))
    shares = [found[2].by_stage[2][owner] for owner in (0, 1)]
    assert shares == ([1.0, 1.0] if served else [0.0, 0.0])
    assert found[0].by_stage[2][1] == 1.0


# ---- rule 3


@pytest.mark.parametrize("rate", ["1G", "10G"])
def test_auto__bytes_in_flight_lengthen_the_deadline(rate):
    """Four buckets that ran one by one so far are issued at once: each gets the time that those before it need."""
    with tb.simulate(2, rate=rate, delay="50us", mtu=9000, min_received=0, deadline_floor="1ms") as world:

        def rank(comm):
            for _ in range(10):
                alone = [comm.all_reduce(np.ones(500_000, np.float32), key=k) for k in range(4)]
            found = []
            for _ in range(5):
                works = [comm.all_reduce_async(np.ones(500_000, np.float32), key=k) for k in range(4)]
                found.append([work.wait() for work in works])
            return alone, found

        for alone, found in world.run(rank):
            assert max(r.deadline for r in alone) < EXACT
            for together in found:
                limits = [r.deadline for r in together]
                assert limits == sorted(limits)
                assert limits[3] > limits[0] + 2 * max(r.elapsed for r in alone)
            got = [r.received for together in found for r in together]
            assert min(got) > 0.9, got
            assert np.mean(got) > 0.99


# ---- rule 5


def test_returned__repairs_come_from_a_copy_of_the_library():
    """Rank 0 returns and overwrites its buffer before anything of it has reached rank 1, which still gets all of it."""
    with tb.simulate(3, delay="50us", min_received=0, log=True) as world:
        world.set(0, 1, blackhole=True)

        def rank(comm):
            x = (np.arange(6000) % 50 + 100 * comm.rank).astype(np.float32)
            r = comm.all_reduce(x, key="k", deadline=0.010 if comm.rank == 0 else 0.200)
            kept = x.copy()
            x[:] = np.nan
            if comm.rank == 0:
                world.sleep(comm, 0.010)
                world.set(0, 1, blackhole=False)
            return r, kept

        found = world.run(rank)
        returned = round(found[0][0].elapsed * 1e9)
        late = frames(world, 0, 1, type=DATA, fate=0)
    assert len(late)
    assert late["sent_ns"].min() > returned
    result, x = found[1]
    mine = result.mask()
    assert result.by_stage[1][0] == 1.0
    assert result.by_stage[2][0] == 1.0
    whole = (np.arange(6000) % 50) * 3 + 300
    same = np.isclose(x, whole)
    assert mine.all()
    assert same.sum() >= 4000, "the shards of ranks 1 and 2 have everybody in them"


# ---- rule 9


def test_absent__peer_gets_no_data_only_opens_and_probes():
    with tb.simulate(3, delay="50us", min_received=0, log=True) as world:
        world.set(2, None, blackhole=True)

        def rank(comm):
            if comm.rank == 2:
                return 0
            for _ in range(40):
                comm.all_reduce(np.ones(3000, np.float32), key="k", deadline=0.010)
                world.sleep(comm, 0.1)
            return comm.stats()["peers"][2]["absent"]

        assert world.run(rank)[:2] == [1, 1]
        sent = frames(world, 0, 2)
    after = sent[sent["sent_ns"] > 400_000_000]
    assert set(after["type"]) <= {OPEN, RECEIPT, PROBE}
    assert 2 <= (after["type"] == PROBE).sum() <= 6, "one a second"


# ---- rule 17


def test_exact__a_silent_peer_is_probed():
    """It is asked for a sign of life whenever nothing has come for a second."""
    with tb.simulate(2, delay="50us", log=True) as world:

        def rank(comm):
            if comm.rank:
                world.sleep(comm, 6)
            return comm.all_reduce(np.ones(10, np.int32)).received

        assert world.run(rank) == [1.0, 1.0]
        probes = frames(world, 0, 1, type=PROBE, key=0, fate=0)
    assert len(probes) == 5
    assert (np.abs(np.diff(probes["sent_ns"].astype(np.int64)) - 1_000_000_000) < 1_000_000).all()


def test_idle__keep_alives_flow_every_15_seconds():
    with tb.simulate(2, delay="50us", log=True) as world:
        world.run(lambda comm: comm.barrier())
        world.advance(100)
        sent = frames(world, 0, 1)["sent_ns"].astype(np.int64)
    assert 6 <= (sent > 1_000_000_000).sum() <= 24
    assert np.diff(sent).max() <= 15_100_000_000


# ---- rule 18: who is to blame


def blame(caplog, fault):
    """What the log says about rank 1 when fault(world, comm) has happened to a lossy round of two ranks."""
    caplog.set_level(logging.INFO, "tailbound")
    with tb.simulate(2, delay="50us", min_received=0, deadline=0.02) as world:

        def rank(comm):
            comm.all_reduce(np.ones(2000, np.float32), key="warm", deadline=EXACT)
            return fault(world, comm, np.ones(2000, np.float32))

        world.run(rank)
    return [text for text in caplog.messages if "rank 1, stage" in text]


def test_warning__a_late_peer_is_named(caplog):
    def fault(world, comm, x):
        world.sleep(comm, 0.1 * comm.rank)
        comm.all_reduce(x, key="k")

    (text,) = blame(caplog, fault)
    assert text.endswith("peer late")


def test_warning__loss_on_a_path_is_named_with_its_stage(caplog):
    def fault(world, comm, x):
        work = comm.all_reduce_async(x, key="k")
        if comm.rank == 1:
            world.sleep(comm, 40e-6)  # its contribution has left; what it decides will not arrive
            world.set(1, 0, loss=1)
        work.wait()

    (text,) = blame(caplog, fault)
    assert "rank 1, stage 2 gave 0.00 %: path loss" in text


def test_warning__comes_once_a_minute_and_tells_an_absent_peer(caplog):
    def fault(world, comm, x):
        world.set(1, 0, blackhole=True)
        for _ in range(10):
            comm.all_reduce(x, key="k")
        world.sleep(comm, 61)
        comm.all_reduce(x, key="k")

    first, second = blame(caplog, fault)
    assert first.endswith("peer late")
    assert second.endswith("it is absent")
    assert any(text.startswith("rank 1 is absent") for text in caplog.messages)


# ---- rule 21


def test_window__is_the_share_of_the_real_buffer():
    """Halving the buffer halves what each peer may have under way; so does doubling the number of peers."""
    windows = {}
    for ranks, buffer in ((3, 1), (3, 2), (5, 2)):
        with tb.simulate(ranks, rx_buffer=f"{buffer}M") as world:
            windows[ranks, buffer] = world.comms[0].stats()["window_frames"]
    assert windows[3, 2] == pytest.approx(2 * windows[3, 1], abs=2)
    assert windows[5, 2] == pytest.approx(windows[3, 2] / 2, abs=2)
    assert windows[3, 1] * 1472 <= (1 << 20) / 2


def test_window__a_stopped_rank_cannot_be_overrun():
    """Seven ranks send to one whose process is stopped: its receive ring holds all that their credit allows."""
    with tb.simulate(8, rx_buffer="512k", queue="16M", delay="50us", rate="10G", log=True, min_received=0) as world:
        world.set(0, None, pause="30ms")
        world.run(lambda comm: comm.all_reduce(np.ones(800_000, np.float32), key="k", deadline=0.2))
        log = world.log()
    assert (log[log["dst"] == 0]["type"] == DATA).sum() > 300
    assert not ((log["fate"] == RING_OVERFLOW) & (log["type"] == DATA)).any()


@pytest.mark.parametrize(("credit", "overflows"), [("from the buffer", False), ("of 4096 frames", True)])
def test_window__eight_to_one_never_overflows_a_stock_receive_buffer(credit, overflows):
    """Eight ranks send 1 MiB each, five times over, to one whose process stops 0.3 ms into each; its buffer has a stock
    kernel's 208 KiB. Without credit that knows the buffer it overflows: the test can fail."""
    options = {} if credit == "from the buffer" else {"window_min": 4096}
    with tb.simulate(
        9, seed=1, rx_buffer="208k", queue="16M", delay="20us", rate="10G", jitter="1us", min_received=0, **options
    ) as world:
        sent = [np.full(1 << 18, rank, np.float32) for rank in range(9)]
        boxes = [np.empty_like(one) for one in sent]
        for _ in range(5):
            works = [world.comms[0].recv_async(boxes[p], p, deadline=float("inf")) for p in range(1, 9)]
            works += [world.comms[p].send_async(sent[p], 0, deadline=float("inf")) for p in range(1, 9)]
            world.advance(300e-6)
            world.set(0, None, pause=f"{world.now + 0.002}s")
            for work in works:
                work.wait()
            assert all((boxes[p] == p).all() for p in range(1, 9))
        assert (world.comms[0].stats()["rx_overflow"] > 0) == overflows


# ---- rule 22


def test_order__earliest_deadline_goes_first():
    """The bucket that was issued last has the least time: it overtakes the other on the wire."""
    with tb.simulate(2, rate="1G", delay="50us", log=True) as world:

        def rank(comm):
            slow, fast = np.ones(400_000, np.float32), np.ones(400_000, np.float32)
            first = comm.all_reduce_async(slow, key="long", deadline=1.0)
            second = comm.all_reduce_async(fast, key="short", deadline=0.5)
            return first.wait(), second.wait()

        for first, second in world.run(rank):
            assert first.received == second.received == 1.0
            assert second.elapsed < 0.6 * first.elapsed
        ends = [frames(world, 0, 1, type=DATA, key=key_hash(key))["sent_ns"].max() for key in ("short", "long")]
    assert ends[0] < ends[1]
