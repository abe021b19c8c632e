"""Which processor this is: what decides which compiled code runs, and runs fast, here."""

import platform
import re
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor() -> str:
    """The model of the CPU and its instruction sets, as one line.

    >>> processor().startswith(platform.machine())
    True
    """
    return describe(read_cpuinfo())


def is_amd() -> bool:
    """Whether AMD made this processor."""
    return "AuthenticAMD" in read_cpuinfo()


def read_cpuinfo() -> str:
    """What Linux knows of the processor; elsewhere its name, on Windows with its vendor."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return text or f"model name : {platform.processor()}"


def describe(cpuinfo: str) -> str:
    """
    >>> describe("model name : A CPU\\nflags : sse avx2\\n").endswith("A CPU: avx2 sse")
    True
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        fields.setdefault(name, value)  # the first core stands for all
    name = next((fields[key] for key in ("model name", "CPU part", "cpu") if key in fields), "")
    numbers = [fields[key] for key in ("cpu family", "model", "stepping") if key in fields]
    flags = sorted(re.split(r"\s+", fields.get("flags") or fields.get("Features") or ""))
    return f"{platform.machine()} {' '.join([name, *numbers])}: {' '.join(flags)}"
