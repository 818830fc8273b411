"""config.py and arguments.py: Python values to options and back, and what a bad one says."""

import math

import numpy as np
import pytest
import tailbound as tb
from tailbound import arguments
from tailbound.config import Config, as_text, deadline_ns, seconds_ns, split_address, table
from tailbound.errors import ArgumentError, ConfigError


def test_rows__every_option_has_a_reason_and_a_variable():
    rows = Config().rows()
    assert len(rows) > 20
    for row in rows:
        assert row.env.startswith(f"TAILBOUND_{row.name.upper()}"), row
        assert row.unit, row
        assert row.why, row
        assert row.source == "default", row
    assert len({row.name for row in rows}) == len(rows)


def test_set__python_values():
    config = Config()
    for name, value, text in (
        ("flows", 8, "8"),
        ("flows", np.int64(2), "2"),
        ("init_timeout", 2.5, "2.5"),
        ("init_timeout", "20ms", "20ms"),
        ("buffer", 1 << 20, "1048576"),
        ("offload", False, "off"),
        ("deadline", math.inf, "inf"),
        ("min_received", np.float32(0.25), "0.25"),
    ):
        config.set(name, value)
        row = config.row(name)
        assert (row.value, row.source) == (text, "set")


def test_set__none_leaves_it_alone():
    config = Config()
    config.set("flows", None)
    assert config.row("flows").source == "default"


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("bufer", 1, "did you mean buffer"),
        ("flows", 0, "flows=0"),
        ("flows", "many", "flows=many"),
        ("link", "carrier-pigeon", "link=carrier-pigeon"),
        ("min_received", 1.5, "min_received=1.5"),
        ("init_timeout", "soon", "init_timeout=soon"),
        ("flows", math.nan, "nan"),
        ("flows", [1], "list"),
    ],
)
def test_set__bad(name, value, word):
    with pytest.raises(ConfigError) as caught:
        Config().set(name, value)
    assert word in str(caught.value)


def test_get__unknown():
    with pytest.raises(ConfigError, match="no option nothing"):
        Config().get("nothing")


def test_as_text__refuses_nan():
    with pytest.raises(ConfigError, match="nan"):
        as_text("x", math.nan)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("node1", ("node1", None)),
        ("node1:1234", ("node1", "1234")),
        ("10.0.0.1:80", ("10.0.0.1", "80")),
        ("::1", ("::1", None)),
        ("[::1]", ("::1", None)),
        ("[fe80::1%eth0]:99", ("fe80::1%eth0", "99")),
    ],
)
def test_split_address__forms(address, expected):
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address", ["", ":80", "node1:", "node1:0", "node1:65536", "node1:http", "[::1", "[::1]80", "[]:80"]
)
def test_split_address__bad(address):
    with pytest.raises(ConfigError):
        split_address(address)


def test_deadline_ns__forms():
    assert deadline_ns("auto") == 0
    assert deadline_ns(math.inf) == deadline_ns("exact") == 2**64 - 1
    assert deadline_ns(0.05) == 50_000_000
    assert deadline_ns(np.float32(2)) == 2_000_000_000
    assert deadline_ns(1e-12) == 1


@pytest.mark.parametrize("value", [0, -1.0, math.nan, -math.inf, "soon", "", None, [], 1e12])
def test_deadline_ns__bad(value):
    with pytest.raises(ArgumentError, match="deadline"):
        deadline_ns(value)


def test_seconds_ns__bounds():
    assert seconds_ns("timeout", 0) == 0
    for value in (-1, math.inf, math.nan, "x"):
        with pytest.raises(ArgumentError, match="timeout"):
            seconds_ns("timeout", value)


def test_table__shows_all():
    rows = Config().rows()
    printed = table(rows)
    assert all(row.name in printed and row.why in printed and row.env in printed for row in rows)
    assert len(table(rows, reasons=False).splitlines()) == len(rows)


def test_call_key__kinds_are_apart():
    assert arguments.call_key(None) == b""
    assert arguments.call_key("1") == b"s:1"
    assert arguments.call_key(1) == arguments.call_key(np.int32(1)) == b"i:1"
    assert arguments.call_key("ü") == b"s:\xc3\xbc"
    assert arguments.call_key("") == b"s:"
    assert len(arguments.call_key("x" * 253)) == 255


@pytest.mark.parametrize("key", [True, 1.5, b"x", [], "x" * 254, "ü" * 127])
def test_call_key__bad(key):
    with pytest.raises(ArgumentError, match="key"):
        arguments.call_key(key)


def test_call_rank__range():
    assert arguments.call_rank("dst", 3, 4) == 3
    for rank in (-1, 4, 1.0, None, True):
        with pytest.raises(ArgumentError, match="dst"):
            arguments.call_rank("dst", rank, 4)


def test_call_tag__range():
    assert arguments.call_tag(2**32 - 1) == 2**32 - 1
    for tag in (-1, 2**32, "a"):
        with pytest.raises(ArgumentError, match="tag"):
            arguments.call_tag(tag)


def test_share__forms():
    assert arguments.share("min_received", "50%") == 0.5
    assert arguments.share("min_received", 1) == 1.0
    for value in (-0.1, 1.1, math.nan, "half", None):
        with pytest.raises(ArgumentError, match="min_received"):
            arguments.share("min_received", value)


def test_missing__renormalise_or_carry():
    assert arguments.call_missing("renormalise") != arguments.call_missing("carry")
    for wrong in ("perhaps", None, 1):
        with pytest.raises(ArgumentError, match="'renormalise', 'carry'"):
            arguments.call_missing(wrong)


def test_missing__carry_is_refused_where_ranks_agree():
    with pytest.raises(ConfigError, match=r"missing=carry \(set\) .* consistency=agree \(set\)"):
        tb.init(missing="carry", consistency="agree")
    with pytest.raises(ArgumentError, match='consistency="agree"'):
        tb.simulate(2, missing="carry", consistency="agree")


def test_consistency__local_or_agree():
    assert arguments.call_consistency("local") != arguments.call_consistency("agree")
    for wrong in ("perhaps", None, 1):
        with pytest.raises(ArgumentError, match="'local', 'agree'"):
            arguments.call_consistency(wrong)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"missing": "drop"}, "renormalise | carry"),
        ({"consistency": "both"}, "agree"),
        ({"link": "sim"}, "simulate"),
        ({"link": "carrier"}, "link=carrier"),
        ({"rank": -1}, "rank=-1"),
        ({"rank": 1024}, "rank=1024"),
        ({"size": 0}, "size=0"),
        ({"size": 1025}, "size=1025"),
        ({"deadline": -1}, "deadline"),
        ({"address": "node1:http"}, "node1:http"),
        ({"interfaces": "eth"}, "did you mean interface"),
        ({"min_received": 2}, "min_received"),
    ],
)
def test_init__bad_options(options, word):
    with pytest.raises(tb.Error) as caught:
        tb.init(**options)
    assert word in str(caught.value)
    assert isinstance(caught.value, ValueError)
