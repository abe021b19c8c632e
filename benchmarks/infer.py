"""Images a second of a model's forward pass on the CPU: ours on every engine beside the peers.

Every contender computes the same batch in turns in one process, with the same number of threads, so
that what else the machine does falls on all alike. The first round, which compiles, does not count,
nor does the first batch of each turn, which pays for what ran before.
Weights are random: they do not change the speed. "bare" engines run timm's model, exported as their
manuals say. The machine's own limit is a matrix product of 2048 x 2048 in the same rounds, by the
faster of PyTorch's library and NumPy's: medians are compared with its median, the fastest round of
a contender with the fastest product.

    python -m benchmarks.infer [--models vit_b_16 swin_t mobilevit_s] [--batches 1 8 32]
        [--contenders ours timm/eager …] [--threads N] [--seconds S] [--cpu-time]

prints a Markdown table for each model and batch: median and quartiles. A contender that fails has a
line with its reason. `--cpu-time` counts the processor's time of this process in place of the
clock, for machines that are not quiet: with one thread that is what a contender costs.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from vitrail import create
from vitrail.core.processor import processor
from vitrail.core.torchvision import mend_torchvision
from vitrail.inference.benchmark.rounds import middle
from vitrail.inference.engines.agreement import sample_images
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.catalogue import installed_engines
from vitrail.inference.engines.runner import Plan, Runner
from vitrail.inference.engines.timing import time_in_turns
from vitrail.layers.linear import multiply
from vitrail.models.measure import measure

LONG = 10**7  # images: for auto, a job that pays for every engine
LIMITS = ("torch.mm", "numpy.matmul", "oneDNN")
SIDE = 2048  # of square matrices
Build = Callable[["Course"], Runner]


@dataclass(frozen=True)
class Names:
    """What one architecture is called elsewhere; None where it is not there."""

    timm: str
    transformers: str
    torchvision: str | None


MODELS = {
    "vit_b_16": Names("vit_base_patch16_224", "ViT", "vit_b_16"),
    "swin_t": Names("swin_tiny_patch4_window7_224", "Swin", "swin_t"),
    "mobilevit_s": Names("mobilevit_s", "MobileViT", None),
}


@dataclass(frozen=True)
class Course:
    """One architecture with batches of one size."""

    model: str
    plan: Plan

    @property
    def images(self) -> Tensor:
        return sample_images(self.plan)


class NotThereError(Exception):
    """A contender that has no such architecture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contenders", nargs="+", help="names, or what they begin with")
    parser.add_argument("--seconds", type=float, default=60, help="for each table")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not the clock")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of peers and exporters, about themselves
    torch.set_num_threads(options.threads)
    mend_torchvision()
    print(f"{processor().partition(':')[0]}, {options.threads} threads, torch {torch.__version__}")
    for model in options.models:
        for batch in options.batches:
            config = create(model).config
            shape = (batch, config.channels, *config.image_size)
            course = Course(model, Plan("logits", shape, threads=options.threads))
            with threadpool_limits(options.threads, user_api="blas"):
                run(course, options)


