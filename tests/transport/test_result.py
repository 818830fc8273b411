"""result.py and errors.py: what a call tells, and how an errno becomes an exception."""

import dataclasses
import errno
import os
import pickle

import numpy as np
import pytest
import tailbound as tb
from tailbound.errors import from_errno, from_init
from tailbound.result import means, owed


def make(**changes):
    values = {
        "received": 0.9,
        "verdict": "partial",
        "deadline_hit": True,
        "elapsed": 0.05,
        "deadline": 0.05,
        "round": 7,
        "behind": 1,
        "per_peer": {1: 1.0, 2: 0.7},
        "by_stage": {1: {1: 1.0, 2: 0.4}, 2: {1: 1.0, 2: 1.0}},
        **changes,
    }
    return tb.Result(**values)


def test_per_stage__means_over_peers():
    assert make().per_stage == {1: 0.7, 2: 1.0}
    assert make(by_stage={1: {}}).per_stage == {1: 1.0}


def test_per_peer__is_the_mean_of_what_was_owed():
    """The core writes NaN where a peer owed nothing in a stage; that is neither 0 nor 1."""
    nan, peers = float("nan"), [0, 2, 3, 4]
    by_stage = {1: owed([0.5, 1.0, nan, 0.2, nan], peers), 2: owed([1.0, 1.0, 0.4, nan, nan], peers)}
    assert by_stage == {1: {0: 0.5, 3: 0.2}, 2: {0: 1.0, 2: 0.4}}
    per_peer = means(by_stage, peers)
    assert per_peer == {0: 0.75, 2: 0.4, 3: 0.2, 4: 1.0}
    r = make(per_peer=per_peer, by_stage=by_stage)
    assert r.per_stage == {1: 0.35, 2: 0.7}
    assert "rank 4" not in str(r)


def test_per_peer__peers_without_a_shard_owe_nothing():
    """Two elements among four ranks: two ranks own one each, and the others hand nothing out."""
    with tb.simulate(4, delay="20us") as world:
        works = [comm.all_reduce_async(np.ones(2, np.float32), key="k", deadline=0.1) for comm in world.comms]
        results = [work.wait() for work in works]
    owners = set().union(*(r.by_stage[2] for r in results))
    assert len(owners) == 2
    for rank, r in enumerate(results):
        others = set(range(4)) - {rank}
        assert r.by_stage[2] == dict.fromkeys(owners - {rank}, 1.0)
        assert r.by_stage[1] == (dict.fromkeys(others, 1.0) if rank in owners else {})
        assert r.per_peer == dict.fromkeys(others, 1.0)
        assert r.per_stage == {1: 1.0, 2: 1.0}


def test_result__is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().received = 1.0


def test_mask__comes_from_the_operation():
    mask = np.array([True, False])
    assert make(_mask=lambda: mask).mask() is mask


def test_str__names_the_worst_peer():
    text = str(make())
    for word in ("partial", "90.00%", "50.00 ms", "round 7", "1 behind", "deadline hit", "rank 2, stage 1: 40.0%"):
        assert word in text
    assert "rank 1" not in text


def test_repr__is_short():
    assert "_mask" not in repr(make(_mask=lambda: None))


@pytest.mark.parametrize(
    ("number", "kind", "also"),
    [
        (errno.ETIMEDOUT, tb.TimedOut, TimeoutError),
        (errno.EPROTO, tb.MismatchError, tb.Error),
        (errno.EEXIST, tb.KeyBoundError, tb.MismatchError),
        (errno.EHOSTDOWN, tb.PeerLost, ConnectionError),
        (errno.ECONNRESET, tb.PeerLost, ConnectionError),
        (errno.ENODATA, tb.SkippedTooOften, tb.Error),
        (errno.EBUSY, tb.KeyInUseError, tb.BusyError),
        (errno.EAGAIN, tb.BusyError, tb.Error),
        (errno.ENOBUFS, tb.BusyError, tb.Error),
        (errno.EINVAL, tb.ArgumentError, ValueError),
        (errno.ECANCELED, tb.Cancelled, tb.Error),
        (errno.ESHUTDOWN, tb.ClosedError, tb.Error),
        (errno.EXDEV, tb.Error, Exception),
    ],
)
def test_from_errno__class_number_and_text(number, kind, also):
    for sign in (1, -1):
        error = from_errno(sign * number, "the sentence")
        assert type(error) is kind
        assert isinstance(error, also)
        assert (error.errno, str(error)) == (number, "the sentence")


def test_from_errno__without_sentence():
    assert str(from_errno(errno.EPROTO)) == os.strerror(errno.EPROTO)


def test_from_init__nothing_is_agreed_yet():
    assert type(from_init(errno.EINVAL, "x")) is tb.ConfigError
    for number in (errno.ENODEV, errno.EPERM, errno.EBUSY, errno.EMSGSIZE, errno.ENETDOWN, errno.ENETUNREACH):
        assert type(from_init(number, "x")) is tb.ConfigError
    assert type(from_init(errno.EXDEV, "x")) is tb.ForkError
    assert type(from_init(errno.EPROTO, "x")) is tb.MismatchError
    for number in (errno.ETIMEDOUT, errno.EADDRINUSE, errno.EHOSTUNREACH, errno.ECONNREFUSED):
        assert type(from_init(number, "x")) is tb.RendezvousError


def test_errors__survive_pickling():
    for error in (tb.TimedOut("late"), tb.PeerLost(errno.EHOSTDOWN, "rank 3"), tb.Error("x"), tb.BufferRejected("y")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.errno, str(copy)) == (type(error), error.errno, str(error))


def test_errors__all_are_exported_and_carry_a_number():
    from tailbound import errors

    for name in errors.__all__:
        kind = getattr(tb, name)
        assert issubclass(kind, tb.Error)
        assert errno.errorcode[kind("x").errno]
