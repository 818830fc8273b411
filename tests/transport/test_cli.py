"""The command line, and what importing the package does not do."""

import subprocess
import sys
from socket import AF_INET6

import pytest
import tailbound as tb
from tailbound import doctor, host


def tailbound(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "tailbound", *arguments], capture_output=True, text=True, timeout=60, env=env
    )


def test_version():
    done = tailbound("--version")
    assert (done.returncode, done.stdout) == (0, f"tailbound {tb.__version__}\n")


def test_no_command__prints_help():
    done = tailbound()
    assert done.returncode == 2
    for command in ("launch", "config", "doctor", "links", "demo", "perf"):
        assert command in done.stdout


def test_config__prints_the_table(monkeypatch):
    monkeypatch.setenv("TAILBOUND_FLOWS", "7")
    done = tailbound("config", "flows", "deadline")
    assert done.returncode == 0
    assert "env TAILBOUND_FLOWS" in done.stdout
    assert "default" in done.stdout
    assert len(tailbound("config", "--short").stdout.splitlines()) > 20


@pytest.mark.parametrize("command", ["--version", "config", "doctor", "links", "perf"])
def test_output__that_cannot_be_written_is_a_failure(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tailbound", command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "tailbound: cannot write: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_config__bad_variable(monkeypatch):
    monkeypatch.setenv("TAILBOUND_FLOWS", "many")
    done = tailbound("config")
    assert done.returncode == 1
    assert "TAILBOUND_FLOWS=many" in done.stderr
    assert "Traceback" not in done.stderr


def test_config__unknown_name():
    assert tailbound("config", "nothing").returncode == 2
    done = tailbound("config", "hadamrd")
    assert done.returncode == 2
    assert "did you mean hadamard" in done.stderr


def test_config__a_slip_in_a_variable_is_told(monkeypatch):
    monkeypatch.setenv("TAILBOUND_DEADLIN", "1")
    monkeypatch.setenv("TAILBOUND_ZZZZZZZZZZ", "1")  # some other program's
    done = tailbound("config", "flows")
    assert done.returncode == 0
    assert "TAILBOUND_DEADLIN has no effect: there is no option deadlin: did you mean deadline" in done.stderr
    assert "ZZZ" not in done.stderr


@pytest.mark.parametrize(("word", "value"), [("1", "on"), ("True", "on"), ("no", "off"), ("off", "off")])
def test_config__what_can_be_on_or_off_takes_all_words_for_it(monkeypatch, word, value):
    for name in ("HADAMARD", "DETERMINISTIC", "REPAIR"):
        monkeypatch.setenv(f"TAILBOUND_{name}", word)
    lines = tailbound("config", "--short", "hadamard", "deterministic", "repair").stdout.splitlines()
    assert [line.split()[1] for line in lines] == [value, value, {"on": "1", "off": "0"}[value]]


def test_config__by_the_name_of_the_variable():
    assert tailbound("config", "--short", "TAILBOUND_FLOWS").stdout.split()[0] == "flows"


def test_links__lists_links_and_interfaces():
    done = tailbound("links")
    assert done.returncode == 0
    for word in ("udp", "sim", "auto", "127.0.0.1", "MTU"):
        assert word in done.stdout


def test_doctor__runs_on_this_host():
    done = tailbound("doctor", "-n", "1")
    failures = sum(line.startswith("fail") for line in done.stdout.splitlines())
    assert done.returncode == (1 if failures else 0)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("levels", "status", "closing"),
    [
        (["ok", "note"], 0, "nothing to mend for the udp link"),
        (["ok", "warn", "warn"], 0, "2 warnings"),
        (["warn", "fail", "ok"], 1, "1 failure, 1 warning"),
    ],
)
def test_doctor__only_a_failure_is_a_bad_status(monkeypatch, capsys, levels, status, closing):
    monkeypatch.setattr(doctor, "findings", lambda ranks: [doctor.Finding(level, "what") for level in levels])
    assert doctor.main(0) == status
    assert capsys.readouterr().out.splitlines()[-1] == closing


def by_level(check, ranks=0):
    return [finding.level for finding in check(ranks)]