def run(course: Course, options: argparse.Namespace) -> None:
    """One table."""
    chosen = options.contenders
    clock = time.process_time if options.cpu_time else time.perf_counter
    runners = matrix_products()
    failed = {}
    for name, build in contenders().items():
        if chosen and not any(name.startswith(one) for one in chosen):
            continue
        try:
            runner = build(course)
            runner(course.images)
            runners[name] = runner
        except NotThereError:
            continue
        except Exception as error:  # whatever a peer raises is its result
            failed[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    images, seconds = course.images, options.seconds
    times = time_in_turns(runners, course.plan, images, seconds=seconds, clock=clock)
    print_table(course, times, failed)


def matrix_products() -> dict[str, Runner]:
    one, other = torch.randn(2, SIDE, SIDE).unbind()
    of_torch: Runner = lambda images: np.asarray(torch.mm(one, other).numpy())  # noqa: E731
    of_numpy: Runner = lambda images: one.numpy() @ other.numpy()  # noqa: E731
    of_onednn: Runner = lambda images: np.asarray(multiply(one, other, None).numpy())  # noqa: E731
    return dict(zip(LIMITS, (of_torch, of_numpy, of_onednn), strict=True))


def print_table(course: Course, times: dict[str, list[float]], failed: dict[str, str]) -> None:
    batch = course.plan.shape[0]
    products = [times.pop(name) for name in LIMITS]
    peak = SIDE**3 / min(median(taken) for taken in products)
    fastest_peak = SIDE**3 / min(min(taken) for taken in products)
    speeds = {name: middle([batch / one for one in taken]) for name, taken in times.items()}
    peers = {name: speed[1] for name, speed in speeds.items() if not name.startswith("ours")}
    base = peers.get("timm/eager")
    macs = measure(create(course.model).config).macs
    rounds = len(next(iter(times.values()), ()))
    print(f"\n{course.model}, batch {batch}: median and quartiles of {rounds} rounds")
    print(
        "\n| contender | images/s | quartiles | of timm eager | of products | fastest of fastest |"
    )
    print("|---|---|---|---|---|---|")
    for name, (low, speed, high) in sorted(speeds.items(), key=lambda item: -item[1][1]):
        ratio = f"{speed / base:.2f}" if base else "–"
        share, fastest = speed * macs / peak, batch / min(times[name]) * macs / fastest_peak
        print(
            f"| {name} | {speed:.2f} | {low:.2f}–{high:.2f} | {ratio} | {share:.2f} "
            f"| {fastest:.2f} |"
        )
    for name, reason in failed.items():
        print(f"| {name} | failed: {reason} | | | | |")
    if peers and "ours/auto" in speeds:
        best = max(peers, key=lambda name: peers[name])
        to_best = speeds["ours/auto"][1] / peers[best]
        print(f"\nours/auto is {to_best:.2f} of the best peer, {best}", flush=True)


# Contenders


def contenders() -> dict[str, Build]:
    return {
        **{f"ours/{engine}": ours(engine) for engine in [*installed_engines(), "auto"]},
        "timm/eager": lambda course: eager(timm(course)),
        "timm/compiled": lambda course: compiled(timm(course), freezing=False),
        "timm/frozen": lambda course: compiled(timm(course), freezing=True),
        "transformers": lambda course: eager(transformers(course)),
        "torchvision": lambda course: eager(torchvision(course)),
        "vit-pytorch": lambda course: eager(vit_pytorch(course)),
        "bare/onnxruntime": bare_onnxruntime,
        "bare/openvino": bare_openvino,
    }


def ours(engine: str) -> Build:
    def build(course: Course) -> Runner:
        torch.manual_seed(0)
        model = lively(create(course.model))
        return open_runner(model, course.plan, engine, images=LONG).run

    return build


def lively(module: Any) -> Any:
    """Values for a fresh head of zeros, which engines could leave out."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return module.eval()


def eager(module: nn.Module) -> Runner:
    @torch.inference_mode()
    def run_module(images: Tensor) -> NDArray[np.float32]:
        found: Any = module(images)
        return np.asarray((found if isinstance(found, Tensor) else found.logits).numpy())

    return run_module


def compiled(module: nn.Module, *, freezing: bool) -> Runner:
    fast: Any = torch.compile(module)

    def run_module(images: Tensor) -> NDArray[np.float32]:
        with torch.no_grad(), torch._inductor.config.patch(freezing=freezing):
            return np.asarray(fast(images).numpy())

    return run_module


def timm(course: Course) -> nn.Module:
    from timm import create_model

    module: nn.Module = create_model(MODELS[course.model].timm, pretrained=False)
    return module.eval()


def transformers(course: Course) -> nn.Module:
    import transformers as peer

    kind = MODELS[course.model].transformers
    config = getattr(peer, f"{kind}Config")(num_labels=1000)
    module: nn.Module = getattr(peer, f"{kind}ForImageClassification")(config)
    return module.eval()


def torchvision(course: Course) -> nn.Module:
    from torchvision import models

    name = MODELS[course.model].torchvision
    if name is None:
        raise NotThereError
    module: nn.Module = models.get_model(name, weights=None)
    return module.eval()


def vit_pytorch(course: Course) -> nn.Module:
    if course.model != "vit_b_16":
        raise NotThereError
    from vit_pytorch import ViT

    sizes = {"dim": 768, "depth": 12, "heads": 12, "mlp_dim": 3072}
    module: nn.Module = ViT(image_size=224, patch_size=16, num_classes=1000, **sizes)
    return module.eval()


@lru_cache(maxsize=1)
def onnx_of_timm(course: Course) -> Any:
    """For both bare engines: exporting takes longer than anything else here."""
    program = torch.onnx.export(timm(course), (course.images,), dynamo=True, verbose=False)
    assert program is not None
    return program


def bare_onnxruntime(course: Course) -> Runner:
    import onnxruntime  # type: ignore[import-untyped]  # ships no types

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = course.plan.threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_of_timm(course).save(path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: np.asarray(session.run(None, {name: images.numpy()})[0])


def bare_openvino(course: Course) -> Runner:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_of_timm(course).save(path)
        settings = {
            "INFERENCE_NUM_THREADS": course.plan.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16 where the processor has it
        }
        network = openvino.Core().compile_model(path, "CPU", settings)
    return lambda images: np.array(network(images.numpy())[0])


if __name__ == "__main__":
    main()
