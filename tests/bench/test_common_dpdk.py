"""What the dpdk benches read out of testpmd, and out of the surroundings."""

import common_dpdk
import pytest

RECORDED = """testpmd> show port stats 0

  ######################## NIC statistics for port 0  ########################
  RX-packets: 0          RX-missed: 0          RX-bytes:  0
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 253376     TX-errors: 0          TX-bytes:  383611264

  Throughput (since last show)
  Rx-pps:            0          Rx-bps:            0
  Tx-pps:       126482          Tx-bps:   1531955632
  ############################################################################
testpmd> show port stats 0

  ######################## NIC statistics for port 0  ########################
  RX-packets: 12         RX-missed: 3          RX-bytes:  18168
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 374720     TX-errors: 0          TX-bytes:  567326080

  Throughput (since last show)
  Rx-pps:           11          Rx-bps:       133232
  Tx-pps:       120302          Tx-bps:   1457107744
  ############################################################################
testpmd> """  # noqa: W291 (as testpmd prints it)


def test_port_stats__each_block_in_turn():
    first, second = common_dpdk.parse_port_stats(RECORDED)
    assert first == {"rx": 0, "tx": 253376, "missed": 0, "rx_pps": 0, "tx_pps": 126482}
    assert second == {"rx": 12, "tx": 374720, "missed": 3, "rx_pps": 11, "tx_pps": 120302}


def test_port_stats__what_is_missing_is_an_error_not_a_zero():
    with pytest.raises(common_dpdk.Failed, match="no rx_pps"):
        common_dpdk.parse_port_stats(RECORDED.replace("Rx-pps:", "Rx-pkts:"))
    assert common_dpdk.parse_port_stats("Invalid port 0\ntestpmd> ") == []


def test_device__both_ends_of_testpmd_are_those_of_the_link():
    assert common_dpdk.testpmd_device("memif", "/run/m", True).startswith("net_memif0,role=server,")
    assert "socket=/run/m" in common_dpdk.testpmd_device("memif", "/run/m", False)
    assert common_dpdk.testpmd_device("af_packet", "", False) == f"net_af_packet0,iface=eth0,{common_dpdk.RING}"


@pytest.mark.parametrize(("testpmd", "asked"), [(True, "apt-get install dpdk-dev"), (False, "")])
def test_needs__testpmd_only_where_it_is_used(monkeypatch, tmp_path, testpmd, asked):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/stream_bw").touch()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/libtailbound_dpdk-23.so").touch()
    monkeypatch.setattr(common_dpdk, "PROGRAMS", tmp_path / "bench")
    monkeypatch.setattr(common_dpdk.shutil, "which", lambda name: None)
    monkeypatch.setattr(common_dpdk.netlab_host, "unavailable", lambda: "")
    assert asked in common_dpdk.needs(testpmd)
    assert bool(common_dpdk.needs(testpmd)) == testpmd


def test_needs__plugin_and_programs_have_their_remedies(monkeypatch, tmp_path):
    monkeypatch.setattr(common_dpdk, "PROGRAMS", tmp_path / "bench")
    assert "make build" in common_dpdk.needs(False)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/stream_bw").touch()
    assert "make plugins" in common_dpdk.needs(False)


def test_finish__a_program_that_fails_is_told_with_its_last_words():
    import subprocess
    import sys

    def python(code):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, "-c", code], **pipes)

    assert common_dpdk.finish([python("print(1)"), python("print(2)")], 20) == ["1\n", "2\n"]
    slow = python("import time; time.sleep(60)")
    with pytest.raises(common_dpdk.Failed, match="last words"):
        common_dpdk.finish([python("raise SystemExit('last words')"), slow], 20)
    assert slow.returncode is not None
    with pytest.raises(common_dpdk.Failed, match="did not end in"):
        common_dpdk.finish([python("import time; time.sleep(60)")], 0.2)
