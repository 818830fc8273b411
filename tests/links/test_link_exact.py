"""Exact calls give what the oracle says, to the last element, at sizes that no chunk and no shard fits."""
import pytest

# one element, fewer and more than fit one packet, not a multiple of it, several MB
COUNTS = {"float32": [1, 367, 100_003, 1_000_003], "float64": [1, 183, 50_021, 500_009],
          "int32": [1, 369, 100_019, 1_000_033]}


@pytest.mark.parametrize("what", ["all_reduce", "broadcast", "all_gather", "messages"])
def test_exact__is_the_oracles_at_odd_sizes(job, what):
    for dtype, counts in COUNTS.items():
        said = job.step("exact", timeout=8, what=what, dtype=dtype, counts=counts, key=job.key(what))
        for rank, line in said.items():
            assert line["wrong"] == {str(count): 0 for count in counts}, (rank, dtype)


def test_link__is_the_one_asked_for_and_refuses_no_frame_of_its_own(job):
    before = job.step("stats", timeout=2)
    job.step("exact", timeout=4, what="all_reduce", dtype="float32", counts=[200_003], key=job.key("clean"))
    for rank, line in job.step("stats", timeout=2).items():
        old, new = before[rank]["stats"], line["stats"]
        assert new["link"] == job.kind.link(rank)
        assert new["tx_frames"] > old["tx_frames"], (rank, new)
        assert new["rx_frames"] > old["rx_frames"], (rank, new)
        refused = {name: count for name, count in new.items()
                   if name.startswith("bad_") or name in ("rx_truncated", "tx_errors") if count}
        assert not refused, (rank, refused)
