"""`mobile`: MobileViT against MobileNetV2, by accuracy for its parameters and by latency."""

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch

from vitrail.evaluation.findings import Finding
from vitrail.evaluation.intervals import t_interval
from vitrail.tasks.claims.accuracies import accuracy_bars, accuracy_table, ahead
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.compare_plan import ModelChoice
from vitrail.tasks.threads import use_threads

SIDE = 64  # pixels: both shrink the map by 32
MODELS = ("MobileViT", "MobileNetV2")
ROUNDS = 15


def models_of(setting: Setting) -> list[ModelChoice]:
    """Both at a fraction of their widths; MobileNetV2 has more parameters."""
    shared = {"image_size": SIDE, "channels": setting.channels}
    part = setting.scale.dim / 128
    vit = {
        "stem": 8,
        "widths": [multiple(part * width) for width in (16, 24, 48, 64, 80)],
        "dims": [multiple(part * width) for width in (64, 80, 96)],
        "depths": [1, 2, 1],
        "last": multiple(part * 320),
        "expand": 2.0,
    }
    net = {
        "stem": 8,
        "widths": [multiple(part * width) for width in (16, 24, 32, 64, 96, 160, 320)],
        "depths": [1, 2, 2, 2, 2, 2, 1],
        "last": multiple(part * 640),
    }
    return [
        ModelChoice(name=MODELS[0], model="mobilevit_xxs", fields=shared | vit),
        ModelChoice(name=MODELS[1], model="mobilenet_v2", fields=shared | net),
    ]


def multiple(width: float, of: int = 4) -> int:
    """
    >>> multiple(12), multiple(9.9), multiple(1)
    (12, 8, 4)
    """
    return max(int(width + of / 2) // of * of, of)


def stages(setting: Setting) -> Sequence[Stage]:
    return [setting.plan(models_of(setting))]


def judge(lab: Lab) -> Evidence:
    seconds = lab.once("latency", lambda: latencies(lab))
    vit, net = (lab.cells(name)[0] for name in MODELS)
    logs = np.log(np.array(seconds[MODELS[0]]) / np.array(seconds[MODELS[1]]))
    low, high = t_interval(logs.tolist()) or (-np.inf, np.inf)
    milliseconds = [(name, 1e3 * median(seconds[name])) for name in MODELS]
    return Evidence(
        findings=(
            Finding(
                sentence="MobileViT has no more parameters than MobileNetV2",
                estimate=vit.params / net.params,
                interval=(vit.params / net.params,) * 2,
                below=1.0 + 1e-9,
                how="ratio, counted",
            ),
            ahead(lab, *MODELS, "MobileViT is more accurate than MobileNetV2"),
            Finding(
                sentence="MobileViT takes longer for an image",
                estimate=float(np.exp(logs.mean())),
                interval=(float(np.exp(low)), float(np.exp(high))),
                above=1.0,
                how=f"ratio over {ROUNDS} rounds, PyTorch on one processor of this machine",
            ),
        ),
        tables=(
            accuracy_table(lab, MODELS),
            Table(
                title="Latency of one image",
                columns=("model", "#milliseconds"),
                rows=tuple(milliseconds),
            ),
        ),
        drawings=(accuracy_bars(lab, MODELS),),
    )


def latencies(lab: Lab) -> dict[str, list[float]]:
    """Seconds of one processor for one image, in rounds in which both models take turns."""
    models = {name: lab.load(lab.cells(name)[0].name) for name in MODELS}
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    for number in range(ROUNDS + 1):
        for name, model in models.items():
            image = torch.zeros(1, lab.setting.channels, SIDE, SIDE).to(next(model.parameters()))
            with use_threads(1):
                began = time.process_time()  # which other work does not lengthen
                model(image)
                spent = time.process_time() - began
            if number:  # the first round warms up
                found[name].append(spent)
    return found


CLAIM = Claim(
    name="mobile",
    sentence="With no more parameters MobileViT is more accurate than MobileNetV2, and slower.",
    citation=Citation(
        paper="MobileViT", arxiv="2110.02178", where="4.1, figure 6, and 4.3, table 3"
    ),
    minutes=(25, 250),
    stages=stages,
    judge=judge,
    caveat="The paper trains on ImageNet for 300 epochs and measures an iPhone 12; here both are "
    "about half as wide, and the latency is that of this machine's processor.",
)
