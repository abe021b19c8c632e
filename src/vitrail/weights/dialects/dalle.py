"""DALL-E's discrete VAE (openai/DALL-E, arXiv:2102.12092), whose words BEiT learns to guess.

Its encoder and decoder were published as two pickled modules, which are not opened here: write the
`state_dict()` of the encoder into a file, or of both into one, named encoder.… and decoder.….
Its pixels go from 0.1 to 0.9, which is no more than a mean and a deviation: (x + 0.125) / 1.25.
"""

from typing import Any

from vitrail.core.passport import Preprocessing
from vitrail.models.tokenizer import MARGIN, TokenizerConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.rows import Row, same

BLOCK = "blocks.group_{g+1}.block_{b+1}"


def half(theirs: str, ours: str, **facts: Any) -> tuple[Row, ...]:
    """The rows of an encoder or decoder: their prefix, and ours."""
    return (
        same(f"{theirs}blocks.input.{{w}}", f"{ours}.input.{{w}}", **facts),
        same(f"{theirs}{BLOCK}.id_path.{{w}}", f"{ours}.stages.{{g}}.{{b}}.skip.{{w}}", **facts),
        same(
            f"{theirs}{BLOCK}.res_path.conv_{{c}}.{{w}}",
            f"{ours}.stages.{{g}}.{{b}}.conv{{c}}.{{w}}",
            **facts,
        ),
        same(f"{theirs}blocks.output.conv.{{w}}", f"{ours}.output.{{w}}", **facts),
    )


def preprocessing(_: Foreign, config: TokenizerConfig) -> Preprocessing:
    """Scaled until it covers the size, its centre; from 0.1 for black to 0.9 for white."""
    std = 1 / (1 - 2 * MARGIN)
    return Preprocessing(
        size=config.image_size,
        resize=config.image_size,
        interpolation="lanczos",
        mean=(-MARGIN * std,) * config.channels,
        std=(std,) * config.channels,
    )


def why_unsupported(config: TokenizerConfig) -> str | None:
    if config.width < 64 or config.words < 512:
        return f"has a width of at least 64 and 512 words, not {config.width} and {config.words}"
    return None


DALLE = Dialect(
    name="dalle",
    about="openai/DALL-E: the encoder of its discrete VAE, or encoder and decoder",
    family="tokenizer",
    # an encoder alone has the names that its module has; beside a decoder both are prefixed
    rows=(
        *half("", "encoder", decoder=False),
        *half("encoder.", "encoder"),
        *half("decoder.", "decoder"),
    ),
    values={"w": (("w", "weight"), ("b", "bias"))},
    preprocessing=preprocessing,
    resize="paper",
    supports=dict.fromkeys(("words", "width", "entry", "decoder", "code_dim"), ANY),
    why_unsupported=why_unsupported,
    suffix=".pth",
)
