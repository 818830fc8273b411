"""exchange.py: rendezvous through a store, and how init serves it."""

import threading

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


def exchange_all(store, size, steps, job):
    """Every rank in its own thread; their answers by rank and step."""
    made = [StoreExchange(store, job, rank, size, 10) for rank in range(size)]
    for one in made:  # in one process each rank's counter would differ; in a job each process has its own
        one.prefix = made[0].prefix
    answers = [None] * size

    def speak(rank):
        answers[rank] = [made[rank](f"step{step}", b"%d-%d" % (rank, step)) for step in range(steps)]

    threads = [threading.Thread(target=speak, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers


@pytest.mark.parametrize("kind", [Dictionary, Raising])
def test_exchange__everybody_gets_everybodys(kind):
    answers = exchange_all(kind(), 3, 4, kind.__name__)
    expected = [[b"%d-%d" % (rank, step) for rank in range(3)] for step in range(4)]
    assert answers == [expected] * 3


def test_exchange__a_second_communicator_has_keys_of_its_own():
    store = Dictionary()
    first = StoreExchange(store, "twice", 0, 1, 1)
    second = StoreExchange(store, "twice", 0, 1, 1)
    first("hello", b"old")
    assert second("hello", b"new") == [b"new"]
    assert len(store.values) == 2


def test_exchange__absent_rank_is_named():
    with pytest.raises(tb.RendezvousError) as caught:
        StoreExchange(Raising(), "absent", 0, 2, 0.1)("hello", b"x")
    for word in ("rank 0", "rank 1", "0.1 s", "hello", "KeyError"):
        assert word in str(caught.value)


@pytest.mark.parametrize("store", [object(), {}, 3])
def test_exchange__not_a_store(store):
    with pytest.raises(tb.RendezvousError, match="set"):
        StoreExchange(store, "none", 0, 1, 1)