def test_socket_buffers__small_ones(monkeypatch):
    monkeypatch.setattr(host, "read_int", lambda path: 212992)
    monkeypatch.setattr(host, "may_force_buffers", lambda: True)
    assert by_level(doctor.socket_buffers) == ["ok", "ok"]
    monkeypatch.setattr(host, "may_force_buffers", lambda: False)
    found = list(doctor.socket_buffers(0))
    assert [finding.level for finding in found] == ["warn", "warn"]
    assert "212992" in found[0].what
    assert found[0].remedy == f"sudo sysctl -w net.core.rmem_max={doctor.WANTED_BUFFER}"
    monkeypatch.setattr(host, "read_int", lambda path: 64 << 20)
    assert by_level(doctor.socket_buffers) == ["ok", "ok"]


def test_offloads__refused(monkeypatch):
    monkeypatch.setattr(host, "udp_option", lambda option, value, family: False)
    assert by_level(doctor.offloads) == ["warn"] * 4
    monkeypatch.setattr(host, "udp_option", lambda option, value, family: None)
    assert by_level(doctor.offloads) == ["note"] * 2 + ["fail"]
    monkeypatch.setattr(host, "udp_option", lambda option, value, family: None if family == AF_INET6 else True)
    assert by_level(doctor.offloads) == ["ok"] * 2 + ["note"]


def test_mtu__small_and_absent(monkeypatch):
    interfaces = [host.Interface("lo", 65536, ("127.0.0.1",), True), host.Interface("eth0", 1280, ("10.0.0.1",), False)]
    monkeypatch.setattr(host, "interfaces", lambda: interfaces)
    monkeypatch.setattr(host, "default_interfaces", lambda: {"eth0"})
    (found,) = doctor.mtu(0)
    assert (found.level, found.remedy[:29]) == ("warn", "sudo ip link set eth0 mtu 150")
    monkeypatch.setattr(host, "default_interfaces", lambda: {"eth1"})
    assert by_level(doctor.mtu) == ["note"]
    monkeypatch.setattr(host, "interfaces", lambda: interfaces[:1])
    assert by_level(doctor.mtu) == ["note"]


@pytest.mark.parametrize(
    ("ranks", "cores", "quota", "level"),
    [(4, 2, None, "warn"), (2, 2, None, "ok"), (2, 8, 1.5, "warn"), (0, 8, None, "ok")],
)
def test_processors__against_ranks(monkeypatch, ranks, cores, quota, level):
    monkeypatch.setattr(host, "cores", lambda: cores)
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    assert by_level(doctor.processors, ranks) == [level]


def test_findings__every_warning_has_a_remedy_of_one_line():
    for finding in doctor.findings(64):
        assert finding.level in ("ok", "warn", "fail", "note")
        assert "\n" not in finding.what + finding.remedy
        assert finding.remedy or finding.level not in ("warn", "fail")


def test_default_interfaces__follow_the_routes(monkeypatch):
    files = {
        "/proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\neth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF",
        "/proc/net/ipv6_route": "\n".join(
            f"{to} 00 {'0' * 32} 00 {'0' * 32} ffffffff 1 0 200200 {name}"
            for to, name in (("0" * 32, "lo"), ("0" * 32, "eth2"), ("fe80" + "0" * 28, "eth3"))
        ),
    }
    monkeypatch.setattr(host, "read", files.get)
    assert host.default_interfaces() == {"eth0", "eth2"}


def test_interfaces__loopback_is_there():
    (loopback,) = [interface for interface in host.interfaces() if interface.name == "lo"]
    assert loopback.loopback
    assert "127.0.0.1" in loopback.addresses
    assert loopback.mtu > 1000


def test_import__starts_nothing_and_loads_nothing_heavy(run_python):
    code = """
import sys, threading, os
import numpy
before = set(os.listdir("/proc/self/task"))  # NumPy's BLAS may have threads of its own
import tailbound
assert set(os.listdir("/proc/self/task")) == before
heavy = [name for name in ("torch", "cupy", "ml_dtypes", "sklearn", "matplotlib", "jax") if name in sys.modules]
assert heavy == [], heavy
assert threading.active_count() == 1
maps = open("/proc/self/maps").read()
assert not any(word in maps for word in ("libibverbs", "librte_", "libcuda"))
print("fine")
"""
    done = run_python(code)
    assert done.stdout == "fine\n", done.stderr
