"""Bad input of a job with several processes: each rank that is concerned gets an error which names what is wrong."""
import re
import socket

import pytest
from harness import Job
from local_job import free_port, run_local

MISMATCH = """
with tb.init() as comm:
    x = np.full({count}, float(RANK + 1), {dtype})
    before = x.copy()
    try:
        comm.all_reduce(x, op={op}, key={key}, deadline={deadline})
        say(error=None)
    except tb.Error as error:
        say(error=type(error).__name__, text=str(error), kept=bool((x == before).all()))
    y = np.full(5000, 2.0**RANK, np.float32)  # another key is not affected
    comm.all_reduce(y, key="sound", deadline=float("inf"))
    say(sound=bool((y == 2.0**SIZE - 1).all()))
    comm.barrier()
"""


@pytest.mark.parametrize("key", ['"w"', "None"], ids=["named", "anonymous"])
@pytest.mark.parametrize("deadline", ['float("inf")', "1.0"], ids=["exact", "lossy"])
@pytest.mark.parametrize(("what", "odd", "others"), [
    ("count", {"count": "1001 if RANK == 1 else 1000"}, ("1001", "1000")),
    ("dtype", {"dtype": "np.float64 if RANK == 1 else np.float32"}, ("float64", "float32")),
    ("op", {"op": '"avg" if RANK == 1 else "sum"'}, ("avg", "sum")),
])
def test_mismatch__is_told_on_every_rank_with_ranks_and_values(what, odd, others, deadline, key):
    values = {"count": "1000", "dtype": "np.float32", "op": '"sum"', "key": key, "deadline": deadline, **odd}
    for lines in run_local(MISMATCH.format(**values), 3):
        first, sound = lines
        assert first["error"] == "MismatchError", first
        assert first["kept"], "the input must be as it was"
        assert "rank 1" in first["text"], first
        assert re.search(r"rank [02]", first["text"]), first
        for value in others:
            assert value in first["text"], first
        assert sound["sound"]


def test_mismatch__learnt_after_returning_raises_at_the_next_call():
    """Rank 1 comes late with another count: the others have returned by their deadline and learn it afterwards."""
    lines = run_local("""
with tb.init(min_received=0) as comm:
    x = np.ones(1001 if RANK == 1 else 1000, np.float32)
    comm.barrier()
    time.sleep(0.5 if RANK == 1 else 0)
    for i in range(6):
        try:
            comm.all_reduce(x, key="w", deadline=0.1)
            say(error=None)
        except tb.Error as error:
            say(error=type(error).__name__, text=str(error))
        time.sleep(0.3)
    comm.barrier()
""", 3)
    assert [lines[rank][0]["error"] for rank in (0, 2)] == [None, None]
    for rank in range(3):
        assert "MismatchError" in [line["error"] for line in lines[rank]], lines[rank]
    for rank in range(3):
        text = next(line["text"] for line in lines[rank] if line["error"])
        for part in ("1001", "1000", "rank 1"):
            assert part in text, text


INIT = """
began = time.monotonic()
try:
    comm = tb.init(init_timeout=1.5)
    say(error=None)
    comm.close()
except (tb.Error, OSError) as error:
    say(error=type(error).__name__, text=str(error), took=time.monotonic() - began)
"""


def test_version__of_another_release_is_named_on_every_rank(tmp_path):
    """The store stands for the other release: it writes another version into what rank 1 tells of itself."""
    lines = run_local(f"""
import pathlib
class Store:
    def _path(self, key):
        return pathlib.Path({str(tmp_path)!r}) / key.replace("/", "_")
    def set(self, key, value):
        if RANK == 1:
            assert value.count(b"0.") <= 1
            value = value.replace(tb.__version__.encode(), b"9.9.9")
        temporary = self._path(key + ".part")
        temporary.write_bytes(value)
        temporary.rename(self._path(key))
    def get(self, key):
        return self._path(key).read_bytes() if self._path(key).exists() else None
try:
    tb.init(store=Store(), init_timeout=1.5)
    say(error=None)
except tb.Error as error:
    say(error=type(error).__name__, text=str(error))
""", 3)
    for rank in (0, 2):  # rank 1 believes in its own version and finds nobody to disagree with
        assert lines[rank][0]["error"] == "MismatchError", lines
        assert "rank 1" in lines[rank][0]["text"]
        assert "9.9.9" in lines[rank][0]["text"]
    assert lines[1][0]["error"], lines


def test_job__of_another_name_is_turned_away_and_told():
    lines = run_local(INIT, 2, each=lambda rank: {"TAILBOUND_JOB": "red" if rank == 0 else "blue"})
    assert lines[1][0]["error"] == "MismatchError", lines
    for text in (lines[0][0]["text"], lines[1][0]["text"]):
        assert "blue" in text, text
    assert "red" in lines[1][0]["text"]
    assert lines[0][0]["took"] < 3


