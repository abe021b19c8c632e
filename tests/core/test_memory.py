"""The peak memory of a process is its own, and what it frees goes back."""

import platform
import subprocess
import sys

import pytest

PRINT_PEAK = "from vitrail.core.memory import peak_memory; print(peak_memory())"
PARENT = f"""
import subprocess, sys
held = bytearray(b"1") * (300 * 2**20)
{PRINT_PEAK}
subprocess.run([sys.executable, "-c", {PRINT_PEAK!r}], check=True)
"""


def test_it_is_not_taken_over_from_the_process_that_started_it() -> None:
    command = [sys.executable, "-u", "-c", PARENT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parent, child = map(int, done.stdout.split())
    assert parent > 300 * 2**20
    assert child < parent - 250 * 2**20


# A freed block of 30 MB raises glibc's limit; then the last of many smaller ones holds the others.
FREED = """
import sys
from pathlib import Path
from vitrail.core.memory import return_freed_memory

def resident():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024

if "give" in sys.argv:
    return_freed_memory()
large = bytearray(b"1") * (30 * 2**20)
del large
before = resident()
blocks = [bytearray(b"1") * (8 * 2**20) for _ in range(20)]
del blocks[:-1]
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed")
def test_freed_memory_goes_back_to_the_system() -> None:
    kept, given = (
        int(subprocess.check_output([sys.executable, "-c", FREED, *words])) // 2**20
        for words in ([], ["give"])
    )
    assert kept > 100  # or this test would show nothing
    assert given < 20
