"""The engine alone: the same bytes to the same labels in one process, without HTTP.

python -m benchmarks.load.bare MODEL PHOTOS --engine eager --threads 2 --seconds 10
"""

import argparse
import json
import time
from pathlib import Path

from vitrail import load, predict
from vitrail.models.model import Model

BATCHES = (8, 32)  # tried; the better one counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    images = [path.read_bytes() for path in sorted(given.photos.iterdir())]
    model = load(given.model)
    tried = [
        time_engine(model, images, given.engine, given.threads, size, given.seconds)
        for size in BATCHES
    ]
    print(json.dumps(max(tried, key=lambda one: one["speed"])))


def time_engine(
    model: Model, images: list[bytes], engine: str, threads: int, size: int, seconds: float
) -> dict[str, float]:
    """Images a second, and milliseconds of computing for each."""

    def once() -> None:
        found = predict(model, images, engine=engine, threads=threads, batch_size=size)
        assert len(found) == len(images)

    once()  # builds what the engine needs
    done, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds / len(BATCHES):
        once()
        done += len(images)
    taken, computed = time.perf_counter() - start, time.process_time() - cpu
    return {"speed": done / taken, "cpu_ms": 1000 * computed / done, "batch_size": size}


if __name__ == "__main__":
    main()
