"""wire_dtype: float32 sums and averages that travel in half or a quarter of the bytes (rule 7)."""


import numpy as np
import pytest
import tailbound as tb

pytestmark = pytest.mark.usefixtures("quiet")

COUNT, RANKS = 20_000, 4
BYTES = {"none": 4, "bf16": 2, "fp16": 2, "int8": 1}
ERROR = {"none": 1e-6, "bf16": 2**-8, "fp16": 2**-11, "int8": 1 / 127}  # of one rounding, relative to the largest value


def gradient(rank, turn=0):
    return np.random.default_rng([rank, turn]).standard_normal(COUNT).astype(np.float32)


def sent(comm):
    return sum(peer["bytes_sent"] for peer in comm.stats()["peers"].values())


@pytest.mark.parametrize("deadline", [0.05, float("inf")], ids=["lossy", "exact"])
@pytest.mark.parametrize("name", BYTES)
def test_wire_dtype__fewer_bytes_and_a_bounded_error(name, deadline):
    def step(comm):
        x = gradient(comm.rank)
        assert comm.all_reduce(x, op="avg", key="g", deadline=deadline, wire_dtype=name).received == 1
        return x, sent(comm)

    with tb.simulate(RANKS, seed=1) as world:
        found = world.run(step)
    mean = np.mean([gradient(rank).astype(np.float64) for rank in range(RANKS)], 0)
    for x, count in found:
        assert np.array_equal(x, found[0][0])
        assert np.abs(x - mean).max() <= 2 * np.abs([gradient(r) for r in range(RANKS)]).max() * ERROR[name]
        data = 2 * (RANKS - 1) / RANKS * COUNT * BYTES[name]
        assert data <= count <= 1.01 * data


def test_wire_dtype__default_of_the_communicator_is_for_calls_that_can_use_it():
    def step(comm):
        x, y, z = gradient(comm.rank), gradient(comm.rank).astype(np.float64), gradient(comm.rank)
        before = sent(comm)
        comm.all_reduce(x, deadline=float("inf"))
        quarter = sent(comm) - before
        comm.all_reduce(y, deadline=float("inf"))
        comm.all_reduce(z, op="max")
        comm.all_gather(gradient(comm.rank))
        comm.all_reduce(z, deadline=float("inf"), wire_dtype="none")
        return quarter, y, z

    with tb.simulate(RANKS, seed=1, wire_dtype="int8") as world:
        found = world.run(step)
    exact = sum(gradient(rank).astype(np.float64) for rank in range(RANKS))
    most = RANKS * np.max([gradient(rank) for rank in range(RANKS)], 0)
    for quarter, y, z in found:
        assert quarter < 1.01 * 2 * (RANKS - 1) / RANKS * COUNT
        assert np.allclose(y, exact, rtol=1e-12, atol=1e-12)
        assert np.array_equal(z, most.astype(np.float32))


@pytest.mark.parametrize("name", ["bf16", "fp16", "int8"])
def test_wire_dtype__loss_is_repaired_or_reported(name):
    def step(comm):
        found = []
        for turn in range(20):
            x = gradient(comm.rank, turn)
            result = comm.all_reduce(x, key="g", deadline=1e-3, min_received=0)
            assert (x[~result.mask()] == 0).all()
            found.append((result.received, result.verdict if result.late == 0 else "late values", x))
        return found

    with tb.simulate(RANKS, seed=2, wire_dtype=name, loss=0.1, delay="30us") as world:
        by_rank = world.run(step)
    assert {verdict for rank in by_rank for _, verdict, _ in rank} >= {"ok"}
    for turn in range(20):
        whole = [x for received, verdict, x in (rank[turn] for rank in by_rank) if received == 1 and verdict == "ok"]
        total = sum(gradient(rank, turn).astype(np.float64) for rank in range(RANKS))
        for x in whole:
            assert np.abs(x - total).max() <= 40 * ERROR[name]


def test_wire_dtype__agreed_bytes_are_the_same_on_all_ranks():
    def step(comm):
        found = []
        for turn in range(20):
            x = gradient(comm.rank, turn)
            comm.all_reduce(x, key="g", deadline=500e-6, consistency="agree")
            found.append(x.tobytes())
        return found

    with tb.simulate(RANKS, seed=3, wire_dtype="int8", loss=0.1, delay="30us") as world:
        by_rank = world.run(step)
    assert all(len(set(turn)) == 1 for turn in zip(*by_rank, strict=True))


