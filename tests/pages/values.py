"""Plain values such as tasks give to pages, made at random, with names that mean harm."""

from typing import Any

import numpy as np

from tests.pages.html import NASTY
from vitrail.pages.classification import Example, pick_rows
from vitrail.pages.thumbnails import data_uri
from vitrail.pages.training import Classified, RunFacts

WORDS = ("american_bulldog", "Abyssinian", "wheaten_terrier", "Egyptian Mau", "samoyed", NASTY)


def labels_of(classes: int) -> list[str]:
    return [f"{WORDS[place % len(WORDS)]} {place}" for place in range(classes)]


def confusion_of(classes: int, images: int, seed: int = 0) -> Any:
    """(K, K) counts: mostly right, mistakes between neighbours; the last class has no image."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, max(classes - 1, 1), images)
    wrong = random.random(images) < 0.25
    away = random.choice([-2, -1, 1, 2, 3], images, p=[0.1, 0.2, 0.5, 0.1, 0.1])
    predicted = np.where(wrong, (truth + away) % classes, truth)
    matrix = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(matrix, (truth, predicted), 1)
    return matrix, truth, predicted


def classes_of(labels: list[str], matrix: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for place, label in enumerate(labels):
        hits, truth, said = matrix[place, place], matrix[place].sum(), matrix[:, place].sum()
        precision = float(hits / said) if said else None
        recall = float(hits / truth) if truth else None
        f1 = 2 * float(hits) / float(truth + said) if truth + said else None
        rows.append(
            {"label": label, "images": int(truth), "precision": precision, "recall": recall}
            | {"f1": f1, "average_precision": f1, "marked": place == 1}
        )
    return rows


def picture(seed: int) -> str:
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return data_uri(small.repeat(24, axis=0).repeat(24, axis=1), side=96)


def examples_of(labels: list[str], truth: Any, predicted: Any, most: int) -> list[Example]:
    return [
        Example(
            picture(row),
            f"photos/train_set/{labels[truth[row]]}/IMG_{row}.jpg",
            [(labels[truth[row]], 0.21)],
            [(labels[predicted[row]], 0.68)],
            int(truth[row]),
            int(predicted[row]),
        )
        for row in pick_rows(truth, predicted, most)
    ]


def lines_of(steps: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    lines: list[dict[str, Any]] = []
    for place in range(1, steps + 1):
        loss = 3 * np.exp(-place / (15 + seed)) + 0.3 + 0.05 * random.normal()
        line = {"step": place * 25, "loss": float(loss), "lr": 1e-3 * place / steps}
        line |= {"grad_norm": float(1 + random.random()), "data_seconds": 0.2, "seconds": 4.0}
        line |= {"train_accuracy": float(1 - loss / 4)}
        if place % 6 == 0:
            line |= {"val_loss": float(loss + 0.2), "accuracy": float(0.95 - loss / 4)}
        lines.append(line)
    return lines


def evaluation_facts(classes: int, images: int) -> dict[str, Any]:
    matrix, _, _ = confusion_of(classes, images)
    bins = {
        "counts": [0, 2, 5, 9, 20, 25, 30, 50, 40, 30, 10, 60, 80, 90, 300],
        "confidence": [(place + 0.5) / 15 for place in range(15)],
        "accuracy": [max(place - 1, 0) / 15 for place in range(15)],
    }
    severity = {
        name: [0.8 - 0.05 * place - 0.1 * level for level in range(5)]
        for place, name in enumerate(("gaussian_noise", "fog", "jpeg_compression"))
    }
    return {
        "model": "runs/pets/best",
        "data": "photos",
        "split": "test",
        "images": images,
        "seed": 0,
        **{"accuracy": 0.81, "top5": 0.97, "f1": 0.78, "ece": 0.041, "nll": 0.72, "brier": 0.28},
        "intervals": {"accuracy": [0.78, 0.84], "nll": [0.7, 0.75]},
        "intervals_are": {"level": 0.95, "resamples": 1000, "how": "Wilson's interval"},
        "reliability": bins,
        "temperature": {
            **{"temperature": 1.31, "fitted_on": "val", "at_limit": False},
            **{"ece": 0.02, "nll": 0.69, "brier": 0.27, "reliability": bins},
        },
        "classes": classes_of(labels_of(classes), matrix),
        "confusion": matrix.tolist(),
        "corruptions": {
            **{"metric": "accuracy", "images": 50, "constants_for": 224, "clean": 0.8},
            **{"by_severity": severity, "mean": 0.5, "interval_of_mean": [0.45, 0.55]},
            **{"error_relative_to_clean": 2.5, "differs": ["frost is drawn, not photographed"]},
        },
        "resolutions": [
            {"size": "112", "metric": "accuracy", "value": 0.5, "interval": [0.4, 0.6]}
            | {"changes": ["positions resized"], "problem": None},
            {"size": "113", "metric": None, "value": None, "interval": None, "changes": []}
            | {"problem": f"113 is not a multiple of 16 {NASTY}"},
        ],
        "patch_sizes": [],
        "notes": [f"a note on {NASTY}"],
        "broken": {f"photos/{NASTY}.png": "the file is empty"},
    }


def run_facts(**changes: Any) -> RunFacts:
    values: dict[str, Any] = {
        "title": "a-run",
        "model": "ViT (custom), 145,893 parameters",
        "recipe": {
            **{"data": "photos", "model": "vit_ti_16", "epochs": 20, "reasons": ("few images",)},
            "optimiser": {"lr": 0.002, "betas": (0.9, 0.999), "clip": None},
        },
        "facts": {"best at step": "1,500 of 1,500", "images per second": "312"},
        "lines": lines_of(),
        "broken": {},
        "best_step": 1500,
    }
    return RunFacts(**values | changes)


def classified(classes: int, images: int, **changes: Any) -> Classified:
    matrix, truth, predicted = confusion_of(classes, images)
    labels = labels_of(classes)
    examples = examples_of(labels, truth, predicted, 60)
    values: dict[str, Any] = {
        "split": "val",
        "images": images,
        "wrong": int((truth != predicted).sum()),
        "multi_label": False,
        "scores": {"accuracy": float((truth == predicted).mean()), "top5": 0.97},
        "interval": (0.7, 0.8),
        "classes": classes_of(labels, matrix),
        "confusion": matrix.tolist(),
        "mistakes": [one for one in examples if one.truth != one.predicted][:24],
        "by_class": examples,
    }
    return Classified(**values | changes)


def doctor_facts(classes: int) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, str]]:
    """Facts, samples and thumbnails of a data set with every kind of trouble."""
    labels = labels_of(classes)

    def image(split: str, place: int) -> dict[str, Any]:
        label = labels[place % classes]
        name = f"photos/{split}/{label}/IMG_{place}.jpg"
        return {"split": split, "index": place, "name": name, "label": label}

    samples = [image("train", place) for place in range(min(classes * 4, 160))]
    leak = {"images": [image("train", 1), image("val", 1)], "likeness": 1.0}
    conflict = {"images": [image("train", 2), image("train", 3)], "likeness": 0.93}
    parts = [
        {
            **{"name": name, "images": count * classes, "broken": 1, "imbalance": 12.5},
            "classes": {label: count + place % 7 for place, label in enumerate(labels)},
            "empty": [NASTY],
        }
        for name, count in (("train", 20), ("val", 5))
    ]
    facts = {
        **{"source": "photos", "splits": parts, "examined": 90, "not_compared": 3},
        "broken": [{"image": image("train", 9), "reason": "the file is empty"}],
        **{"exact": [leak], "near": [conflict], "leaks": [leak], "conflicts": [conflict]},
        "leaked": {"val": 1},
        "sizes": {
            **{"smallest": (90, 80), "median": (300, 400), "largest": (900, 1200)},
            **{"frequent": {"375x500": 30, "300x400": 9}, "different": 112},
        },
        "modes": {"JPEG RGB": 120, "PNG L": 3},
        "colour": {
            **{"mean": (0.48, 0.45, 0.4), "std": (0.2, 0.2, 0.2), "grey": 2},
            "blank": [image("val", 8)],
        },
        "ignored": ("notes.txt", f"{NASTY}.docx"),
    }
    shown = [*samples, image("val", 1), image("val", 8)]
    return facts, samples, {one["name"]: picture(one["index"]) for one in shown}


def benchmark_values() -> tuple[dict[str, Any], list[str], list[list[str]]]:
    """Facts, headings and cells of a benchmark of two models on three engines; one row failed."""
    rows: list[dict[str, Any]] = [
        {
            "model": model,
            "engine": engine,
            "batch_size": size,
            "images_per_second": None if (engine, size) == ("compiled", 8) else 10.5 * place + size,
            "problem": "no compiler" if (engine, size) == ("compiled", 8) else None,
        }
        for size in (1, 8)
        for model in ("runs/pets/best", "vit_ti_32")
        for place, engine in enumerate(("eager", "compiled", "onnxruntime"), 1)
    ]
    titles = [
        "model",
        "engine",
        "batch",
        "images/s",
        "quartiles",
        "p50 ms",
        "p99 ms",
        "memory",
        "load s",
        "of peak",
    ]
    cells = [
        [
            *(row["model"], row["engine"], str(row["batch_size"])),
            *(f"{row['images_per_second']}", "57.95–66.11", "16.15", "38.76", "397 MiB"),
            *("0.24", "21.4%"),
        ]
        for row in rows
        if row["problem"] is None
    ]
    facts = {"rows": rows, "rounds": 5, "threads": 1, "peak": 27e9, "processor": "x", "data": None}
    return facts, titles, cells
