"""The packet format, checked against a decoder that shares no code with the core (rule 23)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import wire_decoder as wire

GOLDEN = Path(__file__).resolve().parent.parent / "native" / "golden"
LAYER_0 = 0x444862CF  # the hash of the key 'layer.0'


def golden(name):
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex(" ".join(line.split("#")[0] for line in lines))


def resealed(frame):
    return frame[:60] + wire.crc32c(frame[:60] + frame[64:]).to_bytes(4, "big") + frame[64:]


def test_header__covers_64_bytes_without_gap():
    at = 0
    for name, offset, size in wire.FIELDS:
        assert offset == at, name
        at += size
    assert at == wire.HEAD


def test_crc32c__rfc_3720_vector():
    assert wire.crc32c(b"123456789") == 0xE3069283
    assert wire.crc32c(b"56789", wire.crc32c(b"1234")) == 0xE3069283


def test_golden__there_is_one_for_each_type():
    assert {wire.decode(golden(path.stem)).type for path in GOLDEN.glob("*.hex")} == set(wire.TYPES.values())
    for path in GOLDEN.glob("*.hex"):
        assert wire.decode(golden(path.stem)).type == path.stem


def test_golden__data():
    f = wire.decode(golden("data"))
    assert (f.head["job"], f.head["view"], f.head["key"], f.head["round"]) == (0x01020304, 1, 0xA1B2C3D4, 2**32 - 2)
    assert (f.head["chunk"], f.head["source"], f.head["destination"], f.head["count"]) == (7, 3, 1, 4)
    assert (f.stage, f.level, f.flags) == (2, 0, {"own", "last"})
    assert (f.head["remaining_us"], f.head["hold_us"], f.head["incast"], f.head["percentile"]) == (2500, 250, 1, 99)
    assert (f.head["credit"], f.head["step"]) == (1024, 0x01000001)
    assert wire.data_values(f, "float32") == (1.0, -2.5, 0.0, 65536.0)


def test_golden__open():
    f = wire.decode(golden("open"))
    sig = f.body["signature"]
    assert (sig["kind"], sig["op"], sig["dtype"], sig["exact"], sig["count"]) == (
        "all_reduce",
        "avg",
        "float32",
        0,
        1000003,
    )
    assert f.body["key"] == b"layer.0"
    assert f.head["key"] == LAYER_0
    assert (f.body["heard"], f.body["has_closed"], f.body["closed_through"]) == (1, 1, 41)
    assert f.body["share"] == pytest.approx(0.95, abs=1e-4)
    assert (f.body["want_us"], f.body["stage_us"]) == (20000, [1000, 500])
    assert f.body["switch"] == (3, 2, 51, True)
    assert f.body["measured"] == (0x51E / 65535, 0xCCD)


def test_golden__receipt():
    f = wire.decode(golden("receipt"))
    first, second = f.body["sections"]
    assert first == {
        "key": LAYER_0,
        "round": 42,
        "stage": 1,
        "flags": {"heard", "request"},
        "missing": [(3, 5), (60, 5)],
        "got": 90,
        "upto": 100,
    }
    assert (second["round"], second["stage"], second["flags"]) == (41, 2, {"heard", "final", "closed"})
    assert f.body["seen"] == 0x01000010


def test_golden__error_and_probe():
    f = wire.decode(golden("error"))
    assert f.body == {"ack": 0, "status": -71, "ranks": (1, 2), "text": b"mismatch"}
    f = wire.decode(golden("probe"))
    assert (f.body, f.stage) == ({"kind": "mark", "final": 1, "sent": 500, "id": 0}, 1)


@pytest.mark.parametrize("name", sorted(wire.TYPES.values()))
def test_golden__cut_or_damaged_is_refused(name):
    frame = golden(name)
    for size in range(len(frame)):
        with pytest.raises(wire.Malformed):
            wire.decode(frame[:size])
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(wire.Malformed):
            wire.decode(bytes(damaged))


@pytest.mark.parametrize("name", sorted(wire.BODIES))
def test_body__of_another_length_is_refused_even_if_sealed(name):
    frame = golden(name)
    for size in range(wire.HEAD, len(frame)):
        with pytest.raises(wire.Malformed):
            wire.decode(resealed(frame[:size]))
    if name != "probe":  # padded to probe an MTU
        with pytest.raises(wire.Malformed):
            wire.decode(resealed(frame + b"\0"))
