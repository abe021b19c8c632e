"""Eager PyTorch against eager PyTorch: our models and timm's, every family, in turns.

    python -m benchmarks.eager                             every family, batches of 1 and 8
    python -m benchmarks.eager --models swin_t --profile   operators of both sides, by CPU time

Both sides have random weights, the same image size, inference mode and float32. Each round calls
each side once; a table has the medians of all rounds with their quartiles, and the ratio
timm : ours (above 1: ours is faster). `--cpu-time` counts the processor's time of this process in
the place of the clock, for machines that are not quiet.
"""

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from vitrail import create
from vitrail.core.torchvision import mend_torchvision
from vitrail.inference.rewrites.optimise import optimise_for_eager

PAIRS = {
    "vit_b_16": "vit_base_patch16_224",
    "vit_s_16": "vit_small_patch16_224",
    "beit_b_16": "beit_base_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "swinv2_t": "swinv2_tiny_window8_256",
    "mobilevit_s": "mobilevit_s",
    "mobilevitv2_100": "mobilevitv2_100",
    "coatnet_0": "coatnet_0_224",
    "coatnet_0_rw": "coatnet_0_rw_224",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not the clock")
    parser.add_argument("--profile", action="store_true", help="print operators by self CPU time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(f"threads {options.threads}, rounds {options.rounds}, milliseconds, median (quartiles)\n")
    print("| model | batch | ours | timm | optimised | timm : ours | timm : optimised |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models:
        sides = contenders(name)
        for batch_size in options.batch_size:
            images = torch.rand(batch_size, 3, *create(name).config.image_size)
            times = take_turns(sides, images, rounds=options.rounds, clock=clock)
            print_row(name, batch_size, times)
            if options.profile:
                for side in ("ours", "timm"):
                    print_profile(side, sides[side], images)


def contenders(name: str) -> dict[str, nn.Module]:
    """Both sides, and ours after its rewrites."""
    mend_torchvision()
    import timm

    ours = create(name).eval()
    theirs = timm.create_model(PAIRS[name], pretrained=False).eval()
    return {"ours": ours, "timm": theirs, "optimised": optimise_for_eager(ours, output="logits")}


@torch.inference_mode()
def take_turns(
    sides: dict[str, nn.Module], images: Tensor, *, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of each side in each round, after two to warm up; every round begins with another."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    names = list(sides)
    for turn in range(-2, rounds):
        first = turn % len(names)
        for side in names[first:] + names[:first]:
            began = clock()
            sides[side](images)
            if turn >= 0:
                times[side].append(clock() - began)
    return times


def print_row(name: str, batch_size: int, times: dict[str, list[float]]) -> None:
    spread = {side: quantiles(taken, n=4) for side, taken in times.items()}
    cells = [
        f"{middle * 1e3:.1f} ({low * 1e3:.1f}-{high * 1e3:.1f})"
        for low, middle, high in spread.values()
    ]
    theirs = spread["timm"][1]
    ratios = [f"{theirs / spread[side][1]:.2f}" for side in ("ours", "optimised")]
    print(f"| {' | '.join([name, str(batch_size), *cells, *ratios])} |", flush=True)


@torch.inference_mode()
def print_profile(side: str, model: nn.Module, images: Tensor) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(5):
            model(images)
    table = profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=16)
    print(f"\n{side}\n{table}")


if __name__ == "__main__":
    main()
