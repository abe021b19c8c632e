"""However many pictures there are, memory holds a few."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inference.photos import small_model, write_photos
from vitrail import save

# VmHWM and not ru_maxrss, which a child takes over from the process that started it
SCRIPT = """
import sys
from pathlib import Path
from vitrail.cli.app import main
code = main(sys.argv[1:])
print(code, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def peak(*words: str) -> int:
    """Kilobytes at the highest."""
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    code, kilobytes = done.stdout.splitlines()[-1].split()
    assert code == "0"
    return int(kilobytes)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own figures")
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_ten_times_the_pictures_take_no_more_memory(verb: str, tmp_path: Path) -> None:
    model = str(save(small_model(), tmp_path / "model"))
    real = write_photos(tmp_path / "real", 20, broken=(3,))
    peaks = {}
    for count in (2_000, 20_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            os.link(real[number % 20], folder / f"{number:06}.jpg")
        out = tmp_path / (f"{count}.jsonl" if verb == "predict" else f"{count}-embedded")
        peaks[count] = peak(verb, model, str(folder), "--out", str(out), "--threads", "2")
        if verb == "predict":
            assert len(out.read_text().splitlines()) == count
    assert peaks[20_000] < 1.5 * peaks[2_000]
    assert peaks[20_000] - peaks[2_000] < 64_000
