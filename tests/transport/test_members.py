"""Views (rule 9): a dead rank is voted out and the job goes on with the others; one that was only away comes back."""

import numpy as np
import pytest
import tailbound as tb
from tailbound.work import Work

pytestmark = pytest.mark.usefixtures("quiet")

N, COUNT, DEADLINE = 4, 3000, 2e-3
DEAD = 3
SOON = {"peer_timeout": "20ms", "probe_every": "2ms", "evict_after": 4, "delay": "30us"}


def world_of(n=N, **options):
    return tb.simulate(n, **SOON | options)


def cut(world, rank, off=True):
    world.set(rank, None, blackhole=off)
    world.set(None, rank, blackhole=off)


def lossy(comm, key="k", **more):
    x = np.full(COUNT, 1.0 + comm.rank, np.float32)
    try:
        return comm.all_reduce(x, key=key, deadline=DEADLINE, **more), x
    except tb.SkippedTooOften as error:
        return error.result, x


def until_voted_out(world, but=DEAD):
    """Rounds of the others until none of them waits for the dead rank; then all have the same view."""
    def rounds(comm):
        turns = 0
        while comm.rank != but and comm.view == 1 and turns < 1000:
            lossy(comm)
            turns += 1
        return turns

    turns = world.run(rounds)
    world.advance(2e-3)
    for comm in world.comms:
        if comm.rank != but:
            assert comm.view == 2, turns
            assert comm.members == tuple(rank for rank in range(len(world.comms)) if rank != but)
    return max(turns)


def test_voted_out__the_others_take_over_its_shard_and_n_is_smaller():
    with world_of() as world:
        assert world.comms[0].members == (0, 1, 2, 3)
        world.run(lossy)
        cut(world, DEAD)
        before = [r for r, _ in world.run(lambda comm: lossy(comm) if comm.rank != DEAD else (None, None))]
        assert before[0].received < 1  # a quarter of the tensor has no owner
        turns = until_voted_out(world)
        assert turns >= SOON["evict_after"]
        for r, x in world.run(lambda comm: lossy(comm) if comm.rank != DEAD else (None, None))[:3]:
            assert (r.verdict, r.received, r.view) == ("ok", 1.0, 2)
            assert x.tolist() == [6.0] * COUNT
            assert r.mask().all()
            assert DEAD not in r.per_peer
            assert not r.deadline_hit
        # the exact class works among members, with rows for all ranks
        def exact(comm):
            if comm.rank == DEAD:
                return None
            with pytest.raises(tb.MembershipChanged, match="said once"):
                comm.barrier()  # an earlier one may have ended well here, and not elsewhere
            comm.barrier()
            rows = np.full((N, 2), -7.0)
            comm.all_gather(np.full(2, float(comm.rank)), out=rows)
            part = comm.reduce_scatter(np.ones(4 * N)).out
            word = np.full(3, float(comm.rank))
            comm.broadcast(word, root=1)
            return rows, part, word

        for rows, part, word in world.run(exact)[:3]:
            assert rows[:3].tolist() == [[0, 0], [1, 1], [2, 2]]
            assert rows[3].tolist() == [-7, -7], "there is nobody to write it"
            assert part.tolist() == [3.0] * 4
            assert word.tolist() == [1, 1, 1]
        with pytest.raises(tb.PeerLost, match="voted out"):
            world.run(lambda comm: comm.broadcast(np.zeros(3), root=DEAD) if comm.rank != DEAD else None)


def test_voted_out__off_by_a_switch():
    with world_of(evict_after=0) as world:
        cut(world, DEAD)
        world.run(lambda comm: [lossy(comm) for _ in range(60)] if comm.rank != DEAD else None)
        assert {comm.view for comm in world.comms} == {1}


@pytest.mark.parametrize("seed", range(4))
def test_rejoin__brings_it_back_in_step(seed):
    """Also with a lossy network: votes, answers and questions are repeated."""
    with world_of(loss=0.1, seed=seed) as world:
        world.run(lossy)
        cut(world, DEAD)
        until_voted_out(world)
        cut(world, DEAD, off=False)

        def come_back(comm):
            parameters = np.full(5, 42.0 if comm.rank != DEAD else 0.0)
            if comm.rank == DEAD:
                with pytest.raises(tb.MembershipChanged, match="rejoin"):
                    for _ in range(20):
                        lossy(comm)
                assert comm.rejoin() == 3
            else:
                while comm.view == 2:
                    lossy(comm)
            while True:  # what was under way when the view changed fails once
                try:
                    comm.broadcast(parameters, root=0)
                    break
                except tb.MembershipChanged:
                    continue
            return parameters, [lossy(comm) for _ in range(10)]

        found = world.run(come_back)
        for parameters, rounds in found:
            assert parameters.tolist() == [42.0] * 5
            last, x = rounds[-1]
            assert last.view == 3
            if last.verdict == "ok" and not last.late:  # else what an earlier round lost is in it, too
                assert x.tolist() == [10.0] * COUNT
        assert len({rounds[-1][0].round for _, rounds in found}) == 1
        assert [comm.members for comm in world.comms] == [(0, 1, 2, 3)] * N


