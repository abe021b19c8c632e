"""int8 and token merging: speed beside what it costs.

Speed: ViT-B/16 (or `--model`) in int8 beside timm and our float32, in turns in one process. Weights
are random, so the error is that of random logits on tiles of real photos.

    python -m benchmarks.int8 [--model vit_b_16] [--batches 1 8] [--merge 0 8 16] [--seconds S]

Pareto: a checkpoint that was trained here, float32 and int8 with r tokens merged in each block,
images a second against accuracy on images in class folders that played no part in calibration:

    python -m benchmarks.int8 --checkpoint runs/pets/best --data photos/test --out pareto.png
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.infer import MODELS, eager, lively
from vitrail import UserError, create, load
from vitrail.core.processor import processor
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.paths import list_images
from vitrail.data.preprocess import normalise
from vitrail.inference.benchmark.rounds import middle
from vitrail.inference.calibration import Samples, labels_of, read_calibration
from vitrail.inference.engines.runner import Plan, Runner
from vitrail.inference.engines.timing import time_in_turns
from vitrail.inference.graph import INPUT, to_onnx, trace
from vitrail.inference.int8_graph import run_graph
from vitrail.inference.quantise import compare_outputs, quantise
from vitrail.inference.rewrites.optimise import optimise
from vitrail.models.model import Model

TILES = 32
MOST_IMAGES = 2064  # of a checkpoint: 64 to calibrate, 2,000 to measure
Facts = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_b_16", help="an architecture")
    parser.add_argument("--changes", nargs="*", default=[], help="such as depth=2 image_size=64")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--merge", nargs="+", type=int, default=[0, 8, 16], help="r of each block")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=60, help="for each table")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not the clock")
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", help="class folders")
    parser.add_argument("--out", type=Path, default=Path("pareto.png"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of peers and exporters, about themselves
    torch.set_num_threads(options.threads)
    mend_torchvision()
    print(f"{processor().partition(':')[0]}, {options.threads} threads, torch {torch.__version__}")
    if options.checkpoint:
        model = load(options.checkpoint)
        samples = read_samples(model, options.data)
    else:
        changes = {
            name: int(value) for name, _, value in (one.partition("=") for one in options.changes)
        }
        torch.manual_seed(0)
        model = lively(create(options.model, **changes))
        samples = tiles(model)
    runners, facts = build(model, samples, options.merge, options.threads)
    if not options.checkpoint and not options.changes and options.model in MODELS:
        from timm import create_model

        runners["timm/eager"] = eager(create_model(MODELS[options.model].timm).eval())
    for batch in options.batches:
        speeds = time_all(runners, samples, batch, options)
        print_table(batch, speeds, facts)
    if options.checkpoint:
        draw(speeds, facts, options.out)


def read_samples(model: Model, data: str | None) -> Samples:
    names = list(list_images([data])) if data else []
    step = max(1, len(names) // MOST_IMAGES)
    names = names[::step][:MOST_IMAGES]
    labels = labels_of(model, names)
    if labels is None:
        raise UserError("--data must be class folders named after the model's labels")
    images = normalise(read_calibration(model, names), model.passport.preprocessing, reorder=False)
    return Samples(images, labels=labels)


def tiles(model: Model) -> Samples:
    """Parts of the two photos that come with scikit-learn, at the model's size."""
    from sklearn.datasets import load_sample_images

    height, width = model.config.image_size
    draw = np.random.default_rng(0)
    parts = []
    for number in range(TILES):
        photo = load_sample_images().images[number % 2]
        top, left = (int(draw.integers(0, side - 200)) for side in photo.shape[:2])
        part = torch.tensor(photo[top : top + 200, left : left + 200]).permute(2, 0, 1)[None]
        parts.append(torch.nn.functional.interpolate(part.float(), (height, width)))
    images = torch.cat(parts) / 127.5 - 1
    return Samples(images)


def build(
    model: Model, samples: Samples, merge: Sequence[int], threads: int
) -> tuple[dict[str, Runner], dict[str, Facts]]:
    """Runners of every setting, and what each one loses against the model itself."""
    _, test = samples.split()
    run_model = eager(model.eval())
    expected = np.concatenate([run_model(part) for part in test.images.split(8)])
    runners: dict[str, Runner] = {"ours/eager": run_model}
    facts = {"ours/eager": compare_outputs(expected, expected, test.labels, "one")}
    for r in merge:

        def to_graph(one: Model, r: int = r) -> Any:
            return to_onnx(trace(optimise(one, output="logits", r=r).model, output="logits"))

        protos = {"fp32": to_graph(model), "int8": quantise(model, samples, to_graph)[0]}
        for precision, proto in protos.items():
            name = f"ours/{precision}, r={r}"
            runners[name] = session(proto, threads)
            found = run_graph(proto, test.inputs)
            facts[name] = compare_outputs(expected, found, test.labels, "one")
    return runners, facts


def session(proto: Any, threads: int) -> Runner:
    import onnxruntime  # type: ignore[import-untyped]  # ships no types

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    opened = onnxruntime.InferenceSession(
        proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )

    def run(images: Tensor) -> NDArray[np.float32]:
        return np.asarray(opened.run(None, {INPUT: images.numpy()})[0])

    return run


def time_all(
    runners: dict[str, Runner], samples: Samples, batch: int, options: Any
) -> dict[str, tuple[float, float, float]]:
    images = samples.images[:batch].contiguous()
    plan = Plan("logits", tuple(images.shape), threads=options.threads)  # type: ignore[arg-type]
    clock = time.process_time if options.cpu_time else time.perf_counter
    times = time_in_turns(runners, plan, images, seconds=options.seconds, clock=clock)
    return {name: middle([batch / one for one in taken]) for name, taken in times.items()}


def print_table(
    batch: int, speeds: dict[str, tuple[float, float, float]], facts: dict[str, Facts]
) -> None:
    base = speeds.get("timm/eager", speeds["ours/eager"])[1]
    print(f"\nbatch {batch}: median and quartiles")
    print("\n| contender | images/s | quartiles | of eager | error | same label | accuracy |")
    print("|---|---|---|---|---|---|---|")
    for name, (low, speed, high) in sorted(speeds.items(), key=lambda item: -item[1][1]):
        one = facts.get(name)
        cells = "– | – | –"
        if one is not None:
            right = f"{one['accuracy'][1]:.2%}" if one["accuracy"] else "–"
            cells = f"{one['error']:.1%} | {one['agreement']:.1%} | {right}"
        print(f"| {name} | {speed:.2f} | {low:.2f}–{high:.2f} | {speed / base:.2f} | {cells} |")


def draw(speeds: dict[str, tuple[float, float, float]], facts: dict[str, Facts], out: Path) -> None:
    """Accuracy against speed, a line for each precision."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for precision in ("eager", "fp32", "int8"):
        names = [name for name in facts if name.startswith(f"ours/{precision}")]
        places = sorted((speeds[name][1], 100 * facts[name]["accuracy"][1], name) for name in names)
        axes.plot([x for x, _, _ in places], [y for _, y, _ in places], "o-", label=precision)
        for x, y, name in places:
            axes.annotate(name.partition(", ")[2], (x, y), fontsize=8)
    axes.set(xlabel="images per second", ylabel="accuracy (%)")
    axes.legend()
    figure.savefig(out, dpi=150)
    print(f"\n{out}")


if __name__ == "__main__":
    main()
