"""An exported file in the place of a model: evaluation, prediction and embedding take either."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.data.preprocess import denormalise
from vitrail.inference.exported_file import open_exported
from vitrail.models.catalogue import find_family
from vitrail.models.model import Model

NO_FEATURES = " has no features output: export the model again with features=True"


class ExportedModel(Model):
    """images (B, C, H, W), preprocessed as ever -> logits, or features where the file has them. It
    has no weights to train or to look into; `digest` is that of its file. `threads` compute all
    calls together, unless told otherwise as many as there are processors."""

    digest: Tensor

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        super().__init__()
        self.file = open_exported(path, threads=threads)
        known = self.file.metadata()
        family = find_family(known.passport.family)
        self.config = validate(family.config, known.passport.config, where=str(path))
        self.passport, self.graph = known.passport, known.graph
        # who computes with a model asks its first parameter for device and precision
        self.place = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.register_buffer("digest", digest_of_files(self.file.parts))
        # a replaced forward: rewrites, other engines and tracing leave such a model alone
        self.forward = self.logits
        self.eval()

    def logits(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.run(image, "logits", ": this model has no head")

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.run(image, "pooled", NO_FEATURES)

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        raise UserError(f"{self.file.path}: an exported file has no tokens: use the checkpoint")

    def run(self, image: Float[Tensor, "B C H W"], output: str, missing: str) -> Tensor:
        if output not in self.graph.outputs:
            raise UserError(f"{self.file.path}{missing}")
        image = image.detach().cpu().float()
        if self.graph.input == "uint8":
            image = denormalise(image, self.passport.preprocessing)
        found = self.file.run(image.contiguous().numpy())[output]
        return torch.from_numpy(found)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        raise UserError(f"{self.file.path}: an exported file has no blocks: use the checkpoint")


def digest_of_files(paths: Sequence[Path]) -> Tensor:
    """SHA-256 of a file and of the weights beside it, if they are in a second one."""
    found = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return torch.tensor(list(found.digest()), dtype=torch.uint8)
