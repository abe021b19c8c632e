"""Teaching words: losses against their definitions, noise against its distribution, and a short
training that reconstructs better than one colour does."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.kinds import SMALL as SMALL_VIT
from tests.models.test_tokenizer import both_kinds, make, picture
from torch import Tensor
from torch.distributions import Laplace, SigmoidTransform, TransformedDistribution
from torch.nn import functional as F

from vitrail import UserError
from vitrail.data.planted import Planted
from vitrail.models.catalogue import build
from vitrail.models.tokenizer import Tokenizer, squeeze_pixels
from vitrail.objectives.tokenizer import (
    FINEST,
    TokenizerObjective,
    gumbel,
    logit_laplace,
    usage,
)

IMAGES = picture()
INDICES = np.array([5, 0, 9])


def fits(reconstructed: Tensor) -> Tensor:
    """The misfit by torch's own distributions, for each image."""
    middle, width = reconstructed.chunk(2, dim=1)
    law = TransformedDistribution(Laplace(middle, width.exp() + FINEST), [SigmoidTransform()])
    return -law.log_prob(squeeze_pixels(IMAGES / 2 + 0.5)).mean(dim=(1, 2, 3))


def test_the_misfit_is_a_likelihood() -> None:
    generator = torch.Generator().manual_seed(3)
    reconstructed = torch.randn(3, 6, 16, 24, generator=generator, dtype=torch.float64)
    mine = logit_laplace(reconstructed, squeeze_pixels(IMAGES / 2 + 0.5)).mean(dim=(1, 2, 3))
    torch.testing.assert_close(mine, fits(reconstructed))


