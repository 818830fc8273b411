"""Keys in the core's sentences as their user knows them. `arguments.call_key` says what the core has instead."""

from __future__ import annotations

import re

_MESSAGE = re.compile(r"\bkey 'p2p:(\d+):(\d+):(\d+)'")
_NUMBER = re.compile(r"(\bkey |\bkeys |(?<=['\d]) and )'i:(-?\d+)'")
_TEXT = re.compile(r"(\bkey |\bkeys |(?<=['\d]) and )'s:")


def readable(sentence: str) -> str:
    """key 's:W' -> key 'W', key 'i:5' -> key 5, key '' -> an unnamed operation. Other text stays as it is."""
    if "key" not in sentence:
        return sentence
    sentence = _TEXT.sub(r"\1'", _NUMBER.sub(r"\1\2", sentence))  # numbers first: a text may look like one
    sentence = _MESSAGE.sub(r"messages of tag \3 from rank \1 to rank \2", sentence)
    return sentence.replace("key ''", "an unnamed operation")
