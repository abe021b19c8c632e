"""A model as a graph: through torch.export to a program, and from that to ONNX.

Inference engines and exporters start from the same two functions, so that what is measured is what
is written. An output of the graph has a name: "logits", "scores", "pooled" or "tokens", and those
of `vitrail.capture` for attention weights.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.passport import Preprocessing
from vitrail.data.framing import normalisation_factors
from vitrail.inference.any_size import for_any_size, size_step
from vitrail.inference.pruning import pruned_features, pruned_logits
from vitrail.models.attention_outputs import attention_outputs
from vitrail.models.model import Model
from vitrail.models.vit import ViT

if TYPE_CHECKING:
    from onnx import ModelProto

GraphOutput = Literal["logits", "scores", "pooled", "tokens"]
# The weights of every attention by name -> what is returned of them, by name.
ReduceWeights: TypeAlias = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]

INPUT = "images"
UINT8 = 2  # in ONNX's list of types
MAX_PROTO = 2**31 - 2**20  # bytes: protobuf's limit for one message, less some room


class Normalise(nn.Module):
    """RGB pixels (B, H, W, C), uint8 -> images (B, C, H, W) as a model reads them."""

    factor: Tensor
    offset: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        factor, offset = normalisation_factors(preprocessing)
        self.register_buffer("factor", torch.from_numpy(factor)[:, None, None])
        self.register_buffer("offset", torch.from_numpy(offset)[:, None, None])
        self.flipped = preprocessing.channel_order == "bgr"

    def forward(self, pixels: UInt8[Tensor, "B H W C"]) -> Float[Tensor, "B C H W"]:
        images = pixels.permute(0, 3, 1, 2).float()
        images = images.flip(1) if self.flipped else images
        return images * self.factor + self.offset


class Graph(nn.Module):
    """What is traced. images (B, C, H, W), preprocessed floats, or with `from_pixels` uint8 RGB
    pixels (B, H, W, C) -> outputs by name: `output`, with `features` beside logits also "pooled",
    with `attention` the weights of every attention, or what `reduce` makes of them."""

    def __init__(
        self,
        model: Model,
        output: GraphOutput,
        *,
        attention: bool = False,
        features: bool = False,
        from_pixels: bool = False,
        reduce: ReduceWeights | None = None,
    ) -> None:
        super().__init__()
        if output in ("logits", "scores") and model.config.num_classes == 0:
            raise UserError(
                f'{output} need a head, this model has none: use output="pooled", or load it with '
                "num_classes and train it"
            )
        how = model.passport.preprocessing
        if from_pixels and not how.is_photo:
            raise UserError(
                f"preprocessing must be off for a model of {len(how.mean)} channels and {how.bits} "
                "bits: a graph that normalises reads grey or RGB of 8 bits"
            )
        self.model, self.output, self.attention = model, output, attention
        self.features, self.reduce = features, reduce
        self.normalise = Normalise(model.passport.preprocessing) if from_pixels else nn.Identity()

    def forward(self, images: Shaped[Tensor, "B _ _ _"]) -> dict[str, Tensor]:
        images = self.normalise(images)
        if not self.attention:
            return self.outputs(images)
        with attention_outputs(self.model) as weights:
            outputs = self.outputs(images)
            return outputs | (weights if self.reduce is None else self.reduce(weights))

    def outputs(self, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
        if not self.features:
            return {self.output: self.compute(images)}
        if isinstance(self.model, ViT):  # whose two heads, where it has two, do not read features
            tokens = self.model.encode(images)
            return {
                "logits": self.model.logits_of(tokens), "pooled": self.model.features_of(tokens)
            }  # fmt: skip
        pooled = self.model.features(images)
        return {"logits": self.model.get_submodule("head")(pooled), "pooled": pooled}

    def compute(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        match self.output:
            case "tokens":
                return self.model.encode(images)
            case "pooled":
                return pruned_features(self.model, images)
            case "logits":
                return pruned_logits(self.model, images)
            case "scores":
                logits = pruned_logits(self.model, images)
                multi_label = self.model.passport.multi_label
                return logits.sigmoid() if multi_label else logits.softmax(dim=1)


def trace(
    model: Model,
    *,
    output: GraphOutput = "logits",
    batch: int | None = None,
    dynamic_size: bool = False,
    attention: bool = False,
    features: bool = False,
    from_pixels: bool = False,
    reduce: ReduceWeights | None = None,
) -> ExportedProgram:
    """The program of a model in evaluation mode, in the precision it has. `batch` images at once,
    or any number (None). `from_pixels` reads uint8 RGB pixels (B, H, W, C) and normalises them
    itself. With `dynamic_size` images may have any size that is a multiple of the model's strides.

    Its module returns a dictionary: the output by its name, with `features` also "pooled" beside
    logits, and with `attention` the weights of every attention by the names that `vitrail.capture`
    gives them, or what `reduce` makes of them.

    >>> program = trace(create("vit_ti_16", depth=1, num_classes=3), output="scores", batch=1)
    >>> program.module()(torch.zeros(1, 3, 224, 224))["scores"].shape
    torch.Size([1, 3])
    """
    images = example_images(model, batch or 2, from_pixels=from_pixels)
    dynamic: dict[int, Any] = {} if batch else {0: Dim("batch", min=1)}
    if dynamic_size:
        model = for_any_size(model)
        step, first = size_step(model), 1 if from_pixels else 2
        for axis, name in ((first, "rows"), (first + 1, "columns")):
            dynamic[axis] = step * Dim(name, min=1)
        images = images.new_zeros(dynamic_example(images.shape, first, step))
    graph = Graph(
        model, output, attention=attention, features=features, from_pixels=from_pixels,
        reduce=reduce,
    )  # fmt: skip
    with eval_mode(graph), torch.no_grad(), quiet():
        return torch.export.export(graph, (images,), dynamic_shapes=(dynamic,), strict=False)


def dynamic_example(shape: Sequence[int], first: int, step: int) -> list[int]:
    """A shape whose height and width differ: torch.export takes equal ones for the same."""
    found = list(shape)
    found[first], found[first + 1] = 3 * step, 4 * step
    return found


def example_images(
    model: Model, count: int, *, from_pixels: bool = False
) -> Shaped[Tensor, "B _ _ _"]:
    """Black images of the shape and type that a graph reads."""
    images = torch.zeros(count, model.config.channels, *model.config.image_size)
    if from_pixels:
        return images.permute(0, 2, 3, 1).contiguous().to(torch.uint8)
    return images.to(next(model.parameters()))


def output_names(program: ExportedProgram) -> list[str]:
    """The names of a program's outputs, in their order."""
    spec = program.call_spec.out_spec
    assert spec is not None
    return list(spec.context)


