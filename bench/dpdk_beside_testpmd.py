#!/usr/bin/env python3
"""The dpdk link beside testpmd on the same devices: packets a second that arrive at the far end. Needs root.

    python bench/dpdk_beside_testpmd.py [--quick] [--pairs 5] [--seconds 3]

Two namespaces, eth0 of each a port of one bridge (af_packet), or a memif between them; both directions. Three programs
in turn, each sending from core 0 to core 1, frames of 1,514 bytes, no huge pages:

testpmd     txonly, two segments (--txpkts=106,1408), bursts of 32; rxonly at the far end, which counts. It sends
            without a pause what nobody reads; what the receiver has no room for is lost.
link        link_bench, the link without the protocol, bursts of 64, at most 1 MiB under way; the payload is copied.
stream_bw   messages of 744 frames, exact: acknowledged, repaired, in order, received into the caller's memory, and a
            process of two threads on each core. Counted is what was delivered, each payload once.

A pair is one measurement of each, in alternating order; ratios are of one pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common_dpdk import (
    FRAME,
    PAYLOAD,
    PROGRAMS,
    Failed,
    Rig,
    Testpmd,
    finish,
    load,
    needs,
    run_json,
    stop_with,
    testpmd_device,
)
from sim_tools import spread, table

MESSAGE, PORT, WINDOW = 744 * PAYLOAD, 29700, 1
POOL = ["--total-num-mbufs=8192"]


def testpmd(rig: Rig, kind: str, source: int, seconds: float) -> dict[str, float]:
    """Packets a second received, and the share of those sent that was lost."""
    sink, socket = 1 - source, rig.socket()
    receiver = Testpmd(rig, sink, 1, testpmd_device(kind, socket, True), "rxonly", POOL)
    try:
        receiver.say("start")
        segments = f"--txpkts=106,{PAYLOAD}"
        sender = Testpmd(rig, source, 0, testpmd_device(kind, socket, False), "txonly", [*POOL, segments])
        try:
            time.sleep(1)  # memif's ends find each other
            sender.say("start")
            time.sleep(0.5)
            before = sender.stats(), receiver.stats()
            time.sleep(seconds)
            after = sender.stats(), receiver.stats()
        finally:
            sender.end()
    finally:
        receiver.end()
    sent, got = after[0]["tx"] - before[0]["tx"], after[1]["rx"] - before[1]["rx"]
    if not after[1]["rx_pps"]:
        raise Failed(f"testpmd's receiver got nothing over {kind}")
    return {"pps": after[1]["rx_pps"], "lost": max(0.0, 1 - got / sent) if sent else 0.0}


def link(rig: Rig, kind: str, source: int, seconds: float) -> dict[str, float]:
    sink = 1 - source
    argv = [str(PROGRAMS / "link_bench"), "--link", "dpdk", "--device", rig.device(kind, rig.socket()), "--ip",
            f"{rig.lab.ip4(source)}/16,{rig.lab.ip4(sink)}/16", "--netns",
            f"{rig.lab.namespace(source)},{rig.lab.namespace(sink)}", "--hugepages", "off", "--busy", "--pin", "-w",
            str(WINDOW), "-b", "64", "-s", str(seconds), "--no-steps", "--json", str(FRAME)]  # fmt: skip
    (row,) = run_json(rig, argv, 60 + seconds)
    lost = 1 - row["received"] / row["sent"]
    return {"pps": row["packets_per_s"], "lost": lost, "tx": row["tx"]["ns"], "rx": row["rx"]["ns"]}


def stream(rig: Rig, kind: str, source: int, seconds: float) -> dict[str, float]:
    sink, socket = 1 - source, rig.socket()
    PORTS[0] += 1
    with tempfile.NamedTemporaryFile(dir=rig.folder) as out:
        argv = [str(PROGRAMS / "stream_bw"), "-p", str(PORTS[0]), "-D", str(round(seconds)), "-s", str(MESSAGE), "-t",
                "16", "--set", "poll=busy", "--set", f"mtu={FRAME}", "--out_json_file", out.name]  # fmt: skip
        ends = []
        for rank, cpu, last in ((sink, 1, []), (source, 0, [rig.lab.management(sink)])):
            variables = rig.variables(kind, rank, sink, socket, PORTS[0])
            ends.append(rig.start(rank, cpu, argv + last, env=variables))
        finish(ends, 90 + seconds)
        (row,) = json.loads(Path(out.name).read_text())["results"]
    if row["recv_pct"] < 100:
        raise Failed(f"exact messages arrived to {row['recv_pct']} %")
    return {"pps": row["BW_average_MiBps"] * (1 << 20) / PAYLOAD, "lost": 0.0}


PORTS = [PORT]
PROGRAM = {"testpmd": testpmd, "link": link, "stream_bw": stream}


def attempt(program: Any, rig: Rig, kind: str, source: int, seconds: float) -> dict[str, float]:
    """testpmd's end of a memif dies now and then; a failure is told, and measured again, twice at most."""
    for _ in range(2):
        try:
            return program(rig, kind, source, seconds)
        except Failed as error:
            print(f"# again, {program.__name__} over {kind}: {error}", flush=True)
    return program(rig, kind, source, seconds)


def compare(rig: Rig, kind: str, source: int, pairs: int, seconds: float) -> dict[str, Any]:
    """One row: all pairs of one device and direction."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PROGRAM}
    for pair in range(pairs):
        for name in list(PROGRAM)[:: -1 if pair % 2 else 1]:
            found[name].append(attempt(PROGRAM[name], rig, kind, source, seconds))
    pps = {name: [one["pps"] for one in each] for name, each in found.items()}
    lost = {name: statistics.median(one["lost"] for one in each) for name, each in found.items()}

    def ratio(name: str) -> str:
        return spread([a / b for a, b in zip(pps[name], pps["testpmd"], strict=True)], "{:.2f}".format)

    def millions(name: str) -> str:
        return spread([value / 1e6 for value in pps[name]], "{:.3f}".format)

    return {
        "device": kind,
        "way": f"{source} -> {1 - source}",
        "testpmd Mpps": millions("testpmd"),
        "lost %": f"{100 * lost['testpmd']:.1f}",
        "link Mpps": millions("link"),
        "link lost %": f"{100 * lost['link']:.1f}",
        "tx, rx ns": ", ".join(f"{statistics.median(one[way] for one in found['link']):.0f}" for way in ("tx", "rx")),
        "stream_bw Mpps": millions("stream_bw"),
        "link / testpmd": ratio("link"),
        "stream_bw / testpmd": ratio("stream_bw"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair of a second each, one direction")
    parser.add_argument("--pairs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, default: %(default)s")
    parser.add_argument("--devices", default="af_packet,memif", help="default: %(default)s")
    args = parser.parse_args()
    if reason := needs(testpmd=True):
        return stop_with(reason)
    pairs, seconds, ways = (1, 1.0, 1) if args.quick else (args.pairs, args.seconds, 2)
    print(f"# load {load()} at the start; {pairs} pairs of {seconds:g} s; median (least..most)")
    with tempfile.TemporaryDirectory() as folder, Rig(folder) as rig:
        kinds = args.devices.split(",")
        for kind in kinds:
            table([compare(rig, kind, source, pairs, seconds) for source in range(ways)])
    print(f"# load {load()} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
