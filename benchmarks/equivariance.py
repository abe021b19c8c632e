"""Inductive bias after training: small models of every family, trained on the same photos, and how
far their tokens and logits move when an image is shifted (docs/compare/equivariance.png).

    python -m benchmarks.equivariance ../shared/golden/flowers --out runs/equivariance
    python -m benchmarks.equivariance PHOTOS --only "ViT" --out runs/equivariance    # train one

Photos are class folders with train and val. Models read images of 128 pixels when they are trained
and of 224 when they are measured, where maps of stride 32 have seven cells a side. A model that is
trained in OUT is not trained again; the figure is drawn once all are there.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import vitrail

TRAINED_AT, MEASURED_AT = 128, 224
WIDE: dict[str, Any] = {"dim": 96, "depth": 4, "heads": 3, "mlp_dim": 192}
WINDOWS: dict[str, Any] = {"dim": 24, "depths": (2, 2), "heads": (2, 4), "window_size": 4}
MOBILE: dict[str, Any] = {
    "stem": 8, "widths": (8, 12, 16, 24, 32), "dims": (24, 32, 48), "depths": (1, 1, 1),
}  # fmt: skip
# what is learnt depends on the seed and the steps as well: all have the same
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit_ti_16", WIDE),
    "hybrid ViT": (
        "vit_ti_16",
        {**WIDE, "stem": {"blocks": (1, 1), "width": 16, "groups": 8}, "patch_size": 2},
    ),
    "BEiT": ("beit_b_16", WIDE),
    "Swin": ("swin_t", WINDOWS),
    "Swin V2": ("swinv2_t", WINDOWS),
    "MobileViT": ("mobilevit_xxs", {**MOBILE, "heads": 4, "last": 96}),
    "MobileViT V2": ("mobilevitv2_050", MOBILE),
    "CoAtNet": (
        "coatnet_0",
        {"stem": (8, 16), "dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1), "dim_head": 16},
    ),
    "ResNet": ("resnet18", {"width": 12, "depths": (1, 1, 1)}),
    "BiT": ("bit_r50x1", {"width": 16, "groups": 8, "depths": (1, 1, 1)}),
    "MobileNetV2": (
        "mobilenet_v2",
        {"stem": 8, "widths": (8, 12, 16, 24, 32, 48, 64), "depths": (1, 1, 1, 1, 1, 1, 1),
         "last": 128, "expand": 3.0},
    ),
}  # fmt: skip


def train(name: str, photos: Path, out: Path, steps: int) -> None:
    model, fields = MODELS[name]
    run = vitrail.train(
        photos,
        out=out / name,
        model=model,
        recipe="small",
        steps=steps,
        batch_size=16,
        lr=0.002,
        image_size=TRAINED_AT,
        threads=1,
        set={
            "optimiser.name": "adamw",
            "schedule.warmup": steps // 10,
            "monitor.eval_every_epochs": 1e6,
            "monitor.examine_data": False,
            **{f"fields.{field}": value for field, value in fields.items()},
        },
    )
    print(
        f"{name}: accuracy {100 * (run.score or 0):.1f} % on val after {run.step} steps", flush=True
    )


def draw(photos: Path, out: Path, to: Path) -> None:
    models = {name: vitrail.load(out / name / "last", image_size=MEASURED_AT) for name in MODELS}
    vitrail.figures(models, photos, what="equivariance", out=out / "figures", overwrite=True)
    shutil.copyfile(out / "figures" / "equivariance.png", to)
    print(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/equivariance"))
    parser.add_argument("--to", type=Path, default=Path("docs/compare/equivariance.png"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    given = parser.parse_args()
    for name in given.only:
        if not (given.out / name / "last").exists():
            train(name, given.photos, given.out, given.steps)
    if all((given.out / name / "last").exists() for name in MODELS):
        draw(given.photos, given.out, given.to)


if __name__ == "__main__":
    main()
