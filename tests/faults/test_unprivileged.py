"""As a user without any network capability, with socket buffers of the size a stock kernel grants."""
import pwd
import re
import subprocess

from harness import Job, check_on_time, check_values, mean

STOCK = 212992  # net.core.rmem_max of a stock kernel; the kernel books twice that
ENV = {"TAILBOUND_LINK": "udp", "TAILBOUND_BUFFER": str(STOCK)}


def test_unprivileged__works_with_small_buffers(lab):
    net = lab(4)
    with Job(net, {"phases": [{"name": "exact", "n": 5, "count": 300_000, "deadline": "inf", "key": "e"},
                              {"name": "lossy", "n": 8, "count": 300_000, "deadline": 0.6, "key": "w"},
                              {"name": "end", "n": 1, "count": 10, "wait_for_line": True}]},
             env=ENV, user="nobody", stdin=True) as job:
        buffers = []
        for rank in range(4):
            job.wait_for(rank, what="end of phase", phase="lossy")
            shown = subprocess.run(["ip", "netns", "exec", net.namespace(rank), "ss", "-uanm"], capture_output=True,
                                   text=True, check=True).stdout
            buffers += map(int, re.findall(r"\brb(\d+)", shown))
        job.send_line()
        job.join()
    assert buffers
    assert max(buffers) <= 2 * STOCK, buffers
    check_values(job)
    for rank in range(4):
        assert job.said(rank, what="start")[0]["uid"] == pwd.getpwnam("nobody").pw_uid
        assert all(o["full"] == o["count"] for o in job.ops(rank, "exact"))
        check_on_time(job.ops(rank, "lossy"))
        assert mean(o["received"] for o in job.ops(rank, "lossy")) >= 0.99
