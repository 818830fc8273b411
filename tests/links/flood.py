"""Sends raw Ethernet frames from eth0 as fast as the kernel takes them: {"frames": {name: [hex, ...]}, "count": 1000}
on stdin, of each name so many; or "seconds" instead. Says as JSON how many of each name were sent.
"""
import ctypes
import errno
import itertools
import json
import random
import socket
import sys
import time

BATCH = 64
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20


class Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class Header(ctypes.Structure):  # struct msghdr
    _fields_ = (("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int))


class Message(ctypes.Structure):  # struct mmsghdr
    _fields_ = (("head", Header), ("len", ctypes.c_uint))


def prepared(frames):
    """Messages for sendmmsg, and what keeps their memory."""
    kept, messages = [], (Message * len(frames))()
    for message, frame in zip(messages, frames, strict=True):
        buffer = ctypes.create_string_buffer(frame, len(frame))
        kept.append((buffer, Iovec(ctypes.addressof(buffer), len(frame))))
        message.head.iov, message.head.iovlen = ctypes.pointer(kept[-1][1]), 1
    return messages, kept


def send(libc, wire, messages):
    at = 0
    while at < len(messages):
        took = libc.sendmmsg(wire.fileno(), ctypes.byref(messages, at * ctypes.sizeof(Message)), len(messages) - at, 0)
        at += max(took, 0)
        if took < 0 and ctypes.get_errno() != errno.ENOBUFS:  # else the other end's queue is full: that one again
            raise OSError(ctypes.get_errno(), "sendmmsg")


def main():
    told = json.load(sys.stdin)
    each = told.get("count", 2 * BATCH)
    pool = [(name, bytes.fromhex(text)) for name, texts in told["frames"].items()
            for text in itertools.islice(itertools.cycle(texts), each)]
    random.Random(1).shuffle(pool)
    batches = [pool[i:i + BATCH] for i in range(0, len(pool), BATCH)]
    ready = [([name for name, _ in batch], *prepared([frame for _, frame in batch])) for batch in batches]
    sent = dict.fromkeys(told["frames"], 0)
    libc = ctypes.CDLL(None, use_errno=True)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("eth0", 0))
    wire.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    until = time.monotonic() + told.get("seconds", 0)
    for names, messages, _ in itertools.cycle(ready) if "seconds" in told else ready:
        if "seconds" in told and time.monotonic() > until:
            break
        send(libc, wire, messages)
        for name in names:
            sent[name] += 1
    print(json.dumps(sent))


if __name__ == "__main__":
    main()
