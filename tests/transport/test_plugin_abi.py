"""What passes between the core and a plugin has a number that changes with it: a plugin of another build is refused
instead of being called with other offsets.

No number that a person raises: the declarations themselves, without comments and white space, give it.
"""

import re
import zlib
from pathlib import Path

LINKS = Path(__file__).resolve().parent.parent.parent / "native" / "links"
NUMBER = re.compile(r"(#define TB_PLUGIN_ABI )(0x[0-9a-f]{8})u")


def declarations(name):
    text = (LINKS / name).read_text()
    text = NUMBER.sub(r"\1", text)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", " ", text)
    return "".join(text.split())


def number():
    return f"0x{zlib.crc32((declarations('link.h') + declarations('plugin.h')).encode()):08x}"


def test_number__is_that_of_the_declarations():
    written = NUMBER.search((LINKS / "plugin.h").read_text())
    assert written, "plugin.h defines TB_PLUGIN_ABI as 0x and eight digits"
    assert written[2] == number(), f"link.h or plugin.h changed: set TB_PLUGIN_ABI in plugin.h to {number()}u"
