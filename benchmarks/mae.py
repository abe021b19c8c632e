"""What masked autoencoding saves: a step of it against steps with every patch in the encoder.

Three quarters of the patches are hidden. Ours leaves them out of the encoder; the others put a mask
token in the place of each:

    decoder   the same decoder and loss behind it: the paper's own comparison (arXiv:2111.06377,
              table 2, "encoder w/ [M]"), and the one that the goal is for
    linear    no decoder but one linear layer to pixels, as SimMIM has it; for this one, what the
              decoder costs is not on both sides

The paper reports 2.8 times as quick for ViT-L with the decoder of 8 blocks. How much can be saved
is a matter of how large that decoder is beside the encoder; counting multiplications it is

    times     ViT-S  ViT-B  ViT-L  ViT-H/14
    decoder    2.3    2.3    3.2    3.6
    linear     1.8    1.8    3.0    3.4

so ViT-L is what is timed unless another is named. All steps train one encoder. They alternate, and
which comes first alternates too, so that what else the machine does hits all. Each round has its
own ratio; printed is their median, with the quartiles, beside images a second.

    python -m benchmarks.mae [--model NAME] [--batch N] [--rounds N] [--threads N]
"""

import argparse
import os
from statistics import median, quantiles

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import vitrail
from benchmarks.train import Step, alternate, peak
from vitrail.models.model import Model
from vitrail.objectives.mae import MAE
from vitrail.objectives.patches import gather_patches

GOALS = {"decoder": 2.5, "linear": None}


class EveryPatch(MAE):
    """The same objective with mask tokens in the encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.token = nn.Parameter(torch.zeros(1, 1, self.model.config.dim))

    def guess(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B M P"]:
        return self.decoder(self.encode(images, drawn), drawn, hidden=self.patches - self.visible)

    def encode(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B T D"]:
        prefix = self.model.config.prefix
        hidden = torch.zeros_like(drawn, dtype=torch.bool).scatter(
            1, drawn[:, self.visible :], True
        )
        x = self.model.embed(images, lambda x: torch.where(hidden[:, :, None], self.token, x))
        x = self.model.forward_blocks(x)
        return torch.cat([x[:, :prefix], gather_patches(x[:, prefix:], drawn)], dim=1)


class Linear(EveryPatch):
    """Pixels straight from the encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.head = nn.Linear(self.model.config.dim, self.decoder.pixels.out_features)
        del self.decoder

    def guess(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B M P"]:
        return self.head(self.encode(images, drawn)[:, self.visible - self.patches :])


def main() -> None:
    """Print a row for each of the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_l_16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.randn(options.batch, 3, 224, 224)
    model = vitrail.create(options.model, num_classes=0)
    objectives = {"mae": MAE(model), "decoder": EveryPatch(model), "linear": Linear(model)}
    decoder = objectives["mae"].decoder.config
    print(
        f"{options.model}, decoder {decoder.dim} wide and {decoder.depth} deep, batch "
        f"{options.batch}; {options.threads} threads, {options.rounds} steps each; matrix product "
        f"{peak():.0f} GFLOP/s; "
        f"load before {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )
    # one for all, because memory is short: what has no gradient in a step is left alone by it
    every = nn.ModuleList(objectives.values()).train().parameters()
    optimiser = torch.optim.AdamW(every, lr=1.5e-4, betas=(0.9, 0.95), fused=True)
    steps = {
        name: make_step(objective, images, optimiser) for name, objective in objectives.items()
    }
    times = alternate(steps, options.rounds)
    speed = {name: 1000 * options.batch / median(each) for name, each in times.items()}
    print("| all in the encoder | its images/s | mae's | mae is quicker | quartiles | goal |")
    print("|---|---|---|---|---|---|")
    for name, goal in GOALS.items():
        ratios = [full / ours for full, ours in zip(times[name], times["mae"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"| {name} | {speed[name]:.2f} | {speed['mae']:.2f} | {middle:.2f}x "
            f"| {low:.2f} to {high:.2f} | {f'{goal:.1f}x' if goal else 'none'} |"
        )


def make_step(objective: MAE, images: Tensor, optimiser: torch.optim.Optimizer) -> Step:
    """Forward, backward and AdamW, as pre-training takes them."""
    drawn = objective.draw(0, 0, np.arange(len(images)))

    def step() -> None:
        optimiser.zero_grad()
        loss = objective(images, drawn)["loss"]
        loss.backward()
        optimiser.step()
        loss.item()

    return step


if __name__ == "__main__":
    main()
