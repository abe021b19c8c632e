"""DALL-E's discrete VAE (openai/DALL-E, arXiv:2102.12092), whose words BEiT learns to guess.

Its encoder and decoder were published as two pickled modules, which are not opened here: write the
`state_dict()` of the encoder into a file, or of both into one, named encoder.… and decoder.….
Its pixels go from 0.1 to 0.9, which is no more than a mean and a deviation: (x + 0.125) / 1.25.
"""

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.models.tokenizer import MARGIN, TokenizerConfig
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, expand, same

NAMES = [
    same("{a}blocks.input.{p}", "{a}.input.{p}"),
    same("{a}blocks.group_{g}.block_{b}.id_path.{p}", "{a}.stages.{g}.{b}.skip.{p}"),
    same("{a}blocks.group_{g}.block_{b}.res_path.conv_{c}.{p}", "{a}.stages.{g}.{b}.conv{c}.{p}"),
    same("{a}blocks.output.conv.{p}", "{a}.output.{p}"),
]
ENCODER, DECODER = "encoder.", "decoder."
INPUT, OUTPUT = "blocks.input.w", "blocks.output.conv.w"
FIRST = "blocks.group_{}.block_{}.res_path.conv_1.w"


def rows(config: TokenizerConfig) -> list[Row]:
    """An encoder alone has the names that its module has; beside a decoder both are prefixed."""
    prefixed = [(ENCODER, "encoder"), (DECODER, "decoder")]
    return expand(
        NAMES,
        a=prefixed if config.decoder else [("", "encoder"), (ENCODER, "encoder")],
        g=[(stage + 1, stage) for stage in range(config.stages)],
        b=[(block + 1, block) for block in range(config.depth)],
        c=range(1, 5),
        p=[("w", "weight"), ("b", "bias")],
    )


def claims(foreign: Foreign) -> bool:
    return any({a + INPUT, a + OUTPUT} <= foreign.tensors.keys() for a in ("", ENCODER, DECODER))


def infer(foreign: Foreign) -> Facts:
    tensors = foreign.tensors
    a = ENCODER if ENCODER + INPUT in tensors else ""
    lone = a + INPUT not in tensors or foreign.shape(a + INPUT, 4)[2] == 1
    if lone:  # an encoder begins with kernels of 7 pixels, a decoder with the words
        raise UserError(
            f"{foreign.source}: a decoder alone, which reads no pictures: write the tensors of the "
            "encoder beside it, named encoder.… and decoder.…"
        )
    width, channels, _, _ = foreign.shape(a + INPUT, 4)
    facts: Facts = {
        "kind": "dvae",
        "channels": channels,
        "words": foreign.shape(a + OUTPUT, 4)[0],
        "width": width,
        "stages": counted(foreign, a, 0),
        "depth": counted(foreign, a, 1),
        "decoder": DECODER + INPUT in tensors,
    }
    return facts | {"entry": foreign.shape(DECODER + INPUT, 4)[0]} if facts["decoder"] else facts


def counted(foreign: Foreign, a: str, place: int) -> int:
    """Groups, or blocks of the first group: both are numbered from 1."""
    number = 0
    while True:
        at = [1, 1]
        at[place] = number + 1
        if a + FIRST.format(*at) not in foreign.tensors:
            return number
        number += 1


def preprocessing(foreign: Foreign, config: TokenizerConfig) -> Preprocessing:
    """Scaled until it covers the size, its centre; from 0.1 for black to 0.9 for white."""
    std = 1 / (1 - 2 * MARGIN)
    return Preprocessing(
        size=config.image_size,
        resize=config.image_size,
        interpolation="lanczos",
        mean=(-MARGIN * std,) * config.channels,
        std=(std,) * config.channels,
    )


def clashes(config: TokenizerConfig) -> str | None:
    if config.width < 64 or config.words < 512:
        return f"has a width of at least 64 and 512 words, not {config.width} and {config.words}"
    return None


DALLE = Dialect(
    name="dalle",
    about="openai/DALL-E: the encoder of its discrete VAE, or encoder and decoder",
    family="tokenizer",
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="paper",
    holds=dict.fromkeys(("words", "width", "entry", "decoder", "code_dim"), ANY),
    clashes=clashes,
    suffix=".pth",
)
