"""Memory of this process: its peak, and giving it back."""

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

M_MMAP_THRESHOLD = -3  # of mallopt(3)
STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """Bytes of memory that this process has had at most.

    Linux's `ru_maxrss` is not it: a process takes it over from the one that started it.

    >>> peak_memory() > 2**20
    True
    """
    try:
        return int(STATUS.read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def return_freed_memory() -> None:
    """Have glibc give freed blocks of a megabyte and more back to the system at once, from now on.
    By itself it raises that limit to 32 MB as blocks are freed, and then keeps what is drawn tensor
    by tensor, or gathered and freed block by block. Other C libraries have no such switch."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