def test_restart__of_an_earlier_life_of_the_job_is_told_apart():
    lines = run_local(INIT, 2, each=lambda rank: {"TAILBOUND_RESTART": str(rank)})
    assert lines[1][0]["error"] == "MismatchError", lines
    for rank in range(2):
        assert "default#1" in lines[rank][0]["text"], "the job's name with its restart count"
    assert "default#0" in lines[1][0]["text"]


@pytest.mark.parametrize("env", [{"RANK": "2"}, {"RANK": "-1"}, {"RANK": "x"}, {"WORLD_SIZE": "0"},
                                 {"WORLD_SIZE": "1025"}], ids=str)
def test_rank__or_size_out_of_range_is_refused_at_once(env):
    (lines,) = run_local("RANK = 0" + INIT if "x" in env.values() else INIT, 2, ranks=[0],
                         env={"TAILBOUND_" + {"RANK": "RANK", "WORLD_SIZE": "SIZE"}[k]: v for k, v in env.items()})
    name, value = next(iter(env.items()))
    assert lines[0]["error"] == "ConfigError", lines
    assert value in lines[0]["text"], lines
    assert re.search({"RANK": "rank", "WORLD_SIZE": "size"}[name], lines[0]["text"], re.IGNORECASE), lines
    assert lines[0]["took"] < 1


def test_rank__taken_twice_is_told_on_every_rank():
    lines = run_local(INIT, 3, each=lambda rank: {"RANK": "1" if rank == 2 else str(rank)})
    for rank in range(3):
        assert lines[rank][0]["error"] == "MismatchError", lines
        assert "rank 1" in lines[rank][0]["text"]
        assert lines[rank][0]["took"] < 1.2, "known at once, not at the timeout"


def test_size__that_differs_is_told_on_every_rank():
    lines = run_local(INIT, 3, each=lambda rank: {"WORLD_SIZE": "4" if rank == 2 else "3"})
    for rank in range(3):
        assert lines[rank][0]["error"] == "MismatchError", lines
        assert re.search(r"rank 2 .*\b4 ranks", lines[rank][0]["text"]), lines


def test_port__of_the_rendezvous_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        lines = run_local(INIT, 2, ranks=[0], env={"TAILBOUND_MASTER_PORT": port})
    assert lines[0][0]["error"] in ("RendezvousError", "ConfigError"), lines
    assert port in lines[0][0]["text"]
    assert "in use" in lines[0][0]["text"]
    assert lines[0][0]["took"] < 2


def test_port__of_the_data_in_use_is_named():
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 0))
        port = str(taken.getsockname()[1])
        lines = run_local(INIT, 2, env={"TAILBOUND_FLOWS": "1"},
                          each=lambda rank: {"TAILBOUND_PORT_RANGE": f"{port}-{port}"} if rank == 1 else {})
    assert port in lines[1][0]["text"], lines
    assert "no 1 free" in lines[1][0]["text"], lines
    assert "TAILBOUND_PORT_RANGE" in lines[1][0]["text"], lines
    assert "rank 1" in lines[1][0]["text"], lines
    assert lines[0][0]["error"], "the other rank must not wait for ever"


@pytest.mark.parametrize("choice", ["=nosuch0", "203.0.113.0/24"])
def test_interface__that_is_not_there_is_refused_with_the_list(choice):
    lines = run_local(INIT, 2, each=lambda rank: {"TAILBOUND_INTERFACE": choice} if rank == 1 else {})
    text = lines[1][0]["text"]
    assert lines[1][0]["error"] == "ConfigError", lines
    assert choice.lstrip("=") in text
    assert "rank 1" in text
    assert re.search(r"\blo\b", text), f"the interfaces that are there: {text}"
    assert lines[0][0]["error"], "the other rank must not wait for ever"


def test_loopback__advertised_to_another_host_is_refused_on_every_rank(lab):
    net = lab(2)
    with Job(net, {"phases": []}, env={"TAILBOUND_LINK": "udp", "TAILBOUND_INTERFACE": "lo",
                                       "TAILBOUND_INIT_TIMEOUT": "5s"}) as job:
        job.join(timeout=12, status=3)
    for rank in range(2):
        failed = job.said(rank, what="init failed")[0]
        assert "loopback" in failed["text"], failed
        assert "TAILBOUND_INTERFACE" in failed["text"], failed
        assert re.search(r"rank [01]", failed["text"]), failed
        assert failed["took"] < 3


