"""hadamard: lossy sums and averages that travel transformed, so that loss costs all elements a little (rule 16)."""


import numpy as np
import pytest
import tailbound as tb

pytestmark = pytest.mark.usefixtures("quiet")

RANKS = 4


def gradient(rank, count, turn=0, dtype=np.float32):
    """Four layers of different size."""
    x = np.random.default_rng([rank, turn]).standard_normal(count)
    return (x * np.repeat([1, 2, 3, 4], -(-count // 4))[:count]).astype(dtype)


def mean(count, turn=0):
    return np.mean([gradient(rank, count, turn, np.float64) for rank in range(RANKS)], 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 31, 1000, 4096, 50_001])
def test_hadamard__without_loss_it_is_the_plain_result(count, dtype):
    def step(comm):
        x = gradient(comm.rank, count, dtype=dtype)
        out = np.full(count, 7, dtype)
        result = comm.all_reduce(x, out, op="avg", deadline=0.05, hadamard=True)
        assert (result.verdict, result.received) == ("ok", 1)
        assert np.array_equal(x, gradient(comm.rank, count, dtype=dtype))
        comm.all_reduce(x, op="avg", deadline=0.05, hadamard=True)
        return x, out

    with tb.simulate(RANKS, seed=1) as world:
        found = world.run(step)
    for x, out in found:
        for one in (x, out):
            assert np.allclose(one, mean(count), rtol=0, atol=1e-4 if dtype is np.float32 else 1e-12)


def test_hadamard__what_is_lost_is_no_longer_whole_elements():
    """Everything from rank 1 to rank 0 is lost: rank 0 misses a shard, a quarter of the elements."""
    worst = {}
    for on in (False, True):

        def step(comm, on=on):
            x = gradient(comm.rank, 40_000)
            result = comm.all_reduce(x, op="avg", deadline=2e-3, min_received=0, hadamard=on)
            return x, result.received, result.mask()

        with tb.simulate(RANKS, seed=3) as world:
            world.set(1, 0, blackhole=True)
            x, received, mask = world.run(step)[0]
        assert received < 0.8
        assert mask.all() == on
        right = mean(40_000)
        layers = zip(np.array_split(x - right, 4), np.array_split(right, 4), strict=True)
        worst[on] = max(float(np.sqrt((d**2).mean() / (r**2).mean())) for d, r in layers)
    assert worst[False] > 0.99  # a whole layer is gone
    assert worst[True] < 0.9  # a quarter of the coefficients: 0.58, if all layers were equal


def test_hadamard__is_right_in_the_mean():
    """Blocks are scaled by length / received: over many rounds, each with its own signs, the errors cancel."""
    count, rounds = 8192, 200
    totals = np.zeros(count)

    def step(comm):
        for _ in range(rounds):
            x = gradient(comm.rank, count)
            comm.all_reduce(x, op="avg", key="g", deadline=1e-3, min_received=0)
            if comm.rank == 0:
                totals[:] += x

    with tb.simulate(RANKS, seed=4, hadamard=True) as world:
        world.set(1, 0, loss=0.5)
        world.run(step)
    right = mean(count)
    assert abs(totals @ right / rounds / (right @ right) - 1) < 0.02


def test_hadamard__agreed_bytes_are_the_same_on_all_ranks():
    def step(comm):
        found = []
        for turn in range(15):
            x = gradient(comm.rank, 9000, turn)
            comm.all_reduce(x, key="g", deadline=500e-6, consistency="agree", wire_dtype="bf16")
            found.append(x.tobytes())
        return found

    with tb.simulate(RANKS, seed=5, hadamard=True, loss=0.1, delay="30us") as world:
        by_rank = world.run(step)
    assert all(len(set(turn)) == 1 for turn in zip(*by_rank, strict=True))


def test_hadamard__default_of_the_communicator_is_for_calls_that_can_use_it():
    def step(comm):
        whole = np.arange(1000, dtype=np.float32) + comm.rank
        comm.all_reduce(whole, deadline=float("inf"))
        half, most, count = whole.astype(np.float16), whole.copy(), np.full(10, comm.rank)
        comm.all_reduce(half, deadline=0.05)
        comm.all_reduce(most, op="max")
        comm.all_reduce(count)
        other = gradient(comm.rank, 5000)
        comm.all_reduce(other, op="avg", deadline=0.05)
        return whole, other

    with tb.simulate(RANKS, seed=1, hadamard=True) as world:
        for whole, other in world.run(step):
            assert np.array_equal(whole, 4 * np.arange(1000) + 6)
            assert np.allclose(other, mean(5000), atol=1e-4)
            assert not np.array_equal(other, mean(5000).astype(np.float32))  # it was transformed: rounding differs


def test_hadamard__another_word_on_another_rank_is_a_mismatch():
    def step(comm):
        x = gradient(comm.rank, 100)
        with pytest.raises(tb.MismatchError, match="hadamard"):
            comm.all_reduce(x, key="g", deadline=0.05, hadamard=comm.rank == 1)
        assert np.array_equal(x, gradient(comm.rank, 100))

    with tb.simulate(2, seed=1) as world:
        world.run(step)


@pytest.mark.parametrize(
    ("x", "op", "value", "word"),
    [
        (np.zeros(4, np.float16), "sum", True, "float16"),
        (np.zeros(4, np.int32), "sum", True, "int32"),
        (np.zeros(4, np.float32), "max", True, "max"),
        (np.zeros(4, np.float32), "max", "auto", "max"),
        (np.zeros(4, np.float32), "sum", "auto", "needs a key"),
        (np.zeros(4, np.float32), "sum", "perhaps", "True, False or"),
        (np.zeros(4, np.float32), "sum", 2, "True, False or"),
    ],
)
def test_hadamard__where_it_cannot_be(x, op, value, word):
    with tb.simulate(2, seed=1) as world, pytest.raises(tb.ArgumentError, match=word):
        world.comms[0].all_reduce(x, op=op, hadamard=value)


@pytest.mark.parametrize(("options", "word"), [({"hadamard": "perhaps"}, "off"), ({"hadamard_block": 10}, "11")])
def test_hadamard__wrong_option(options, word):
    with pytest.raises(tb.Error, match=word):
        tb.init(**options)


@pytest.mark.parametrize("how", [{"missing": "carry"}, {"fill": "own"}])
def test_hadamard__goes_with_neither_carry_nor_fill(how):
    with tb.simulate(2, seed=1, hadamard=True) as world:
        comm = world.comms[0]
        with pytest.raises(tb.ArgumentError, match="Hadamard"):
            comm.all_reduce(np.zeros(4, np.float32), key="g", hadamard=True, **how)
        comm.all_reduce_async(np.zeros(4, np.float32), key="g", **how).cancel()  # the default steps back


BURSTS = {"ge_p": 0.05 / 0.95 / 8, "ge_r": 1 / 8, "ge_loss": 1}


def modes(seed, rounds, loss_from, loss_to, late=None, **options):
    """By rank, the rounds that travelled transformed, and all that it ran; how often a rank was in another mode."""
    found, done = [set() for _ in range(RANKS)], [set() for _ in range(RANKS)]
    net = {"delay": "50us", "rate": "10G", "min_received": 0.0, "repair": 0, "hadamard": "auto", **options}
    with tb.simulate(RANKS, seed=seed, **net) as world:
        for turn in range(rounds):
            if turn == loss_from:
                world.set(**BURSTS)
            if turn == loss_to:
                world.set(ge_p=0, ge_r=1, ge_loss=0)
            comms = [comm for comm in world.comms if late is None or comm.rank != late[0] or turn not in late[1]]
            before = [comm.stats()["transformed"] for comm in comms]
            works = [comm.all_reduce_async(np.ones(20_000, np.float32), key="k", deadline=0.01) for comm in comms]
            for comm, work, count in zip(comms, works, before, strict=True):
                round_ = work.wait().round
                done[comm.rank].add(round_)
                if comm.stats()["transformed"] > count:
                    found[comm.rank].add(round_)
        apart = sum(comm.stats()["apart"] for comm in world.comms)
    return found, done, apart


@pytest.mark.parametrize("seed", range(3))
def test_auto__all_ranks_switch_in_the_same_round_on_and_off(seed):
    found, _, apart = modes(seed, 110, 15, 40)
    assert apart == 0
    assert all(rounds == found[0] for rounds in found)
    first, last = min(found[0]), max(found[0])
    assert found[0] == set(range(first, last + 1))
    assert 15 + 8 <= first <= 40 + 8  # it sees the loss while it lasts, and announces the switch eight rounds ahead
    assert 40 + 8 <= last < 105


def test_auto__a_rank_that_sleeps_through_the_switch_follows():
    found, done, apart = modes(1, 80, 15, 80, late=(RANKS - 1, range(18, 55)))
    assert apart == 0
    assert found[RANKS - 1] == found[0] & done[RANKS - 1]
    assert len(found[RANKS - 1]) > 5
    assert len(done[RANKS - 1] - found[RANKS - 1]) > 5
    assert len(found[0]) > len(found[RANKS - 1]) + 5


@pytest.mark.parametrize("loss", [0, 0.005])
def test_auto__never_at_no_loss_and_little(loss):
    found, *_ = modes(2, 60, None, None, loss=loss)
    assert not any(found)


def test_auto__needs_hadamard_loss_to_be_exceeded():
    found, *_ = modes(2, 60, None, None, loss=0.005, hadamard_loss=2)
    assert all(found)


def test_auto__steps_back_where_it_cannot_be_and_binds_its_key():
    x = np.zeros(4, np.float32)
    with tb.simulate(2, seed=1, hadamard="auto") as world:
        comm = world.comms[0]
        comm.all_reduce_async(x).cancel()
        comm.all_reduce_async(x, key="a", consistency="agree").cancel()
        comm.all_reduce_async(x, key="c", missing="carry").cancel()
        comm.all_reduce_async(x, key="k").cancel()
        with pytest.raises(tb.ArgumentError, match="auto"):
            comm.all_reduce(x, key="b", consistency="agree", hadamard="auto")
        with pytest.raises(tb.KeyBoundError, match="hadamard=auto"):
            comm.all_reduce(x, key="k", hadamard=True)