def test_rejoin__of_a_member_and_without_anybody_to_ask():
    with world_of() as world:
        assert world.comms[1].rejoin() == 1
        cut(world, DEAD)
        until_voted_out(world)
        cut(world, DEAD, off=False)

        def ask(comm):
            if comm.rank != DEAD:
                lossy(comm)
                return
            with pytest.raises(tb.MembershipChanged):
                for _ in range(20):
                    lossy(comm)

        world.run(ask)
        cut(world, DEAD)
        with pytest.raises(tb.TimedOut, match=r"call rejoin\(\) again"):
            world.run(lambda comm: comm.rejoin(timeout=0.05) if comm.rank == DEAD else None)
        with pytest.raises(tb.ArgumentError):
            world.comms[0].rejoin(timeout=0)


def test_rejoin__ended_by_ctrl_c_can_be_called_again(monkeypatch):
    """The wait that nobody waits for any more is no "another thread"."""
    with world_of() as world:
        cut(world, DEAD)
        until_voted_out(world)
        cut(world, DEAD, off=False)

        def learn(comm):
            if comm.rank == DEAD:
                with pytest.raises(tb.MembershipChanged):
                    for _ in range(20):
                        lossy(comm)

        world.run(learn)
        cut(world, DEAD)
        wait, interrupts = Work.wait, [KeyboardInterrupt]

        def interrupted(work, timeout=None):
            if work._what == "rejoin" and interrupts:
                raise interrupts.pop()
            return wait(work, timeout)

        monkeypatch.setattr(Work, "wait", interrupted)

        def twice(comm):
            if comm.rank != DEAD:
                return
            with pytest.raises(KeyboardInterrupt):
                comm.rejoin()
            with pytest.raises(tb.TimedOut):
                comm.rejoin(timeout=0.05)

        world.run(twice)
        cut(world, DEAD, off=False)
        assert world.run(lambda comm: comm.rejoin(timeout=1) if comm.rank == DEAD else None)[DEAD] == 3


def test_agree__a_key_that_a_rank_did_not_know_wants_resync_there_too():
    """Or those that know it wait in resync for a rank that waits for them in the round."""
    with world_of() as world:
        cut(world, DEAD)
        until_voted_out(world)

        def agreed(comm):
            x = np.full(COUNT, 1.0 + comm.rank)
            for told in range(3):
                try:
                    comm.all_reduce(x, key="a", deadline=DEADLINE, consistency="agree")
                    return told, x[0]
                except tb.ResyncNeeded:
                    comm.resync("a", timeout=1.0)
            return None

        assert world.run(lambda comm: agreed(comm) if comm.rank != DEAD else None)[:3] == [(1, 6.0)] * 3
        cut(world, DEAD, off=False)

        def again(comm):
            if comm.rank == DEAD:
                with pytest.raises(tb.MembershipChanged):
                    for _ in range(20):
                        lossy(comm)
                comm.rejoin(timeout=1)
            while comm.view == 2:
                lossy(comm)
            return agreed(comm)

        assert world.run(again) == [(1, 10.0)] * N


def test_agree__the_job_goes_on_after_resync():
    """Rule 17: some may have returned the round that others did not, so the key wants resync, and then goes on."""
    with world_of(consistency="agree") as world:
        def agreed(comm):
            x = np.full(COUNT, 1.0 + comm.rank)
            return comm.all_reduce(x, key="a", deadline=DEADLINE), x.tobytes()

        world.run(agreed)
        cut(world, DEAD)

        def go_on(comm):
            if comm.rank == DEAD:
                return None
            failed = 0
            while True:
                try:
                    return failed, agreed(comm)
                except (tb.PeerLost, tb.MembershipChanged):
                    failed += 1
                except tb.ResyncNeeded:
                    failed += 1
                    try:
                        comm.resync("a", timeout=1.0)
                    except (tb.PeerLost, tb.MembershipChanged):
                        world.sleep(comm, 1e-3)

        found = world.run(go_on)[:3]
        assert len({x for _, (_, x) in found}) == 1
        for failed, (r, x) in found:
            assert failed >= 1
            assert (r.verdict, r.view) == ("ok", 2)
            assert np.frombuffer(x).tolist() == [6.0] * COUNT


def test_carry__nothing_of_the_survivors_is_lost_unseen():
    """What the dead rank's shards did not take is in later rounds, and what it may have counted is told."""
    with world_of(missing="carry", min_received=0, loss=0.05, seed=3) as world:
        cut(world, DEAD)

        def rounds(comm):
            total = np.zeros(COUNT)
            if comm.rank == DEAD:
                return total, 0
            for _ in range(60):
                x = np.ones(COUNT)
                comm.all_reduce(x, key="c", deadline=DEADLINE)
                total += x
                world.sleep(comm, 1e-3)
            with pytest.raises(tb.MembershipChanged):
                comm.flush("c")
            total += comm.flush("c")
            return total, comm.view

        found = world.run(rounds)[:3]
        lost = [comm.stats()["dropped_values"] for comm in world.comms[:3]]
        assert [view for _, view in found] == [2, 2, 2]
        assert all(total.tolist() == found[0][0].tolist() for total, _ in found)
        assert found[0][0].sum() + sum(lost) == 3 * 60 * COUNT
