"""`cost`: what an image costs by its pixels: Swin linear, ViT quadratic."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from vitrail.core.eval_mode import eval_mode
from vitrail.evaluation.findings import Finding, power_law
from vitrail.models.catalogue import build, change, find
from vitrail.models.config import Config
from vitrail.models.measure import measure
from vitrail.tasks.claims.claim import Citation, Claim, Drawing, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.threads import use_threads

SIDES = {"quick": (64, 96, 128, 192, 256), "full": (64, 128, 192, 256, 384, 512)}
LARGE = 3  # sizes that exponents of seconds are fitted to
ROUNDS, PASSES = 7, 3  # each round takes the quickest of so many passes
DIM, DEPTH, WINDOW = 32, 2, 8
DRAWN = {"Multiply-adds by pixels": 3, "Milliseconds by pixels": 4}  # columns of the table
EXPONENTS = {"Swin": 1.0, "ViT": 2.0}
COUNTED, TIMED = 0.1, 0.3  # how far an exponent may be from that
Rows = Sequence[Mapping[str, Any]]


def config_of(model: str, side: int) -> Config:
    """Two blocks of either kind of attention on patches of 4 pixels, equally wide."""
    shared: dict[str, Any] = {"image_size": (side, side), "patch_size": 4, "dim": DIM}
    if model == "ViT":
        own = {"depth": DEPTH, "heads": 2, "mlp_dim": 2 * DIM, "pool": "mean", "class_token": False}
        return change(find("vit_ti_16"), shared | own)
    own = {"depths": (DEPTH,), "heads": (2,), "window_size": WINDOW, "mlp_ratio": 2.0}
    return change(find("swin_t"), shared | own)


def stages(setting: Setting) -> Sequence[Stage]:
    return []  # nothing is trained: cost does not depend on weights


def judge(lab: Lab) -> Evidence:
    sides = SIDES.get(lab.setting.scale.name, SIDES["quick"][:LARGE])
    rows: Rows = lab.once("cost", lambda: measure_costs(sides))
    by_model = {name: [row for row in rows if row["model"] == name] for name in EXPONENTS}
    findings = [
        finding
        for name, exponent in EXPONENTS.items()
        for finding in growth(name, exponent, by_model[name])
    ]
    columns = ("model", "#pixels a side", "#tokens", "#multiply-adds", "#milliseconds")
    shown: list[tuple[Any, ...]] = [
        (row["model"], row["side"], row["tokens"], row["macs"], 1e3 * median(row["seconds"]))
        for row in rows
    ]
    return Evidence(
        findings=tuple(findings),
        tables=(Table(title="Cost of one image", columns=columns, rows=tuple(shown)),),
        drawings=tuple(draw(title, shown, place) for title, place in DRAWN.items()),
        notes=(
            f"seconds of one processor: {ROUNDS} rounds in which all models and sizes take turns, "
            f"each the quickest of {PASSES} passes of one image",
        ),
    )


def growth(name: str, exponent: float, rows: Rows) -> list[Finding]:
    """That multiply-adds and seconds grow with this power of the number of pixels."""
    pixels = [row["side"] ** 2 for row in rows]
    counted, ends = power_law(pixels[-2:], [row["macs"] for row in rows[-2:]])
    points = [(row["side"] ** 2, seconds) for row in rows[-LARGE:] for seconds in row["seconds"]]
    timed, timed_ends = power_law(*zip(*points, strict=True))
    where = f"the exponent is {exponent:g}"
    return [
        Finding(
            sentence=f"{name}, multiply-adds by pixels: {where} (within {COUNTED:g})",
            estimate=counted,
            interval=ends,
            above=exponent - COUNTED,
            below=exponent + COUNTED,
            how="counted, between the two largest images",
        ),
        Finding(
            sentence=f"{name}, seconds by pixels: {where} (within {TIMED:g})",
            estimate=timed,
            interval=timed_ends,
            above=exponent - TIMED,
            below=exponent + TIMED,
            how=f"least squares of logarithms over the {LARGE} largest images",
        ),
    ]


def measure_costs(sides: Sequence[int]) -> list[dict[str, Any]]:
    """Multiply-adds and seconds of one image, for each model and size."""
    configs = {(name, side): config_of(name, side) for name in EXPONENTS for side in sides}
    models = {key: build(config) for key, config in configs.items()}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in configs}
    for _ in range(ROUNDS):
        for key, model in models.items():
            image = torch.zeros(1, 3, key[1], key[1])
            with eval_mode(model), use_threads(1):
                seconds[key].append(min(time_pass(model, image) for _ in range(PASSES)))
    return [
        {
            "model": name,
            "side": side,
            "tokens": configs[name, side].tokens,
            "macs": measure(configs[name, side]).macs,
            "seconds": seconds[name, side],
        }
        for name, side in configs
    ]


def time_pass(model: torch.nn.Module, image: torch.Tensor) -> float:
    """Seconds of the processor, which other work on the machine does not lengthen."""
    began = time.process_time()
    model(image)
    return time.process_time() - began


def draw(title: str, rows: Sequence[tuple[Any, ...]], place: int) -> Drawing:
    """A line for each model over pixels; `place` is that of the column."""
    lines = {
        name: [[float(row[1] ** 2), float(row[place])] for row in rows if row[0] == name]
        for name in EXPONENTS
    }
    return Drawing(title=title, kind="lines", lines=lines, x_label="pixels", log_x=True)


CLAIM = Claim(
    name="cost",
    sentence="The cost of windowed attention grows linearly with the number of pixels, that of a "
    "ViT's global attention with their square.",
    citation=Citation(paper="Swin Transformer", arxiv="2103.14030", where="3.2, equations 1 and 2"),
    minutes=(1, 5),
    stages=stages,
    judge=judge,
    data="",
    caveat="Models are narrow (32 channels), so that attention and not the MLP decides the cost.",
)
