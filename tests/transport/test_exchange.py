"""exchange.py: rendezvous through a store, and how init serves it."""

import threading
import time

import pytest
import tailbound as tb
from tailbound.exchange import StoreExchange


class Dictionary:
    """The least a store can be; get answers None while a key is absent."""

    def __init__(self):
        self.values, self.lock = {}, threading.Lock()

    def set(self, key, value):
        with self.lock:
            self.values[key] = value

    def get(self, key):
        with self.lock:
            return self.values.get(key)


class Raising(Dictionary):
    """As a store that raises for an absent key."""

    def get(self, key):
        with self.lock:
            return self.values[key]


class Blocking(Dictionary):
    """As a store whose get waits for the key."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition(self.lock)

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, 20):
                raise TimeoutError(key)
            return self.values[key]


class Job:
    """The ranks of one run, each in its own thread; `late` ranks begin when told."""

    def __init__(self, store, size, run, steps=2, late=(), timeout=10, job="job"):
        self.answers = [None] * size
        self.begin = threading.Event()

        def speak(rank):
            if rank in late:
                assert self.begin.wait(20)
            exchange = StoreExchange(store, job, rank, size, timeout)
            try:
                self.answers[rank] = [exchange(f"step{step}", b"%s-%d-%d" % (run, rank, step)) for step in range(steps)]
            except tb.RendezvousError as error:
                self.answers[rank] = error

        self.threads = [threading.Thread(target=speak, args=(rank,)) for rank in range(size)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.begin.set()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.answers


def everybodys(size, run, steps=2):
    return [[[b"%s-%d-%d" % (run, rank, step) for rank in range(size)] for step in range(steps)]] * size


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", [Dictionary, Raising, Blocking])
def test_exchange__everybody_gets_everybodys(kind, size):
    assert Job(kind(), size, b"a", steps=4).end() == everybodys(size, b"a", 4)


@pytest.mark.parametrize("late", [(0,), (2,), (1, 2)])
@pytest.mark.parametrize("kind", [Dictionary, Raising, Blocking])
def test_session__a_store_with_an_earlier_run_in_it(kind, late):
    """Whoever comes first finds the earlier run's entries, roster and blobs, of the same job, and waits even so."""
    store = kind()
    assert Job(store, 3, b"old").end() == everybodys(3, b"old")
    again = Job(store, 3, b"new", late=late)
    for thread in again.threads:
        thread.join(0.1)
    assert again.answers == [None] * 3, "nobody went ahead with what the earlier run left"
    assert again.end() == everybodys(3, b"new")


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_session__after_an_init_that_failed_on_one_rank(failed):
    """One rank tried once more often than the others: no count of its own is in the way of the next attempt."""
    store = Dictionary()
    with pytest.raises(tb.RendezvousError):
        StoreExchange(store, "job", failed, 3, 0.05)("hello", b"too early")
    assert Job(store, 3, b"x").end() == everybodys(3, b"x")


def test_session__a_rank_that_starts_over_before_all_are_in():
    """Rank 1 gives up and comes again while rank 2 is awaited: its first token must not be in the session."""
    store = Dictionary()
    with pytest.raises(tb.RendezvousError):
        StoreExchange(store, "job", 1, 3, 0.02)("hello", b"first life")
    first = store.get("tailbound/job/entry/1").split()[0]
    job = Job(store, 3, b"x", late=(1, 2))
    end = time.monotonic() + 10
    while first not in (store.get("tailbound/job/roster") or b"") and time.monotonic() < end:
        time.sleep(0.001)
    assert first in store.get("tailbound/job/roster")
    assert job.end() == everybodys(3, b"x")
    assert first not in store.get("tailbound/job/roster")


def test_session__each_init_has_its_own():
    store = Dictionary()
    first = StoreExchange(store, "twice", 0, 1, 1)
    second = StoreExchange(store, "twice", 0, 1, 1)
    first("hello", b"old")
    assert second("hello", b"new") == [b"new"]
    assert first.session != second.session


def test_exchange__absent_rank_is_named():
    with pytest.raises(tb.RendezvousError) as caught:
        StoreExchange(Raising(), "absent", 0, 2, 0.1)("hello", b"x")
    for word in ("rank 0", "rank 1", "0.1 s", "hello", "KeyError"):
        assert word in str(caught.value)


def test_exchange__absent_rank_is_named_by_all():
    job = Job(Dictionary(), 4, b"x", late=(2, 3), timeout=0.4)
    for rank in (0, 1):
        job.threads[rank].join(10)
    for rank in (0, 1):
        assert "ranks 2, 3" in str(job.answers[rank])
        assert f"rank {rank}: " in str(job.answers[rank])
    job.end()


def test_exchange__absent_rank_0_is_named():
    with pytest.raises(tb.RendezvousError, match="nothing from rank 0"):
        StoreExchange(Dictionary(), "absent", 1, 2, 0.05)("hello", b"x")


@pytest.mark.parametrize("store", [object(), {}, 3])
def test_exchange__not_a_store(store):
    with pytest.raises(tb.RendezvousError, match="set"):
        StoreExchange(store, "none", 0, 1, 1)


@pytest.mark.parametrize("value", [[1, 2], 5, object(), "\u20ac"], ids=["list", "int", "object", "text"])
def test_exchange__a_store_that_gives_back_something_else(value):
    class Odd(Dictionary):
        def get(self, key):
            return value

    with pytest.raises(tb.RendezvousError, match=r"get\('tailbound/job/.* gave a"):
        StoreExchange(Odd(), "job", 1, 2, 5)("addr", b"x")