def input_shape(program: ExportedProgram) -> list[int | None]:
    """The shape of a program's input; None for a dynamic axis."""
    (name,) = program.graph_signature.user_inputs
    (node,) = (node for node in program.graph.nodes if node.name == name)
    return [side if isinstance(side, int) else None for side in node.meta["val"].shape]


def to_onnx(program: ExportedProgram) -> "ModelProto":
    """The program in ONNX: input `images`, outputs by their names, dynamic axes as batch, height
    and width. Shapes between are left out: quantisation fails on the exporter's."""
    with quiet():
        written = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=output_names(program),
        )
    assert written is not None
    proto = written.model_proto
    del proto.graph.value_info[:]
    name_axes(proto)
    return proto


def name_axes(proto: "ModelProto") -> None:
    """The exporter's symbols, such as s34, replaced by what they stand for."""
    (given,) = proto.graph.input
    sides = given.type.tensor_type.shape.dim
    pixels = given.type.tensor_type.elem_type == UINT8
    axes = ("batch", "height", "width", "") if pixels else ("batch", "", "height", "width")
    names = {side.dim_param: name for side, name in zip(sides, axes, strict=True)}
    for value in (*proto.graph.input, *proto.graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = names.get(side.dim_param, side.dim_param)


def weights_size(proto: "ModelProto") -> int:
    """Bytes of a graph's weights: the size of a graph above 2 GiB cannot be asked for, because
    protobuf serialises it to find out, and fails."""
    return sum(int(tensor.ByteSize()) for tensor in proto.graph.initializer)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the converters' warnings, logs and bars about their own insides, which no user can
    act on. What they raise is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