def test_fork__raises_in_the_child_names_spawn_and_leaves_the_parent_alone():
    lines = run_local("""
comm = tb.init()
x = np.ones(5000, np.float32)
comm.all_reduce(x, deadline=float("inf"))
child = os.fork()
if child == 0:
    for use in (lambda: comm.all_reduce(x), lambda: comm.barrier(), comm.stats, comm.close):
        try:
            use()
            print(json.dumps({"child": None}), flush=True)
        except tb.Error as error:
            print(json.dumps({"child": type(error).__name__, "text": str(error)}), flush=True)
    sys.exit(0)  # with all atexit handlers and finalisers of the copy
_, status = os.waitpid(child, 0)
x[:] = 1
comm.all_reduce(x, deadline=float("inf"))
say(status=status, parent=bool((x == SIZE).all()))
comm.close()
""", 2)
    for rank in range(2):
        *child, parent = lines[rank]
        assert len(child) == 4
        for line in child[:3]:
            assert line["child"] == "ForkError", line
            assert "spawn" in line["text"]
        assert parent == {"status": 0, "parent": True}


def test_close__makes_every_later_use_raise():
    lines = run_local("""
comm = tb.init()
x = np.ones(10, np.float32)
comm.all_reduce(x, deadline=float("inf"))
comm.close()
comm.close()
for use in (lambda: comm.all_reduce(x), lambda: comm.all_reduce_async(x, key="w"), comm.barrier, comm.stats,
            lambda: comm.send(x, 1 - RANK), lambda: comm.forget("w")):
    try:
        use()
        say(error=None)
    except tb.Error as error:
        say(error=type(error).__name__, text=str(error))
""", 2)
    for rank in range(2):
        assert [line["error"] for line in lines[rank]] == ["ClosedError"] * 6, lines
        assert all("closed" in line["text"] for line in lines[rank])


def test_close__under_an_operation_of_another_thread_ends_it():
    lines = run_local("""
import threading
comm = tb.init()
if RANK == 0:
    x = np.arange(1000, dtype=np.float32)
    def wait():
        began = time.monotonic()
        try:
            comm.all_reduce(x, key="w", deadline=float("inf"))
            say(error=None)
        except tb.Error as error:
            say(error=type(error).__name__, kept=bool((x == np.arange(1000)).all()))
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    comm.close()
    thread.join(5)
    say(alive=thread.is_alive())
else:
    time.sleep(1.0)
    comm.close()
""", 2)
    assert lines[0][0]["error"] in ("ClosedError", "Cancelled"), lines
    assert lines[0][0]["kept"]
    assert lines[0][1] == {"alive": False}


@pytest.mark.parametrize("key", ['"w"', "None"], ids=["named", "anonymous"])
def test_key__used_by_two_threads_at_once_is_refused_for_the_second(key):
    lines = run_local(f"""
import threading
with tb.init() as comm:
    if RANK == 0:
        x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
        first = comm.all_reduce_async(x, key={key}, deadline=float("inf"))
        def second():
            try:
                comm.all_reduce(y, key={key}, deadline=float("inf"))
                say(error=None)
            except tb.Error as error:
                say(error=type(error).__name__, text=str(error))
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        comm.barrier(key="go")
        first.wait()
        say(first=bool((x == 2).all()))
    else:
        comm.barrier(key="go")
        comm.all_reduce(np.ones(1000, np.float32), key={key}, deadline=float("inf"))
""", 2)
    assert lines[0][0]["error"] == "KeyInUseError", lines
    assert "thread" in lines[0][0]["text"]
    assert lines[0][1] == {"first": True}


def test_keys__of_their_own_let_threads_work_at_once():
    lines = run_local("""
import threading
with tb.init() as comm:
    good = []
    def work(name):
        for i in range(20):
            x = np.full(3000, RANK + i, np.float32)
            comm.all_reduce(x, key=name, deadline=float("inf"))
            good.append(bool((x == sum(r + i for r in range(SIZE))).all()))
    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    say(good=len(good), bad=good.count(False))
""", 2)
    for rank in range(2):
        assert lines[rank] == [{"good": 80, "bad": 0}]


def test_deadline__below_the_measured_reserve_names_the_minimum():
    lines = run_local("""
with tb.init() as comm:
    x = np.ones(400_000, np.float32)
    for i in range(5):
        comm.all_reduce(x, deadline=float("inf"))
    try:
        comm.all_reduce(x, deadline=2e-6)
        say(error=None)
    except tb.Error as error:
        say(error=type(error).__name__, text=str(error))
    comm.barrier()
""", 2)
    for rank in range(2):
        assert lines[rank][0]["error"] == "ArgumentError", lines
        assert "0.000002" in lines[rank][0]["text"]
        least = float(re.search(r"reserve of ([0-9.]+) s", lines[rank][0]["text"])[1])
        assert 2e-6 < least < 1


def test_port__is_free_again_after_close():
    """Nothing of a closed job keeps the next one from using the same rendezvous port."""
    port = str(free_port())
    for _ in range(2):
        for lines in run_local(INIT, 2, env={"TAILBOUND_MASTER_PORT": port}):
            assert lines[0]["error"] is None, lines