def test_a_dvae_mixes_words_by_chance_and_pays_for_leaving_some_out() -> None:
    tokenizer = make("dvae")
    objective = TokenizerObjective(tokenizer, divergence=2.0, temperature=(0.8, 0.1), cooling=0.5)
    drawn = objective.draw(7, 2, INDICES)
    losses = objective(IMAGES, drawn)
    logits = tokenizer.encode(IMAGES)
    noise = gumbel(drawn[:, 0], logits.shape[1:]).double()
    mixed = ((logits + noise) / 0.2).softmax(-1)  # 0.8, cooled twice
    fit = fits(tokenizer.require_decoder()(mixed.movedim(-1, 1))).mean()
    uniform = torch.full_like(logits, 1 / 24)
    apart = F.kl_div(uniform.log(), logits.softmax(-1), reduction="sum") / (3 * 4 * 6)
    torch.testing.assert_close(losses["fit"], fit)
    torch.testing.assert_close(losses["price"], 2.0 * apart)
    torch.testing.assert_close(losses["loss"], losses["fit"] + losses["price"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@both_kinds
def test_every_parameter_learns_also_compiled(kind: str, backend: str) -> None:
    objective = TokenizerObjective(make(kind))
    drawn = objective.draw(7, 2, INDICES)
    plain = objective(IMAGES, drawn)["loss"]
    compiled: Any = torch.compile(objective, fullgraph=True, backend=backend)
    loss = compiled(IMAGES, drawn)["loss"]
    torch.testing.assert_close(loss, plain)
    loss.backward()
    torch._dynamo.reset()
    assert [name for name, p in objective.named_parameters() if p.grad is None] == []


def test_words_cool_down_to_where_they_stay() -> None:
    objective = TokenizerObjective(make(), temperature=(1.0, 0.3), cooling=0.5)
    heat = objective.heat(torch.tensor([0, 1, 2, 50]))
    assert heat.tolist() == [1.0, 0.5, 0.3, 0.3]


def test_a_vq_takes_the_nearest_word_and_both_move() -> None:
    tokenizer = make("vq")
    assert tokenizer.book is not None
    objective = TokenizerObjective(tokenizer, commitment=0.5)
    losses = objective(IMAGES, objective.draw(7, 2, INDICES))
    cells = tokenizer.project_cells(IMAGES)
    taken = tokenizer.book()[tokenizer.codes(IMAGES)]
    fit = fits(tokenizer.require_decoder()(taken.movedim(-1, 1))).mean()
    torch.testing.assert_close(losses["fit"], fit)
    torch.testing.assert_close(losses["price"], 1.5 * (cells - taken).square().sum(-1).mean())

    table, last = tokenizer.book.table, tokenizer.encoder.output.bias
    assert last is not None
    of_fit: tuple[Tensor | None, ...] = torch.autograd.grad(
        losses["fit"], [table, last], retain_graph=True, allow_unused=True
    )
    assert of_fit[0] is None  # painting teaches the encoder, past the choice, and no word
    assert of_fit[1] is not None
    assert of_fit[1].abs().max() > 1e-6
    (follows,) = torch.autograd.grad(losses["price"], table, retain_graph=True)
    (alone,) = torch.autograd.grad((cells.detach() - taken).square().sum(-1).mean(), table)
    torch.testing.assert_close(follows, alone)
    (commits,) = torch.autograd.grad(losses["price"], last)
    (half,) = torch.autograd.grad(0.5 * (cells - taken.detach()).square().sum(-1).mean(), last)
    torch.testing.assert_close(commits, half)


@both_kinds
def test_what_is_drawn_and_lost_depends_on_no_batch(kind: str) -> None:
    objective = TokenizerObjective(make(kind))
    together = objective.draw(7, 2, INDICES)
    alone = [objective.draw(7, 2, INDICES[i : i + 1]) for i in range(3)]
    assert together.shape == (3, 2)
    assert torch.equal(together, torch.cat(alone))
    assert together[:, 1].tolist() == [2, 2, 2]
    others = (objective.draw(8, 2, INDICES), objective.draw(7, 3, INDICES))
    assert not any((other[:, 0] == together[:, 0]).any() for other in others)
    losses = [objective(IMAGES[i : i + 1], alone[i])["loss"] for i in range(3)]
    torch.testing.assert_close(objective(IMAGES, together)["loss"], torch.stack(losses).mean())


@both_kinds
def test_the_answer_is_the_loss_with_single_words_and_the_words(kind: str) -> None:
    tokenizer = make(kind)
    objective = TokenizerObjective(tokenizer)
    answer = objective.outputs(IMAGES, objective.draw(0, 0, INDICES))
    codes = tokenizer.codes(IMAGES)
    assert answer.shape == (3, 1 + 4 * 6)
    assert torch.equal(answer[:, 1:].long(), codes.flatten(1))
    book = tokenizer.book
    taken = None if book is None else book()[codes]
    price = objective.price(tokenizer.project_cells(IMAGES), taken)
    torch.testing.assert_close(answer[:, 0], fits(tokenizer.reconstruct(codes)) + price)
    told, used = answer.float().numpy(), usage(codes, 24)
    assert objective.usage(told) == used
    assert objective.scores(told) == {
        "loss": pytest.approx(answer[:, 0].mean().item()),
        "perplexity": used.perplexity,
        "used": used.used,
    }


def test_a_collapse_is_warned_of() -> None:
    objective = TokenizerObjective(make())
    answers = np.zeros((50, 25), dtype=np.float32)
    warning = objective.warning(answers)
    assert warning is not None
    assert warning.startswith("4% of 24 words in use")
    assert "collapsed" in warning
    answers[:, 1:] = np.arange(24)
    assert objective.warning(answers) is None


@both_kinds
def test_pictures_are_in_the_models_pixels(kind: str) -> None:
    tokenizer = make(kind)
    shown = TokenizerObjective(tokenizer).illustrate(IMAGES)
    assert list(shown) == ["original", "reconstructed"]
    assert shown["original"] is IMAGES
    reconstructed = tokenizer.decode(tokenizer.codes(IMAGES))
    torch.testing.assert_close(shown["reconstructed"], reconstructed * 2 - 1)


def test_noise_is_gumbels_and_the_generators() -> None:
    keys = torch.tensor([3, -(2**63), 2**63 - 1])
    noise = gumbel(keys, (200, 500)).double()
    assert noise.shape == (3, 200, 500)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert torch.equal(gumbel(keys[1:2], (200, 500))[0].double(), noise[1])
    neighbours = torch.corrcoef(torch.stack([*noise.flatten(1), noise[0].flatten().roll(1)]))
    assert (neighbours - torch.eye(4)).abs().max() < 0.02
    # SplitMix64 of key 3, its first number, in Python's own integers
    value = (3 + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    value ^= value >> 31
    chance = ((value >> 41) + 0.5) / 2**23
    assert noise[0, 0, 0].item() == pytest.approx(-math.log(-math.log(chance)), rel=1e-6)


def test_usage_tells_a_collapse() -> None:
    every = usage(torch.arange(1024).repeat(3), 1024)
    assert (every.used, every.seen, every.collapsed) == (1.0, 3072, False)
    assert every.perplexity == pytest.approx(1024)
    assert str(every) == (
        "100% of 1024 words in use, as hard to guess as 1024.0 that are equally frequent"
    )
    skewed = torch.tensor([0] * 3 + [1])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert usage(skewed, 4).perplexity == pytest.approx(math.exp(entropy))
    few = usage(torch.arange(40).repeat(100), 1024)
    assert few.collapsed
    assert "4% of 1024 words" in str(few)
    assert "has collapsed" in str(few)
    one = usage(torch.zeros(50, dtype=torch.int64), 8)
    assert (one.perplexity, one.used, one.collapsed) == (1.0, 0.125, True)
    # few cells cannot show many words: that is no collapse
    assert not usage(torch.arange(40), 8192).collapsed
    with pytest.raises(UserError, match="no tokens were seen"):
        usage(torch.zeros(0, dtype=torch.int64), 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": (0.1, 1.0)}, "it falls from the first to the second"),
        ({"temperature": (1.0, 0.0)}, "both above 0"),
        ({"cooling": 1.5}, "at most 1"),
        ({"divergence": -1.0}, "a weight is not negative"),
    ],
)
def test_an_option_without_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TokenizerObjective(make(), **options)


def test_only_a_tokenizer_with_a_decoder_can_be_trained() -> None:
    with pytest.raises(UserError, match="got a ViT"):
        TokenizerObjective(build(SMALL_VIT))
    with pytest.raises(UserError, match="has no decoder"):
        TokenizerObjective(make(decoder=False))


def planted(count: int) -> Tensor:
    source = Planted(count, side=32)
    values = np.stack([source.read(index) for index in range(count)])
    return torch.from_numpy(values)[:, None].float() / 127.5 - 1


@pytest.mark.slow
@both_kinds
def test_a_short_training_paints_better_than_one_colour(kind: str) -> None:
    """On pictures it has not seen; and with more than a few words."""
    images = planted(256)
    train, val = images[:192], images[192:]
    fields = {"channels": 1, "image_size": (32, 32), "words": 64, "width": 16, "depth": 1}
    tokenizer: Tokenizer = make(kind, torch.float32, **fields)
    tokenizer.init_weights()
    objective = TokenizerObjective(tokenizer)
    optimiser = torch.optim.AdamW(tokenizer.parameters(), lr=2e-3)
    for epoch in range(32):
        order = np.random.default_rng(epoch).permutation(len(train))
        for indices in order.reshape(-1, 32):
            optimiser.zero_grad()
            objective(train[indices], objective.draw(0, epoch, indices))["loss"].backward()
            optimiser.step()
    reconstructed = objective.illustrate(val)["reconstructed"]
    one_colour = (val - val.mean(dim=(2, 3), keepdim=True)).square().mean()
    assert (reconstructed - val).square().mean() < 0.6 * one_colour
    used = objective.usage(objective.outputs(val).numpy())
    assert not used.collapsed
    assert used.perplexity > 5
