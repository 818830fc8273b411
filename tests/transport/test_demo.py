"""`tailbound demo`: the model's gradient, the data of a rank that jumps, the report's arithmetic, and short runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tailbound import demo, demo_report, demo_stop
from tailbound.demo_model import Mlp, Shard, load_digits
from tailbound.demo_train import COUNTERS, Pauses

DEMO = [sys.executable, "-m", "tailbound", "demo"]


# ---- model and data


def test_gradient__agrees_with_differences():
    model = Mlp(3, layers=(6, 5, 4, 3))
    model.flat = model.flat.astype(np.float64)
    random = np.random.default_rng(1)
    x, y = random.normal(size=(7, 6)), random.integers(0, 3, 7)
    gradient, scratch = np.empty_like(model.flat), np.empty_like(model.flat)
    model.gradient(x, y, gradient)
    for place in random.choice(model.flat.size, 40, replace=False):
        losses = []
        for step in (1e-5, -1e-5):
            model.flat[place] += step
            losses.append(model.gradient(x, y, scratch))
            model.flat[place] -= step
        assert gradient[place] == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-6)


def test_mlp__learns_the_digits():
    data = load_digits(1)
    assert len(data["y"]) + len(data["test_y"]) == 1797
    model, shard = Mlp(1), Shard(data["x"], data["y"], 0, 1, 128, 1)
    gradient = np.empty_like(model.flat)
    before = model.accuracy(data["test_x"], data["test_y"])
    for step in range(60):
        model.gradient(*shard.at(step), gradient)
        model.flat -= 0.1 * gradient
    assert before < 0.4
    assert model.accuracy(data["test_x"], data["test_y"]) > 0.85


def test_shard__each_epoch_shows_each_image_once_and_ranks_share_none():
    x, y = np.arange(96, dtype=np.float32)[:, None], np.arange(96)
    shards = [Shard(x, y, rank, 4, 8, 5) for rank in range(4)]
    assert shards[0].per_epoch == 3
    for epoch in (0, 1):
        seen = [set(np.concatenate([s.at(3 * epoch + k)[1] for k in range(3)])) for s in shards]
        assert all(len(part) == 24 for part in seen)
        assert len(set.union(*seen)) == 96
    assert list(shards[0].at(0)[1]) != list(shards[0].at(3)[1])


def test_shard__a_step_has_its_images_whatever_was_skipped():
    x, y = np.arange(50, dtype=np.float32)[:, None], np.arange(50)
    straight, jumping = (Shard(x, y, 1, 2, 4, 9) for _ in range(2))
    wanted = [straight.at(step)[1].tolist() for step in range(40)]
    for step in (0, 1, 17, 38, 39):
        assert jumping.at(step)[1].tolist() == wanted[step]


def test_pauses__are_decided_by_the_step_alone():
    first, second = Pauses(4, 0.1, 0.5), Pauses(4, 0.1, 0.5)
    slow = [step for step in range(1000) if first.of(step)]
    assert slow == [step for step in reversed(range(1000)) if second.of(step)][::-1]
    assert 60 < len(slow) < 140


# ---- report


def record(took, received=None, snapshots=(), behind=None, begin=0.0):
    n = len(took)
    return {
        "step": list(range(n)), "begin": [begin + sum(took[:i]) for i in range(n)], "took": list(took),
        "received": list(received or [1.0] * n),
        "from_ranks": [[x] * 3 for x in received or [1.0] * n], "hit": [False] * n, "behind": list(behind or [0] * n),
        "skipped": [False] * n, "snapshots": [list(s) for s in snapshots], "clock": sum(took), "stretched": 0,
        "counters": dict.fromkeys(COUNTERS, 3),
    }  # fmt: skip


SPEC = SimpleNamespace(slow_rank=1, stopped_rank=2, block=50, fault="drop=0.02,seed=2", slow_pause=0.1, slow_share=0.1)


def results(clean_received=1.0):
    shots = [(10, 0.4, 0.5), (20, 0.9, 0.96)]
    found = []
    for rank in range(3):
        bounded = record([0.01] * 20, [0.9] * 20, shots, behind=[0] * 18 + [3, 4] if rank == 1 else None)
        exact = record([0.03] * 20, None, [(10, 1.2, 0.5), (20, 1.8, 0.96)])
        clean = record([0.002] * 20, [clean_received] * 20, shots)
        b = {"bounded": bounded, "exact": exact, "steps": 20, "deadline": 0.0125}
        found.append({"b": b, "d": {"bounded": clean, "exact": clean, "steps": 20, "deadline": 0.1}})
    return found


def test_report__figures_come_from_the_records():
    rows = {title: cells for title, *cells in demo_report.rows(results(), SPEC)}
    assert rows["deadline"] == ["12.5 ms", "none", "100.0 ms", "none"]
    assert rows["time of them"][:2] == ["0.20 s", "0.60 s"]
    assert rows["step time p50 / p99"][:2] == ["10.0 / 10.0 ms", "30.0 / 30.0 ms"]
    assert rows["right after 10 steps"][0] == "50.0 %"
    assert rows["right after 20 steps"][:2] == ["96.0 %", "96.0 %"]
    assert rows["time to 93% right"][:2] == ["0.90 s", "1.80 s"]
    assert rows["received"][:2] == ["90.000 %", "100.000 %"]
    assert rows["steps jumped over"] == ["7", "0", "0", "0"]
    assert rows["frames repaired"][0] == "9 of 9"


def test_report__says_what_was_gained_and_what_was_lost():
    text = " ".join(demo_report.report(results(), SPEC, 3).split())
    assert "the exact run took 3.00x the time of the run by deadline, and to 93% right 2.00x" in text
    assert "rank 1 jumped over 7 steps" in text
    assert "the median step is faster (10.0 ms by deadline, 30.0 exact)" in text
    assert "a deadline buys nothing" in text
    assert "Nothing was lost" in text
    text = " ".join(demo_report.report(results(clean_received=0.75), SPEC, 3).split())
    assert "60 of 60 calls came out short, 25.000 % of the data" in text
    assert "Nothing was lost" not in text


def test_report__words_follow_the_figures():
    """Turned round: the exact run is faster and learns more, and the clean one is not as fast as the exact one."""
    found = results()
    for result in found:
        result["b"]["bounded"], result["b"]["exact"] = result["b"]["exact"], result["b"]["bounded"]
        result["b"]["bounded"]["snapshots"] = [(10, 1.2, 0.4), (20, 1.8, 0.92)]
        result["d"]["bounded"] = record([0.0015] * 20)
    text = " ".join(demo_report.report(found, SPEC, 3).split())
    assert "The deadline gained no time here: the exact run took 0.33x" in text
    assert "the median step is slower (30.0 ms by deadline, 10.0 exact)" in text
    assert "7.0 points less right after equally many steps (92.0 % and 96.0 % exact after 20)" in text
    assert "rank 1 jumped over 0 steps." in text
    assert "buys nothing" not in text
    assert "(0.75x)" in text
    for result in found:
        result["d"]["bounded"] = record([0.004] * 20)
    assert "a deadline costs time" in " ".join(demo_report.report(found, SPEC, 3).split())


def test_arrivals__tells_the_stragglers_share_from_the_losses():
    found = results()
    assert "the rest came late from all ranks alike" in demo_report.arrivals(found, SPEC)
    for rank, result in enumerate(found):
        bounded = result["b"]["bounded"]
        bounded["from_ranks"] = [[0.99, 0.6, 0.99]] * 20
        bounded["received"] = [0.3 if rank == SPEC.slow_rank else 0.8] * 20
    text = demo_report.arrivals(found, SPEC)
    assert "Received: 63.3 %, although only 2% of the frames were dropped" in text
    assert "most of the rest is rank 1's share" in text
    assert "received 60.0 % of what rank 1 owed them and 99.0 % of what they owed each other" in text
    assert "decided without it, received 30.0 %" in text
    for result in found:
        result["b"]["bounded"]["received"] = [0.99] * 20
    assert "repaired where there was time" in demo_report.arrivals(found, SPEC)


def test_at_time__takes_the_last_one_by_then():
    shots = [[10, 1.0, 0.5], [20, 2.0, 0.7]]
    assert demo_report.at_time(shots, 0.9) is None
    assert demo_report.at_time(shots, 1.0) == 0.5
    assert demo_report.at_time(shots, 5.0) == 0.7
    assert demo_report.time_to(shots, 0.8) is None


def stop_results(after):
    """Ranks 0 and 1 make a step each 10 ms from t = 0; rank 2 is away from t = 0.1 to 0.3 and calls `after`."""
    steady = record([0.01] * 60)
    away = record([0.01] * 10)
    for step, begin, behind in after:
        away["step"].append(step)
        away["begin"].append(begin)
        away["took"].append(0.01)
        away["received"].append(0.9)
        away["behind"].append(behind)
        away["hit"].append(False)
    extra = {"first": 0, "of": 60, "away": 0.02, "accuracy": {"before": 0.9, "after": 0.95}}
    return [{"c": {**r, **extra}} for r in (steady, steady, away)]


def test_stop__finds_the_call_that_is_in_step_again():
    found = stop_results([(11, 0.301, 0), (31, 0.3145, 19), (32, 0.3245, 0)])
    back = demo_stop.came_back([r["c"] for r in found], 2, 0.3)
    assert (back["number"], back["round"], back["behind"]) == (2, 31, 19)
    log = [(0.12, 0, "rank 2 is absent: no frame"), (0.31, 1, "rank 2 is back")]
    text = " ".join(" ".join(demo_stop.stop_report(found, SPEC, 0.1, 0.3, log)).split())
    assert "call number 2 after SIGCONT took part in round 31" in text
    assert "20 ms after SIGSTOP the log of rank 0 says: rank 2 is absent" in text
    assert "10 ms after SIGCONT the log of rank 1 says: rank 2 is back" in text
    assert "2.0% (of their norm)" in text


def test_stop__says_so_when_the_rank_never_came_back():
    text = " ".join(demo_stop.stop_report(stop_results([]), SPEC, 0.1, 0.3, []))
    assert "was not in step again" in text
    assert "nothing to show" in demo_stop.stop_report(stop_results([]), SPEC, 0.0, 0.0, [])[0]


def test_windows__split_at_the_signals():
    parts = demo_stop.windows(record([0.01] * 60), 0.1, 0.3)
    assert sum(map(len, parts.values())) == 60
    assert parts["before"] == list(range(9)) or parts["before"] == list(range(10))
    assert parts["after"][0] in (30, 31)


# ---- command line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--ranks", "2"], "3 to 8"), (["--ranks", "9"], "3 to 8"), (["--steps", "-1"], "at least 0"),
        (["--deadline", "soon"], "measured, auto, or seconds"), (["--deadline", "0"], "above 0"),
        (["--deadline", "nan"], "above 0"),
    ],
)  # fmt: skip
def test_bad_command_line(capsys, arguments, word):
    with pytest.raises(SystemExit) as ended:
        demo.main(arguments)
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_missing_packages__give_the_pip_line(capsys, monkeypatch):
    monkeypatch.setattr(demo, "_there", lambda module: module != "sklearn")
    assert demo.main(["--quick"]) == 1
    said = capsys.readouterr().err
    assert "-m pip install scikit-learn " in said
    assert "scikit-learn" in said
    assert "matplotlib" not in said


def test_out__without_a_folder_is_said_before_the_run(capsys, tmp_path):
    assert demo.main(["--out", str(tmp_path / "none" / "x.png")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def ranks_of(parent):
    """Processes that this launcher started: each leads a session and has it as its parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def test_run__short_from_end_to_end(tmp_path):
    picture = tmp_path / "picture.png"
    done = subprocess.run(
        [*DEMO, "--quick", "--steps", "40", "--seed", "7", "--out", str(picture)],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    for wanted in ("link udp", "rcvbuf", "GSO", "TAILBOUND_FAULT=drop=0.02", "SIGSTOP to rank 3", "SIGCONT to rank 3",
                   "rank 3 is absent", "frames repaired", "Where it loses"):  # fmt: skip
        assert wanted in text, (wanted, done.stdout)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = {line[:25].strip(): line[25:].split() for line in done.stdout.splitlines()}
    assert rows["steps"] == ["40", "40", "40", "40"]
    assert rows["received"][2] == "100.000"  # the exact class, under losses


def test_ctrl_c__leaves_no_process(tmp_path):
    child = subprocess.Popen([*DEMO], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    limit = time.monotonic() + 60
    with child.stdout:
        for line in child.stdout:
            if "(b)" in line or time.monotonic() > limit:
                break
        pids = ranks_of(child.pid)
        child.send_signal(signal.SIGINT)
        said = child.stdout.read()
    assert child.wait(20) == 130, said
    assert "interrupted; no process is left" in said
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
