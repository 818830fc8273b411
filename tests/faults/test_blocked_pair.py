"""A pair of ranks that cannot exchange UDP is found by init and named on every rank."""
import re

import pytest
from harness import Job


@pytest.mark.parametrize("both", [True, False], ids=["both ways", "one way"])
def test_blocked_pair__is_named_by_init(lab, both):
    net = lab(4)
    net.block(1, 3)
    if both:
        net.block(3, 1)
    with Job(net, {"phases": []}, env={"TAILBOUND_LINK": "udp", "TAILBOUND_INIT_TIMEOUT": "4s"}) as job:
        job.join(timeout=9, status=3)
    assert net.drops(1, 3) > 0, "init sent nothing that the block could drop"
    for rank in range(4):
        failed = job.said(rank, what="init failed")[0]
        assert "1 pair of ranks (rank 1 and rank 3)" in failed["text"], failed
        assert not re.search(r"rank [02]\b", failed["text"]), failed
        assert "udp" in failed["text"].lower()
        assert failed["took"] < 6, failed
