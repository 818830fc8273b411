"""Environment variables: our own, and those of torchrun, SLURM and Open MPI, as the options table sees them."""

import pytest
from tailbound.config import Config
from tailbound.errors import ConfigError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job-a",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x4)",
    "SLURM_STEP_NODELIST": "gpu[003-006]",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-77@1",
}


def values(monkeypatch, *environments):
    for environment in environments:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
    return {row.name: row for row in Config().rows()}


def check(rows, **expected):
    assert {name: rows[name].value for name in expected} == expected


def test_torchrun(monkeypatch):
    rows = values(monkeypatch, TORCHRUN)
    check(rows, rank="3", size="8", local_rank="1", local_size="2", master_addr="node7", master_port="29501")
    check(rows, job="job-a", restart="2")
    assert rows["rank"].source == "env RANK"


def test_slurm(monkeypatch):
    rows = values(monkeypatch, SLURM)
    check(rows, rank="5", size="16", local_rank="1", local_size="4", master_addr="gpu003", job="123456.0")
    check(rows, master_port=str(20000 + 123456 % 10000))


def test_open_mpi(monkeypatch):
    check(values(monkeypatch, OPEN_MPI), rank="2", size="4", local_rank="0", local_size="2", job="prterun-77@1")


def test_torchrun_inside_slurm(monkeypatch):
    check(values(monkeypatch, SLURM, TORCHRUN), rank="3", size="8", master_addr="node7", job="job-a")


def test_own_variables_win(monkeypatch):
    own = {"TAILBOUND_RANK": "1", "TAILBOUND_SIZE": "2", "TAILBOUND_MASTER_PORT": "777"}
    rows = values(monkeypatch, TORCHRUN, own)
    check(rows, rank="1", size="2", master_port="777", master_addr="node7")
    assert rows["rank"].source == "env TAILBOUND_RANK"


def test_empty_means_not_set(monkeypatch):
    check(values(monkeypatch, {"RANK": "", "TAILBOUND_FLOWS": ""}), rank="0", flows="4")


def test_arguments_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("TAILBOUND_FLOWS", "2")
    config = Config()
    assert config.get("flows") == "2"
    config.set("flows", 3)
    assert config.get("flows") == "3"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "first"),
        ("WORLD_SIZE", "0"),
        ("TAILBOUND_DEADLINE", "soon"),
        ("TAILBOUND_PORT_RANGE", "9-1"),
        ("MASTER_PORT", "70000"),
        ("TAILBOUND_FAULT", "drop=2"),
        ("SLURM_STEP_NODELIST", "gpu[003"),
    ],
)
def test_bad_variable_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        Config()
    assert name in str(caught.value)
    assert value in str(caught.value)
