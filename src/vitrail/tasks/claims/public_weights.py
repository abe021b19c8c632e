"""Claims about public weights: their accuracy on the validation images of ImageNet-1k.

The data are the 50,000 validation images, in a folder for each of the 1,000 classes (n01440764, …:
sorted, they are the outputs of the models in order), or a folder whose `val` holds those.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vitrail.core.errors import UserError
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.evaluation.findings import Finding
from vitrail.evaluation.intervals import wilson_interval
from vitrail.inference.outputs import compute_outputs
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.threads import use_threads
from vitrail.weights.files import WEIGHTS, digest
from vitrail.weights.hub import HUB, located
from vitrail.weights.load import load

IMAGES = 50_000
TOLERANCE = 0.002  # of accuracy: decoders and resizers differ in the last digit


@dataclass(frozen=True, kw_only=True)
class PublicWeights:
    """Weights with an address and a published accuracy. The SHA-256 of their file is what the hub
    gives with it, or what its name ends with, unless `sha256` is given here."""

    name: str
    model: str
    address: str
    accuracy: float
    citation: Citation
    sha256: str | None = None
    images: int = IMAGES
    tolerance: float = TOLERANCE


def claim_of(weights: PublicWeights) -> Claim:
    """The claim that weights have their published accuracy."""
    points = 100 * weights.tolerance
    return Claim(
        name=weights.name,
        sentence=f"{weights.model} at {weights.address} has {100 * weights.accuracy:.3f} % top-1 "
        f"on ImageNet-1k, within {points:g} points.",
        citation=weights.citation,
        minutes=(120, 120),
        stages=no_stages,
        judge=partial(judge, weights),
        data=None,
        caveat="The published accuracy is that of timm's results-imagenet.csv.",
    )


def no_stages(setting: Setting) -> Sequence[Stage]:
    return []


def judge(weights: PublicWeights, lab: Lab) -> Evidence:
    """Evaluate the weights; of fewer images than all the accuracy has an interval."""
    found = lab.once("evaluation", lambda: evaluate_weights(weights, lab))
    right, images = found["right"], found["images"]
    accuracy = right / images
    interval = wilson_interval(right, images) if images < weights.images else (accuracy, accuracy)
    counted = f"of all {images:,} images"
    if images < weights.images:
        counted = f"Wilson's interval: {images:,} of {weights.images:,} images"
    return Evidence(
        findings=(
            Finding(
                sentence=f"the accuracy is {100 * weights.accuracy:.3f} %",
                estimate=accuracy,
                interval=interval,
                above=weights.accuracy - weights.tolerance,
                below=weights.accuracy + weights.tolerance,
                unit="share",
                how=counted,
            ),
        ),
        tables=(
            Table(
                title="Accuracy",
                columns=("weights", "%accuracy", "%published", "#images"),
                rows=((found["weights"], accuracy, weights.accuracy, images),),
            ),
        ),
        details={
            "address": weights.address,
            "sha256": found["sha256"],
            "published sha256": found["published_sha256"],
        },
    )


def evaluate_weights(weights: PublicWeights, lab: Lab) -> dict[str, object]:
    """How many images are right, and the digest of the file that was read."""
    source = validation_images(lab.setting.data)
    path = find_weights(weights, lab.setting.weights)
    file = weights_file(path)
    sha256, published = digest(file), weights.sha256 or published_sha256(file)
    if published is not None and not sha256.startswith(published):
        raise UserError(
            f"{path}: SHA-256 must be {published}, got {sha256}: download the weights again "
            f"from {weights.address}"
        )
    model = load(path, device=lab.place.device).eval()
    if model.config.num_classes != len(source.labels):
        raise UserError(
            f"{lab.setting.data}: must have the {model.config.num_classes:,} classes of the model, "
            f"one folder each, got {len(source.labels):,}"
        )
    with use_threads(lab.place.threads):
        outputs = compute_outputs(
            model,
            source,
            name=lab.setting.data,
            on_progress=lambda done, total: lab.on_progress("images", done, total),
        )
    right = int(np.count_nonzero(outputs.predicted == outputs.truth))
    given = lab.setting.weights or weights.address
    return {
        "right": right,
        "images": outputs.images,
        "sha256": sha256,
        "published_sha256": published or "none was published",
        "weights": given,
    }


def published_sha256(file: Path) -> str | None:
    """What a publisher says of a file: the hub's cache names large files after the SHA-256 that the
    hub has of them, and releases of PyTorch models end the file's name with its first digits.

    >>> published_sha256(Path("jx_vit_base_p16_224-80ecf9dd.pth"))
    '80ecf9dd'
    """
    blob = file.resolve().name
    if re.fullmatch("[0-9a-f]{64}", blob):
        return blob
    ending = re.fullmatch(".*-([0-9a-f]{8,64})", file.stem)
    return ending[1] if ending else None


def validation_images(data: str) -> Source:
    """The split val, else test, else all images."""
    parts = open_data(data, val_share=0).parts
    name = next((one for one in ("val", "test") if one in parts), next(iter(parts)))
    source = parts[name]
    if source.targets is None or source.targets.ndim == 2:
        raise UserError(f"{data}: must have one label an image: give a folder for each class")
    return source


def find_weights(weights: PublicWeights, given: str | None) -> Path:
    """The weights on this machine; brought here from the hub, unless a file is given."""
    if given is not None:
        if not Path(given).exists():
            raise UserError(f"weights: no such file: {given}")
        return Path(given)
    try:
        return located(weights.address)
    except UserError as error:
        if "pip install" in str(error):  # a package is missing, not the network
            raise
        name = weights.address.removeprefix(HUB)
        raise UserError(
            f"{weights.name} needs a network to fetch {weights.address}: run 'hf download {name}' "
            "where there is one, and give weights=FILE"
        ) from None


def weights_file(path: Path) -> Path:
    """The file that holds the tensors."""
    if path.is_file():
        return path
    found = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    if found is None:
        raise UserError(f"{path}: holds no weights, expected one of {', '.join(WEIGHTS)}")
    return found


VIT = Citation(paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="table 5")
PUBLIC = (
    PublicWeights(
        name="imagenet-vit-b-16",
        model="ViT-B/16",
        address="hf-hub:timm/vit_base_patch16_224.orig_in21k_ft_in1k",
        accuracy=0.81782,
        citation=VIT,
    ),
    PublicWeights(
        name="imagenet-swin-t",
        model="Swin-T",
        address="hf-hub:timm/swin_tiny_patch4_window7_224.ms_in1k",
        accuracy=0.81388,
        citation=Citation(paper="Swin Transformer", arxiv="2103.14030", where="table 1"),
    ),
    PublicWeights(
        name="imagenet-beit-b-16",
        model="BEiT-B/16",
        address="hf-hub:timm/beit_base_patch16_224.in22k_ft_in22k_in1k",
        accuracy=0.85238,
        citation=Citation(paper="BEiT", arxiv="2106.08254", where="3.1"),
    ),
    PublicWeights(
        name="imagenet-mobilevit-s",
        model="MobileViT-S",
        address="hf-hub:timm/mobilevit_s.cvnets_in1k",
        accuracy=0.78298,
        citation=Citation(paper="MobileViT", arxiv="2110.02178", where="4.1"),
    ),
    PublicWeights(
        name="imagenet-coatnet-0",
        model="CoAtNet-0 (timm's rw)",
        address="hf-hub:timm/coatnet_0_rw_224.sw_in1k",
        accuracy=0.82396,
        citation=Citation(paper="CoAtNet", arxiv="2106.04803", where="4.2"),
    ),
)
CLAIMS = tuple(claim_of(one) for one in PUBLIC)
