"""Tailbound averages gradients across machines by a deadline: what arrived in time counts, what did not is reported
exactly.

    import tailbound as tb
    comm = tb.init()  # rank, size and address from torchrun, SLURM, Open MPI or `tailbound launch`
    r = comm.all_reduce(gradient, op="avg", key="layer1")
    print(r.received, r.verdict, r.per_peer)

Importing starts no thread, opens no device and imports no framework.
"""

from .comm import Communicator
from .core import lib as _lib
from .core import text as _text
from .errors import (
    ArgumentError,
    BufferRejected,
    BusyError,
    Cancelled,
    ClosedError,
    ConfigError,
    Error,
    ForkError,
    KeyBoundError,
    KeyInUseError,
    MembershipChanged,
    MismatchError,
    PeerLost,
    RendezvousError,
    ResyncNeeded,
    SkippedTooOften,
    TimedOut,
)
from .result import Result
from .simulate import World, simulate
from .start import init
from .work import Work

__version__ = _text(_lib.tb_version())

__all__ = [
    "ArgumentError",
    "BufferRejected",
    "BusyError",
    "Cancelled",
    "ClosedError",
    "Communicator",
    "ConfigError",
    "Error",
    "ForkError",
    "KeyBoundError",
    "KeyInUseError",
    "MembershipChanged",
    "MismatchError",
    "PeerLost",
    "RendezvousError",
    "Result",
    "ResyncNeeded",
    "SkippedTooOften",
    "TimedOut",
    "Work",
    "World",
    "__version__",
    "init",
    "simulate",
]
