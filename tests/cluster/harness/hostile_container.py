# SPDX-License-Identifier: Apache-2.0
"""What a container may try against the limits of its slice, from inside: run there as a program of its own.

Says what came of each attempt, a word and a number a line. Uses nothing but Python's own library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SEAT = "/run/slicekeeper/seat.sock"
OURS = ("/etc/ld.so.preload", "/usr/local/slicekeeper/lib/libvcuda.so", SEAT, "/run/slicekeeper/seat.json")
FORKS = 1000
"""More than a seat has places for."""
BYTES = 256 << 20
FLOOD_SECONDS = 3.0

TOTAL = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
cuda.cuInit(0)
print(0 if cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) else total.value)
"""

ESCAPE = """
import ctypes, time
cuda, context, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
print("escaped", code or cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4 << 30)), flush=True)
time.sleep(3600)
"""


def say(what: str, number: object) -> None:
    """Print one outcome."""
    print(what, number, flush=True)


def works(act: Callable[[], object]) -> bool:
    """Whether the system lets us."""
    try:
        act()
    except OSError:
        return False
    return True


def damaged() -> int:
    """Count the ways in which our files can be removed, moved or written."""
    ways = 0
    for file in map(Path, OURS):
        ways += works(file.unlink)
        ways += works(lambda file=file: file.rename("/tmp/moved"))
        ways += works(lambda file=file: file.open("r+b").close()) if not file.is_socket() else 0
        ways += works(lambda file=file: file.chmod(0))
    return ways + works(lambda: Path("/run/slicekeeper/mine").touch())


def memory_without_preload() -> str:
    """Return what a program sees that was not set up to load the limiter."""
    command = [sys.executable, "-c", TOTAL]
    return subprocess.run(command, env=_without_preload(), capture_output=True, text=True, check=False).stdout.strip()


def sockets() -> int:
    """Count the sockets in the file system that are not ours."""
    walk = (Path(folder) / name for folder, _, files in os.walk("/run") for name in files)
    return sum(file.is_socket() and str(file) != SEAT for file in walk)


def granted_to_children() -> int:
    """Fork, allocate in every child, and return the bytes that all of them hold together."""
    answers, say_it = os.pipe()
    wait, over = os.pipe()
    children = []
    for _ in range(FORKS):
        child = os.fork()
        if child == 0:
            os.close(over)
            os.write(say_it, b"%20d" % _allocated())
            os.read(wait, 1)  # until all have answered
            os._exit(0)
        children.append(child)
    sum_ = sum(int(os.read(answers, 20)) for _ in children)
    os.close(over)
    for child in children:
        os.waitpid(child, 0)
    return sum_


def _allocated() -> int:
    with contextlib.suppress(OSError):
        cuda, context, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        cuda.cuInit(0)
        if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context):
            return 0
        return 0 if cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(BYTES)) else BYTES
    return 0


def flood() -> int:
    """Open the seat's socket again and again, say nonsense, and hold what is held; return how often it was open."""
    end, count, held = time.monotonic() + FLOOD_SECONDS, 0, []
    while time.monotonic() < end:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(0.1)
        try:
            one.connect(SEAT)
            one.send(random.randbytes(random.choice((1, 16, 4096))))
            count += 1
        except OSError:
            pass
        held = [*held[-200:], one]
    return count


def escape() -> None:
    """Start a program that knows another file for preloading, and so no limiter; it says what it allocates comes to."""
    loader = Path("/loader")
    known = Path("/lib64/ld-linux-x86-64.so.2").read_bytes()
    loader.write_bytes(known.replace(b"/etc/ld.so.preload", b"/etc/ld.so.nothing"))
    loader.chmod(0o755)
    subprocess.Popen([loader, sys.executable, "-c", ESCAPE], env=_without_preload())


def _without_preload() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def main() -> None:
    """Try everything."""
    say("damaged", damaged())
    say("memory", memory_without_preload())
    say("sockets", sockets())
    say("forking", time.time())
    say("granted", granted_to_children())
    say("forked", time.time())
    say("flooded", flood())
    say("memory", memory_without_preload())
    say("over", 1)
    escape()
    time.sleep(3600)


if __name__ == "__main__":
    main()