def test_wire_dtype__another_one_on_another_rank_is_a_mismatch():
    def step(comm):
        x = gradient(comm.rank)
        with pytest.raises(tb.MismatchError, match="wire=int8"):
            comm.all_reduce(x, key="g", deadline=0.05, wire_dtype="int8" if comm.rank else None)
        assert np.array_equal(x, gradient(comm.rank))

    with tb.simulate(2, seed=1) as world:
        world.run(step)


def test_wire_dtype__binds_its_key():
    def step(comm):
        comm.all_reduce(gradient(comm.rank), key="g", wire_dtype="bf16")
        with pytest.raises(tb.KeyBoundError, match="wire=bfloat16"):
            comm.all_reduce(gradient(comm.rank), key="g")

    with tb.simulate(2, seed=1) as world:
        world.run(step)


@pytest.mark.parametrize(
    ("x", "op", "name", "word"),
    [
        (np.zeros(4), "sum", "bf16", "float64"),
        (np.zeros(4, np.float32), "max", "int8", "max"),
        (np.zeros(4, np.int8), "sum", "fp16", "int8"),
        (np.zeros(4, np.float32), "sum", "int4", "'int8'"),
        (np.zeros(4, np.float32), "sum", 8, "'int8'"),
    ],
)
def test_wire_dtype__where_it_cannot_be(x, op, name, word):
    with tb.simulate(2, seed=1) as world, pytest.raises(tb.ArgumentError, match=word):
        world.comms[0].all_reduce(x, op=op, wire_dtype=name)


def test_wire_dtype__of_the_elements_themselves_changes_nothing():
    def step(comm):
        x = np.full(100, comm.rank + 1, np.float16)
        comm.all_reduce(x, wire_dtype="fp16")
        return x

    with tb.simulate(2, seed=1) as world:
        assert all((x == 3).all() for x in world.run(step))


def test_wire_dtype__a_rank_alone_keeps_its_values():
    x = gradient(0)
    with tb.simulate(1, wire_dtype="int8") as world:
        world.comms[0].all_reduce(x)
    assert np.array_equal(x, gradient(0))


@pytest.mark.parametrize(("value", "word"), [("int4", "int8"), ("", "wire_dtype")])
def test_wire_dtype__wrong_option(value, word):
    with pytest.raises(tb.Error, match=word):
        tb.init(wire_dtype=value)


@pytest.mark.parametrize("missing", ["renormalise", "carry"])
@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_wire_dtype__what_comes_late_or_is_carried_is_decoded(name, missing):
    """Summed up over many rounds, with what came late, everything is there but for rounding."""

    def step(comm):
        total, late = np.zeros(COUNT), 0
        for turn in range(25):
            x = gradient(comm.rank, turn)
            result = comm.all_reduce(x, key="g", deadline=200e-6, min_received=0, missing=missing)
            late += result.late
            total += x
            world.sleep(comm, 200e-6)
        if missing == "carry":
            total += comm.flush("g")
        return total, late

    with tb.simulate(RANKS, seed=7, wire_dtype=name, loss=0.1, delay="30us") as world:
        found = world.run(step)
    right = sum(gradient(rank, turn).astype(np.float64) for rank in range(RANKS) for turn in range(25))
    assert sum(late for _, late in found) > 0.02
    for total, _ in found:
        error = np.sqrt(((total - right) ** 2).mean())
        assert error < 1e-4 if missing == "carry" else error < 10


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "int8"])
def test_wire_dtype__rounding_is_carried_or_adds_up(name, op):
    """Without loss or a flush: what the sum of outputs lacks is of one round, or of all of them."""

    def step(comm):
        totals, x = [], gradient(comm.rank)
        total = np.zeros(COUNT)
        for turn in range(64):
            out = x.copy()
            comm.all_reduce(out, op=op, key="g", deadline=0.05, missing="carry")
            total += out
            if turn in (7, 63):
                totals.append(total.copy())
        return totals

    right = sum(gradient(rank).astype(np.float64) for rank in range(RANKS)) / (RANKS if op == "avg" else 1)
    error = {}
    for carried in (0, 1):
        with tb.simulate(RANKS, seed=1, wire_dtype=name, carry_rounding=carried) as world:
            few, many = world.run(step)[0]
        error[carried] = [np.sqrt(((few - 8 * right) ** 2).mean()), np.sqrt(((many - 64 * right) ** 2).mean())]
    assert error[1][1] < 1.5 * error[1][0]
    assert error[0][1] > 2 * error[0][0]
    assert error[0][1] > 3 * error[1][1]
