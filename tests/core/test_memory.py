"""The peak memory of a process is its own."""

import subprocess
import sys

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
