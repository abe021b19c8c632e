"""The service under load, on loopback: speed beside the bare engine and LitServe, every answer
checked, overload, ends by SIGTERM, and kills of its processes.

Everything shares this machine's processors: service, clients and, in their turns, the others. All
compute with the same threads, images and model. The bare engine reads the same bytes in one
process, without HTTP, at the better of two batch sizes. LitServe runs twice: as its users write it
(timm's model of the same architecture in eager PyTorch, with timm's transform), and with the
decoder, preparation and engine of the service. Services have the better of two settings, tried
beforehand: one process with all threads, or a process for each.

    python -m benchmarks.serve [--seconds N] [--rounds N] [--terms N] [--kills N] [--model NAME]
        [--engine NAME] [--threads N] [--only speed|answers|overload|terms|kills]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from benchmarks.load.http import json_request, predict_request
from benchmarks.load.photos import known_answers, photos, write_model, write_small_model
from benchmarks.load.processes import free_port, peer, service
from benchmarks.load.scenarios import (
    Load,
    check_answers,
    end_under_load,
    kill_workers,
    measure,
    overload,
)

PHOTOS = 64
CLIENTS, CHECKING = 32, 64
OVERLOAD = 10
GOALS = {"bare": 0.9, "LitServe": 1.3}
TIMM = {
    "vit_ti_16": "vit_tiny_patch16_224",
    "vit_s_16": "vit_small_patch16_224",
    "vit_b_16": "vit_base_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "mobilevit_s": "mobilevit_s",
}
Setting = tuple[int, int]  # processes, and threads of each
Side = Callable[[Setting, float], Load]
SCENARIOS = ("speed", "answers", "overload", "terms", "kills")


def main() -> None:
    """Print Markdown for docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of checked load")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison, in turns")
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", default="vit_s_16", choices=list(TIMM))
    parser.add_argument("--engine", default="auto", help="auto: what the service chooses")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=SCENARIOS, action="append")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="vitrail-serve-") as folder:
        bench = Bench(Path(folder), given)
        for name in given.only or SCENARIOS:
            getattr(bench, name)()
            print(flush=True)


