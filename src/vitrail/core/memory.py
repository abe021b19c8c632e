"""Peak memory of this process."""

import resource
import sys
from pathlib import Path

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
