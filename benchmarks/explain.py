"""What looking inside costs: time of a captured forward, memory of a rollout, time of every method.

Time is a ratio to a plain forward of the same model, taken in turns, so that what else the machine
does hits both. Memory is the peak of a process of its own that builds the model and rolls it out.

    python -m benchmarks.explain [--rounds N] [--threads N] [--only capture|memory|methods]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from vitrail import capture, create
from vitrail.explanation.methods import METHODS, explain_tensor

GOAL_TIME, GOAL_MEMORY = 1.25, 2.0  # of a plain forward, GB
LARGE, SIDE = "vit_l_16", 384


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="times that each is run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        print(roll_out_large())
        return
    print(f"torch {torch.__version__}, {arguments.threads} threads, {arguments.rounds} rounds\n")
    for name in [arguments.only] if arguments.only else PARTS:
        PARTS[name](arguments)
        print()


def time_capture(arguments: argparse.Namespace) -> None:
    model, images = create("vit_b_16").eval(), torch.randn(8, 3, 224, 224)

    def captured(**how: str) -> Callable[[], object]:
        def run() -> object:
            with capture(model, **how) as maps:  # type: ignore[call-overload]
                model(images)
            return maps

        return run

    with torch.no_grad():
        runs = {
            "plain forward": lambda: model(images),
            "all maps, all heads": captured(),
            "all maps, heads fused": captured(reduce="mean"),
            "one layer": captured(where="blocks.11.*"),
        }
        seconds = in_turns(runs, arguments.rounds)
    print(f"vit_b_16, batch 8, 224 pixels                ratio (goal <= {GOAL_TIME})")
    show(seconds)


def peak_memory(arguments: argparse.Namespace) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.explain",
        "--peak",
        "--threads",
        str(arguments.threads),
    ]
    whole, before = map(
        float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    print(f"rollout of {LARGE} at {SIDE} pixels: peak {whole:.2f} GB (goal < {GOAL_MEMORY}), of")
    print(f"which {before:.2f} GB were there before the rollout: torch and the weights")


def roll_out_large() -> str:
    """Peak of this process in GB after a rollout, and what it had before."""
    model = create(LARGE, image_size=SIDE).eval()
    before = resident("VmRSS")
    explain_tensor(model, torch.randn(1, 3, SIDE, SIDE), "rollout")
    return f"{resident('VmHWM'):.3f} {before:.3f}"


def resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024 / 1e9


def time_methods(arguments: argparse.Namespace) -> None:
    for name in ("vit_b_16", "swin_t", "mobilevit_s"):
        model = create(name, num_classes=10).eval()
        images = torch.randn(1, 3, *model.config.image_size)
        target = torch.tensor([3])

        def by(method: str) -> Callable[[], object]:
            return lambda: explain_tensor(model, images, method, target=target)  # noqa: B023

        runs = {"plain forward": lambda: forward(model, images)}  # noqa: B023
        runs |= {method: by(method) for method in METHODS}
        print(f"{name}, one image                             ratio")
        show(in_turns(runs, max(arguments.rounds // 2, 1)))


@torch.no_grad()
def forward(model: torch.nn.Module, images: torch.Tensor) -> object:
    return model(images)


def in_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in every round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def show(seconds: dict[str, list[float]]) -> None:
    plain = seconds["plain forward"]
    for name, values in seconds.items():
        ratio = median(one / other for one, other in zip(values, plain, strict=True))
        print(f"  {name:24} {median(values) * 1000:9.1f} ms  {ratio:6.2f}x")


PARTS = {"capture": time_capture, "memory": peak_memory, "methods": time_methods}

if __name__ == "__main__":
    main()