class Bench:
    """Models, photos and options that the parts share."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.given = folder, given
        self.small = write_small_model(folder)
        self._large: Path | None = None
        (folder / "photos").mkdir()
        self.photos = photos(PHOTOS)
        for number, one in enumerate(self.photos):
            (folder / "photos" / f"{number:03}.jpg").write_bytes(one)

    @property
    def large(self) -> Path:
        if self._large is None:
            self._large = write_model(self.folder, self.given.model)
        return self._large

    def serve_options(self, *more: str, threads: int | None = None) -> list[str]:
        return [
            f"model={self.large}",
            f"--threads={threads or self.given.threads}",
            "--window=0",  # every image is computed
            *more,
        ]

    # Speed

    @cached_property
    def engine(self) -> str:
        """The engine by its name: "auto" means what the service chose for this model."""
        if self.given.engine != "auto":
            return str(self.given.engine)
        with (
            service(*self.serve_options()) as running,
            urlopen(f"{running.url}/v1/models") as response,
        ):
            return str(json.load(response)["models"][0]["engine"])

    def speed(self) -> None:
        seconds = min(self.given.seconds, 15.0)
        same = ["--model", str(self.large), "--engine", self.engine]
        sides: dict[str, Side] = {
            "vitrail serve": self.time_ours,
            "LitServe, timm in eager PyTorch": partial(
                self.time_litserve, ["--timm", TIMM[self.given.model]]
            ),
            "LitServe, the same engine": partial(self.time_litserve, same),
        }
        settings = {name: self.choose_setting(name, side) for name, side in sides.items()}
        bare, loads = list[dict[str, float]](), {name: list[Load]() for name in sides}
        for turn in range(self.given.rounds):
            note(f"round {turn + 1} of {self.given.rounds}")
            bare.append(self.time_bare(seconds))
            for name, side in sides.items():
                loads[name].append(side(settings[name], seconds))
        print(
            f"{self.given.model}, {self.engine}, {self.given.threads} threads, {CLIENTS} "
            f"clients, {len(self.photos)} photos of {len(self.photos[0]) // 1024} kB, "
            f"{self.given.rounds} rounds of {seconds:g} s\n"
        )
        print("| | images/s | CPU ms an image | p50 ms | p99 ms | errors |")
        print("|---|---|---|---|---|---|")
        speed, cpu = (median(one[key] for one in bare) for key in ("speed", "cpu_ms"))
        print(f"| bare engine, no HTTP | {speed:.1f} | {cpu:.1f} | | | |")
        for name, (workers, threads) in settings.items():
            print(load_row(f"{name} ({workers} x {threads} threads)", loads[name]))
        ours = loads.pop("vitrail serve")
        fast, late = (median(values) for values in zip(*map(facts_of, ours), strict=True))
        print(f"\nas fast as the bare engine: {fast / speed:.2f}x (goal {GOALS['bare']}x)")
        for name, found in loads.items():
            other, other_late = (median(v) for v in zip(*map(facts_of, found), strict=True))
            print(
                f"as fast as {name}: {fast / other:.2f}x (goal {GOALS['LitServe']}x), "
                f"p99 {late / other_late:.2f} of its (goal at most 1)"
            )

    def choose_setting(self, name: str, side: Side) -> Setting:
        """Processes and threads of each that are faster."""
        threads = self.given.threads
        settings = list(dict.fromkeys([(1, threads), (threads, 1)]))
        found = {one: side(one, 4.0).speed for one in settings}
        note(f"{name}: {found}")
        return max(found, key=lambda one: found[one])

    def time_ours(self, setting: Setting, seconds: float) -> Load:
        workers, threads = setting
        options = self.serve_options(f"--workers={workers}", threads=threads)
        with service(*options, f"--engine={self.engine}") as running:
            requests = [predict_request([one]) for one in self.photos]
            return measure(running, requests, clients=CLIENTS, seconds=seconds)

    def time_bare(self, seconds: float) -> dict[str, float]:
        """Images a second of the engine alone, in a process of its own, and its computing time."""
        command = [
            sys.executable, "-m", "benchmarks.load.bare", str(self.large),
            str(self.folder / "photos"), "--engine", self.engine,
            "--threads", str(self.given.threads), "--seconds", str(seconds),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def time_litserve(self, what: list[str], setting: Setting, seconds: float) -> Load:
        workers, threads = setting
        options = [*what, "--workers", str(workers), "--threads", str(threads)]
        port = free_port()
        with peer("benchmarks.load.litserve_peer", port, "/health", *options) as running:
            requests = [json_request(one) for one in self.photos]
            return measure(running, requests, clients=CLIENTS, seconds=seconds)

    # Answers

    def answers(self) -> None:
        known = known_answers(self.small, 1000)
        with service(f"small={self.small}", "--engine=eager", "--queue=1024") as running:
            load = check_answers(running.url, known, clients=CHECKING, seconds=self.given.seconds)
        print(
            f"{CHECKING} clients for {load.seconds:.0f} s, 1 to 4 of {len(known.images)} images a "
            f"request: {load.requests:,} requests, {load.images:,} answers checked, "
            f"{len(load.lost)} lost, {load.unasked_bytes} bytes that nobody asked for, "
            f"{load.mixed_up} mixed up, {load.inexact} inexact; {statuses(load)}; "
            f"p50 {load.percentile(50):.0f} ms, p99 {load.percentile(99):.0f} ms"
        )

    # Overload

    def overload(self) -> None:
        requests = [predict_request([one]) for one in self.photos]
        seconds = min(self.given.seconds, 30.0)
        with service(*self.serve_options("--queue=64", f"--engine={self.engine}")) as running:
            capacity = measure(running, requests, clients=CLIENTS, seconds=5.0).speed
            load = overload(running, requests, capacity=capacity, times=OVERLOAD, seconds=seconds)
        print(
            f"{OVERLOAD} times the {load.capacity:.0f} images/s that it can compute, for "
            f"{seconds:.0f} s: {statuses(load)}, {len(load.lost)} lost; computed "
            f"{load.images / load.seconds:.0f} images/s; a refusal takes p50 "
            f"{1000 * median(load.refused or [float('nan')]):.1f} ms, p99 "
            f"{load.refusal_p99:.1f} (goal 50); memory {load.memory[0] / 2**20:.0f} MiB at first, "
            f"{load.memory[-1] / 2**20:.0f} at the end, the last third {load.growth:.2f} times the "
            "second"
        )

    # Ends

    def terms(self) -> None:
        requests = [predict_request([one]) for one in known_answers(self.small, 64).images]
        lost, answered, codes, taken = 0, 0, set[int](), list[float]()
        for number in range(self.given.terms):
            with service(f"small={self.small}", "--engine=eager", "--window=0") as running:
                after = 0.3 + 0.1 * (number % 7)
                keep = number % 2 == 0
                load = end_under_load(running, requests, clients=16, after=after, keep=keep)
            lost += len(load.lost)
            answered += sum(load.statuses.values())
            codes.add(load.code)
            taken.append(load.end_seconds)
            note(f"SIGTERM {number + 1}: {statuses(load)}, lost {load.lost[:3]}")
        print(
            f"{self.given.terms} SIGTERMs under the load of 16 clients: {answered:,} requests "
            f"answered, {lost} accepted ones lost; exit codes {sorted(codes)}; it takes "
            f"{median(taken):.1f} s to end, at most {max(taken):.1f}"
        )

    # Kills

    def kills(self) -> None:
        requests = [predict_request([one]) for one in self.photos]
        with service(*self.serve_options(f"--engine={self.engine}")) as running:
            load = kill_workers(running, requests, kills=self.given.kills, clients=4, on_kill=count)
        print(
            f"{load.kills} kills of the process that computes ({self.given.model}, "
            f"{self.engine}), under the load of 4 clients: ready again after "
            f"{median(load.until_ready):.1f} s, at "
            f"most {max(load.until_ready):.1f} (goal 5); {statuses(load)}, {len(load.lost)} lost"
        )


def load_row(name: str, loads: Sequence[Load]) -> str:
    errors = sum(sum(one.statuses.values()) - one.statuses[200] + len(one.lost) for one in loads)
    speed = median(one.speed for one in loads)
    p50, p99 = (median(one.percentile(share) for one in loads) for share in (50, 99))
    cpu = median(one.cpu_ms for one in loads)
    return f"| {name} | {speed:.1f} | {cpu:.1f} | {p50:.0f} | {p99:.0f} | {errors} |"


def facts_of(load: Load) -> tuple[float, float]:
    return load.speed, load.percentile(99)


def statuses(load: Load) -> str:
    return ", ".join(
        f"{count:,} of status {status}" for status, count in sorted(load.statuses.items())
    )


def note(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def count(number: int) -> None:
    if (number + 1) % 10 == 0:
        note(f"{number + 1} kills")


if __name__ == "__main__":
    main()
