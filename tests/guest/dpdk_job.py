"""Jobs of two ranks on NICs of the guest's hub; runs in the guest. dpdk_job.py [NETWORK/]LINK:ADDRESS,LINK:ADDRESS...

LINK is dpdk (the NIC at this PCI address, under vfio) or udp (the kernel has the NIC). NETWORK is ipv6, or ipv6.VLAN,
on which the kernel has an interface of its own. The rendezvous goes over lo. One job after the other, so that NICs are
also handed back and taken again; a line is printed for each rank.
"""
import subprocess
import sys
import time
from pathlib import Path

import ranks

HUGE_PAGES = 256  # of 2 MB, for both ranks and the rehearsal of each
COUNT, OPERATIONS, DEADLINE = 20_000, 4, 5.0
HERE = Path(__file__).resolve().parent


def huge_pages(n):
    path = Path("/proc/sys/vm/nr_hugepages")
    path.write_text(str(n))
    assert int(path.read_text()) == n, f"{path.read_text()} of {n} huge pages"


def ip(*command):
    subprocess.run(["ip", *command], check=True)


def kernel_interface(address, own, vlan):
    """Gives the kernel's interface of a PCI device, or a VLAN's on that, an address; its name."""
    subprocess.run([HERE / "bind.sh", "virtio-pci", address], check=True)
    limit = time.monotonic() + 10
    while not (found := list(Path(f"/sys/bus/pci/devices/{address}").glob("**/net/*"))):
        assert time.monotonic() < limit, f"no driver of the kernel made an interface of {address}"
        time.sleep(0.1)
    name = found[0].name
    ip("link", "set", name, "up")
    if vlan:
        name, parent = f"{name}.{vlan}", name
        ip("link", "add", "link", parent, "name", name, "type", "vlan", "id", vlan)
        ip("link", "set", name, "up")
    ip("addr", "add", own, "dev", name, *["nodad"] * (":" in own))
    return name


def spec(rank, network, text):
    link, _, address = text.partition(":")
    family, _, vlan = network.partition(".")
    own = f"fd00:9::{rank + 1}/64" if family == "ipv6" else f"10.9.0.{rank + 1}/24"
    env = {"TAILBOUND_LINK": link, "MASTER_ADDR": "127.0.0.1"}
    if link == "udp":
        return {"env": {**env, "TAILBOUND_INTERFACE": kernel_interface(address, own, vlan)}}
    subprocess.run([HERE / "bind.sh", "vfio-pci", address], check=True)
    return {"env": {**env, "TAILBOUND_DEVICE": address, "TAILBOUND_IP": own, "TAILBOUND_VLAN": vlan,
                    "TAILBOUND_HUGEPAGES": "on"}}


def check(rank, env, result):
    stats = result["stats"]
    assert stats["link"] == env["TAILBOUND_LINK"], stats
    # the payloads of all operations left and came by this link
    least = COUNT * 4 // 2 * OPERATIONS
    assert stats["tx_bytes"] > least, stats
    assert stats["rx_bytes"] > least, stats
    for name in ("rx_overflow", "rx_truncated", "rx_nobuf", "tx_errors", "bad_check", "bad_length"):
        assert not stats[name], (name, stats)  # None where the device has no such counter
    worst = max(o["wall"] for o in result["ops"])
    print(f"rank {rank}: {OPERATIONS} of {OPERATIONS} whole, worst {worst:.3f} s of {DEADLINE} s, {stats['tx_frames']} "
          f"frames out, {stats['rx_frames']} in; {stats['description'].partition('; ')[2]}", flush=True)


def main():
    huge_pages(HUGE_PAGES)
    for job in sys.argv[1:]:
        network, _, links = job.rpartition("/")
        specs = [spec(rank, network, text) for rank, text in enumerate(links.split(","))]
        results = ranks.run(specs, COUNT, OPERATIONS, DEADLINE)
        ranks.check(results, OPERATIONS, least=1.0)
        for rank, result in enumerate(results):
            check(rank, specs[rank]["env"], result)


if __name__ == "__main__":
    main()
