"""A model behind an address in the place of a model: evaluation, prediction and embedding take
either. Images are prepared here; tensors go to the service by the Open Inference Protocol v2."""

import hashlib

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.data.threads import ahead
from vitrail.inference.client import BATCH, BATCH_BYTES, REQUESTS, Client
from vitrail.inference.prediction import NOT_FINITE
from vitrail.inference.service_http import ServiceError
from vitrail.models.catalogue import find_family
from vitrail.models.model import Model


class RemoteModel(Model):
    """images (B, C, H, W), preprocessed as ever -> logits or features, computed by the service. It
    has no weights to train or to look into; `digest` stands for those of the service."""

    digest: Tensor

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        served, self.passport = client.model()
        where = f"{client.address.url}: {served.name}"
        family = find_family(self.passport.family)
        self.config = validate(family.config, self.passport.config, where=where)
        self.address = f"{client.address.url}#{served.name}"
        # who computes with a model asks its first parameter for device and precision
        self.place = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.served_digest = served.digest
        digest = hashlib.sha256(served.digest.encode()).digest()
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))
        # a replaced forward: rewrites, other engines and tracing leave such a model alone
        self.forward = self.logits
        self.eval()

    def logits(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        if not self.config.num_classes:
            raise UserError(f"{self.address}: this model has no head")
        return self.run(image, "logits")

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.run(image, "pooled")

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        raise UserError(f"{self.address}: a service gives no tokens: use the checkpoint")

    def run(self, image: Float[Tensor, "B C H W"], output: str) -> Tensor:
        """A large batch goes in several requests, each within the limits of a service."""
        pixels = self.check(image).detach().cpu().float().contiguous().numpy()
        size = min(BATCH, max(1, BATCH_BYTES // max(1, pixels[:1].nbytes)))

        def compute(start: int) -> NDArray[np.generic]:
            return self.infer(pixels[start : start + size], output)

        starts = range(0, len(pixels), size)
        found = list(ahead(compute, starts, threads=min(REQUESTS, len(starts)), lead=1))
        return torch.from_numpy(np.concatenate(found).astype(np.float32))

    def infer(self, pixels: NDArray[np.float32], output: str) -> NDArray[np.generic]:
        """One request. A service refuses images whose logits are not finite: these are rows of NaN,
        as a model in this process gives them."""
        try:
            return self.client.infer(pixels, outputs=(output,))[output]
        except ServiceError as error:
            if output != "logits" or NOT_FINITE not in str(error):
                raise
            if len(pixels) == 1:
                return np.full((1, self.config.num_classes), np.nan, np.float32)
        return np.concatenate([self.infer(one[None], output) for one in pixels])

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        raise UserError(f"{self.address}: a service gives no blocks: use the checkpoint")
