"""A decoder of Tailbound frames that shares nothing with the core: written from the comment in native/protocol/wire.h
and rule 23 of the contract, so that both must be wrong in the same way for an error in the format to stay unseen.
"""

import struct
from dataclasses import dataclass, field

MAGIC, VERSION, HEAD = 0x5442, 1, 64
TYPES = {1: "data", 2: "open", 3: "receipt", 4: "grant", 5: "error", 6: "probe", 7: "goodbye", 8: "view"}
FLAGS = {1: "own", 2: "last", 4: "tag"}
RECEIPT_FLAGS = {1: "heard", 2: "final", 4: "closed", 8: "request", 16: "unknown", 32: "more"}
PROBES = {1: "ping", 2: "pong", 3: "mark"}
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "send", "recv")
DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
OPS = ("sum", "avg", "min", "max", "prod")

# name, offset, size: the table of wire.h
FIELDS = (
    ("magic", 0, 2),
    ("version", 2, 1),
    ("type", 3, 1),
    ("job", 4, 4),
    ("view", 8, 4),
    ("key", 12, 4),
    ("round", 16, 4),
    ("chunk", 20, 4),
    ("source", 24, 2),
    ("destination", 26, 2),
    ("count", 28, 2),
    ("stage_level", 30, 1),
    ("flags", 31, 1),
    ("remaining_us", 32, 4),
    ("stamp_ns", 36, 4),
    ("echo_ns", 40, 4),
    ("hold_us", 44, 2),
    ("incast", 46, 1),
    ("percentile", 47, 1),
    ("credit", 48, 4),
    ("signature", 52, 4),
    ("step", 56, 4),
    ("check", 60, 4),
)


class Malformed(ValueError):
    """Says which rule of the format a frame breaks."""


def crc32c(data: bytes, seed: int = 0) -> int:
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def names(bits: int, table: dict[int, str]) -> set[str]:
    unknown = bits & ~sum(table)
    if unknown:
        raise Malformed(f"unknown bits {unknown:#x}")
    return {name for bit, name in table.items() if bits & bit}


@dataclass
class Frame:
    type: str
    head: dict[str, int]
    stage: int
    level: int
    flags: set[str]
    payload: bytes
    body: dict = field(default_factory=dict)


def take(body: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(body):
        raise Malformed(f"the body ends at {len(body)}, inside a field at {at}")
    return int.from_bytes(body[at : at + size], "big"), at + size


def unpack(body: bytes, at: int, layout: str) -> tuple[list[int], int]:
    """layout: sizes of unsigned big-endian numbers, e.g. "1124"."""
    values = []
    for size in layout:
        value, at = take(body, at, int(size))
        values.append(value)
    return values, at


def text(body: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(body):
        raise Malformed("a text is longer than its body")
    return body[at : at + size], at + size


def decode_open(body: bytes) -> tuple[dict, int]:
    found, at = unpack(body, 1, "11111111224448")
    keys = ("kind", "op", "dtype", "exact", "missing", "consistency", "wire_dtype", "hadamard")
    keys += ("root", "peer", "chunk_elems", "groups", "tag", "count")
    sig = dict(zip(keys, found, strict=True))
    if sig["kind"] >= len(KINDS) or sig["op"] >= len(OPS) or sig["dtype"] >= len(DTYPES):
        raise Malformed("unknown kind, op or dtype")
    if sig["exact"] > 1 or not sig["chunk_elems"]:
        raise Malformed("exact is a truth value, and a chunk has elements")
    sig |= {"kind": KINDS[sig["kind"]], "op": OPS[sig["op"]], "dtype": DTYPES[sig["dtype"]]}
    (heard, has_closed, closed_through, share, want, *stages), at = unpack(body, at, "1142444")
    (number, by, start, bits, loss, gain, length), at = unpack(body, at, "2241221")
    if heard > 1 or has_closed > 1 or bits > 3:
        raise Malformed("heard and has_closed are truth values, and of a switch two bits are used")
    key, at = text(body, at, length)
    return {
        "signature": sig,
        "heard": heard,
        "has_closed": has_closed,
        "closed_through": closed_through,
        "share": share / 65535,
        "want_us": want,
        "stage_us": stages,
        "switch": (number, by, start, bool(bits & 1)),
        "measured": (loss / 65535, (gain ^ 0x8000) - 0x8000) if bits & 2 else None,
        "key": key,
    }, at


def decode_receipt(body: bytes) -> tuple[dict, int]:
    (count, _, seen), at = unpack(body, 1, "124")
    sections = []
    for _ in range(count):
        (key, round_, stage, flags, ranges, got, upto), at = unpack(body, at, "4411244")
        if stage not in (1, 2):
            raise Malformed(f"stage {stage}")
        missing = []
        for _ in range(ranges):
            (start, size), at = unpack(body, at, "44")
            missing.append((start, size))
        sections.append(
            {"key": key, "round": round_, "stage": stage, "flags": names(flags, RECEIPT_FLAGS), "missing": missing}
            | {"got": got, "upto": upto}
        )
    return {"seen": seen, "sections": sections}, at


def decode_error(body: bytes) -> tuple[dict, int]:
    (ack, status, a, b, length), at = unpack(body, 1, "14221")
    status -= (status >> 31) << 32
    if ack > 1 or not -4096 < status < 0 or length > 240:
        raise Malformed("ack is a truth value, status an errno, a text at most 240 bytes")
    said, at = text(body, at, length)
    return {"ack": ack, "status": status, "ranks": (a, b), "text": said}, at


def decode_probe(body: bytes) -> tuple[dict, int]:
    (kind, final, _, sent, number), _ = unpack(body, 1, "11144")
    if kind not in PROBES or final > 1:
        raise Malformed("unknown probe")
    return {"kind": PROBES[kind], "final": final, "sent": sent, "id": number}, len(body)  # the rest is padding


BODIES = {"open": decode_open, "receipt": decode_receipt, "error": decode_error, "probe": decode_probe}


def decode(frame: bytes, payload_covered: bool = True) -> Frame:
    """payload_covered: the link does not check payloads itself, so the check covers those of data frames too."""
    if len(frame) < HEAD:
        raise Malformed(f"{len(frame)} bytes are no header")
    head = {name: int.from_bytes(frame[at : at + size], "big") for name, at, size in FIELDS}
    if head["magic"] != MAGIC:
        raise Malformed(f"magic {head['magic']:#x}")
    if head["version"] != VERSION:
        raise Malformed(f"version {head['version']}")
    if head["type"] not in TYPES:
        raise Malformed(f"type {head['type']}")
    kind, payload = TYPES[head["type"]], frame[HEAD:]
    covered = frame[:60] + (payload if payload_covered or kind != "data" else b"")
    if head["check"] != crc32c(covered):
        raise Malformed(f"check {head['check']:#x} is not {crc32c(covered):#x}")
    decoded = Frame(
        kind, head, head["stage_level"] >> 4, head["stage_level"] & 15, names(head["flags"], FLAGS), payload
    )
    if kind == "data":
        return decoded
    if not payload or payload[0] != 1:
        raise Malformed("a control body begins with its version, 1")
    if kind in BODIES:
        decoded.body, end = BODIES[kind](payload)
        if end != len(payload):
            raise Malformed(f"{len(payload) - end} bytes too many")
    return decoded


def data_values(frame: Frame, dtype: str) -> tuple:
    """Payloads are whole elements, little-endian."""
    code = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}[dtype]
    size = struct.calcsize("<" + code)
    if len(frame.payload) % size:
        raise Malformed("a torn element")
    return struct.unpack(f"<{len(frame.payload) // size}{code}", frame.payload)
