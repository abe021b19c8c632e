"""Tokenizer: its sizes by our names. No tensor depends on the image's size."""

from vitrail.core.errors import UserError
from vitrail.weights.families.family import (
    FamilyWeights,
    NamedTensors,
    resolve_from_variants,
)
from vitrail.weights.rows import Facts

# No tensor shows them; `code_dim` and `entry` where there are no words that point, or no decoder.
NOT_IN_TENSORS = ("image_size", "code_dim", "entry", "num_classes", "drop_path")


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a tokenizer show. An encoder begins with kernels of 7 pixels,
    a decoder with the words."""
    known, first = tensors.tensors, "encoder.input.weight"
    if first not in known or tensors.shape(first, 4)[2] == 1:
        raise UserError(
            f"{tensors.source}: a decoder alone, which reads no images: write the tensors of the "
            "encoder beside it, named encoder.… and decoder.…"
        )
    width, channels = tensors.shape(first, 4)[:2]
    facts: Facts = {
        "kind": "vq" if "book.table" in known else "dvae",
        "channels": channels,
        "words": tensors.shape("encoder.output.weight", 4)[0],
        "width": width,
        "stages": tensors.count("encoder.stages.{}.0.conv1.weight"),
        "depth": tensors.count("encoder.stages.0.{}.conv1.weight"),
        "decoder": "decoder.input.weight" in known,
    }
    if facts["kind"] == "vq":
        facts["words"], facts["code_dim"] = tensors.shape("book.table", 2)
    if facts["decoder"]:
        facts["entry"] = tensors.shape("decoder.input.weight", 4)[0]
    return facts


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_from_variants("tokenizer"),
    kernel=lambda _: "encoder.input.weight",
)
