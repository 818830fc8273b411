"""Objects that stand for something of this process alone: a copy of one would free it twice."""

from __future__ import annotations

from typing import Any, ClassVar


class Single:
    """Refuses copy, deepcopy and pickle, all of which ask __reduce_ex__; `_instead` says what to do."""

    _instead: ClassVar[str] = ""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: {self._instead}")
