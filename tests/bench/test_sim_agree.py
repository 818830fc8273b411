"""sim_agree.py: what its judge of rounds notices, and that faults make ranks differ where they do not agree."""

import sim_agree
from sim_agree import Call


def test_differing__bytes_and_verdicts():
    same = [Call(rank, 3, "ok", b"xyz") for rank in range(3)]
    assert sim_agree.differing(same) == []
    assert "[2]" in sim_agree.differing([*same[:2], Call(2, 3, "ok", b"xyy")])[0]
    assert sim_agree.differing([*same[:2], Call(2, 3, "partial", b"xyz")])
    assert (
        sim_agree.differing([*same[:2], Call(2, 3, "PeerLost", raised=True)]) == []
    )  # who raised has returned nothing
    assert sim_agree.differing([Call(0, 3, "ok", b"x"), Call(1, 4, "ok", b"y")]) == []


def test_run__agreed_ranks_do_not_differ_where_local_ones_do():
    agree, local = (
        sim_agree.run("everything", mode, kill=False, seed=11, deadline=0.001) for mode in ("agree", "local")
    )
    assert agree.n == local.n > 1
    assert agree.wrong == []
    assert len(local.wrong) > 10
    assert len(agree.calls) == agree.n * sim_agree.LENGTH  # agreed rounds are not skipped


def test_run__a_killed_rank_is_silent_and_the_others_come_to_an_end():
    job = sim_agree.run("bursty", "agree", kill=True, seed=3, deadline=0.002)
    after = [call for call in job.calls if call.rank != job.victim and call.round >= job.killed]
    assert job.n > 2
    assert job.wrong == []
    assert len([call for call in after if call.raised]) == job.n - 1  # once each; then they go on without it
    assert len([call for call in after if not call.raised]) >= (job.n - 1) * (sim_agree.LENGTH - job.killed - 1)
    assert not any(call.rank == job.victim and call.round >= job.killed for call in job.calls)
