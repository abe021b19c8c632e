"""What tasks give to pages of comparisons, claims, probes and explanations, without a model."""

from base64 import b64decode
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from tests.pages.values import picture
from vitrail.core.passport import Preprocessing
from vitrail.evaluation.findings import HOW as CLAIM_HOW
from vitrail.evaluation.paired import HOW
from vitrail.explanation.auto_method import MethodChoice
from vitrail.explanation.curves import Curves
from vitrail.explanation.head_maps import QueryMaps
from vitrail.explanation.verdict import CURVE_SHARES, REMOVED_SHARES, MethodCheck, Verdict
from vitrail.tasks.claims.reproduction import WORDS
from vitrail.tasks.comparison import PairTest
from vitrail.tasks.explanation import ExplainRun, Explanation, Explanations, HeadDetails

DRAWINGS = ("lines", "bars", "grid")


def comparison_facts() -> dict[str, Any]:
    """Two models at two shares of the labels; a run is left, and one took much longer."""
    models, shares = ("ViT", "BiT"), (0.1, 1.0)
    cells = [
        {
            **{"name": f"{model}-{share:g}-seed0", "model": model, "labelled": round(500 * share)},
            **{"image_size": [28, 28], "steps": 20, "images_seen": 640, "flops": 3e9},
            **{"accuracy": 0.6, "interval": [0.5, 0.7], "seconds": 90.0 if share == 1 else 9.0},
        }
        for model in models
        for share in shares
    ]
    means = [
        {
            **{"model": model, "share": share, "labelled": round(500 * share), "params": 7930},
            **{"image_size": [28, 28], "seeds": [0, 1], "accuracy": 0.6, "interval": [0.5, 0.7]},
            **{"lowest": 0.55, "highest": 0.65, "flops": 3e9, "macs": 544256, "seconds": 9.5},
        }
        for model in models
        for share in shares
    ]
    settings = {
        **{"data": "photos", "shares": shares, "seeds": [0], "image_sizes": None, "steps": 20},
        "models": [
            {"name": "ViT", "model": "vit_ti_16", "start": "runs/a", "fields": {"dim": 16}},
            {"name": "BiT", "model": "bit_50", "start": None, "fields": {}},
        ],
    }
    return {
        **{"data": "photos", "split": "test", "test_images": 100, "settings": settings},
        **{"cells": cells, "means": means, "remaining": ["ViT-1-seed1"], "how": HOW},
        "tests": [{**asdict(one), "sentence": one.sentence} for one in pair_tests()],
        "machine": ["a processor, 2 threads"],
    }


def pair_tests() -> list[PairTest]:
    """A difference that may be chance, and one that is clear."""
    return [
        PairTest(
            first="ViT",
            second="BiT",
            share=share,
            image_size=(28, 28),
            seeds=(0,),
            difference=difference,
            interval=(-0.01, 0.07),
            p_value=p_value,
            p_holm=2 * p_value,
            mcnemar=(),
        )
        for share, difference, p_value in ((0.1, 0.03, 0.2), (1.0, -0.06, 1e-4))
    ]


def reproduction_facts() -> dict[str, Any]:
    """A claim with a finding of each kind, a table, and every kind of drawing."""
    kinds = [
        ("points", 0.03, [-0.04, 0.1], 0.0, None),
        ("number", 1.9, [1.8, None], 1.5, 2.5),
        ("pixels", 3.0, [2.0, 4.0], None, 5.0),
    ]
    findings = [
        {"sentence": "ViT", "estimate": value, "interval": ends, "above": low, "below": high}
        | {"unit": unit, "how": "t", "verdict": verdict}
        for (unit, value, ends, low, high), verdict in zip(kinds, WORDS, strict=True)
    ]
    drawing = {"title": "T", "note": "", "share": True, "log_x": False, "x_label": "x"}
    drawing |= {"lines": {"ViT": [[1, 0.5, 0.4, 0.6], [2, 0.6, 0.5, 0.7]]}, "grid": [[0.1, 0.2]]}
    run = {"name": "ViT-seed0", "seed": 0, "labelled": 500, "steps": 600, "image_size": [28, 28]}
    run |= {"accuracy": 0.7, "params": 7930, "macs": 544256, "seconds": 16.5}
    return {
        **{"claim": "hybrid", "sentence": "ViT", "caveat": "", "data": None, "how": CLAIM_HOW},
        "source": {"paper": "ViT", "arxiv": "2010.11929", "where": "4.4"},
        **{"verdict": "not shown at this scale", "in_words": WORDS["not shown at this scale"]},
        **{"findings": findings, "notes": [], "details": {}, "command": "vitrail reproduce hybrid"},
        **{"scale": {"name": "quick", "steps": 600}, "seconds": {"training": 16.5}},
        "tables": [{"title": "T", "columns": ["model", "~95 % interval"], "rows": [["a", [0, 1]]]}],
        "drawings": [drawing | {"kind": kind, "bars": {"a": 0.5}} for kind in DRAWINGS],
        **{"runs": [run], "machine": "a processor; 1 thread", "version": "1.0"},
    }


def probe_facts() -> dict[str, Any]:
    return {
        **{"model": "runs/a", "data": "photos", "classes": 10, "width": 64, "broken": []},
        **{"train": {"images": 500}, "test": {"split": "test", "images": 100}},
        "notes": ["3 of 10 classes have fewer than 10 training images"],
    }


def explanations() -> Explanations:
    """An image with the maps of two methods, of which one is no better than chance."""
    shares = torch.tensor(CURVE_SHARES)
    curves = Curves(shares, 1 - shares[None], shares[None])
    random = torch.full((9, 2, len(REMOVED_SHARES), 1), 0.5)
    numbers: dict[str, Any]
    numbers = {"images": 1, "score": 0.9, "deletion": 0.2, "insertion": 0.7, "orders": 9}
    verdicts = {
        "attribution": Verdict(
            **numbers, contrast=0.3, p_value=0.01, adjusted_p_value=0.02, correlation=0.1,
            head_correlation=0.3,
        ),
        "rollout": Verdict(
            **numbers, contrast=-0.1, p_value=0.5, adjusted_p_value=0.5, correlation=0.9,
            head_correlation=1.0, asks_about_class=False,
        ),
    }  # fmt: skip
    reason = "the head reads the class token, which only attention feeds"
    run = ExplainRun(
        model="runs/a",
        family="ViT",
        preprocessing=Preprocessing(size=(32, 32)),
        methods={name: {} for name in verdicts},
        auto=MethodChoice("attribution", reason),
        checks={name: MethodCheck(one, curves, random) for name, one in verdicts.items()},
        problems={"photos/b.jpg": "the file is empty"},
    )
    photo = b64decode(picture(0).partition(",")[2])
    levels = np.zeros((2, 5, 2, 2), np.uint8)
    one = Explanation(
        name="photos/a.jpg",
        label="cat",
        score=0.9,
        target="dog",
        target_score=0.1,
        maps={name: np.eye(2, dtype=np.float32) for name in verdicts},
        run=run,
        source=photo,
        heads=HeadDetails(photo, (2, 2), {"blocks.0": QueryMaps(levels, (1.0, 1.0))}),
    )
    return Explanations((one,), run)
