"""int8: close to the model, sensitive layers in float, refused where it costs too much."""

import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.golden import golden
from tests.inference.photos import LABELS, write_photos
from tests.models.kinds import KINDS, SMALL, perturbed, random_images
from vitrail import UserError, create, load
from vitrail.data.preprocess import normalise
from vitrail.inference import quantise as quantising
from vitrail.inference.balancing import balance_norms
from vitrail.inference.calibration import Samples, labels_of, read_calibration
from vitrail.inference.engines.model_graph import save_onnx
from vitrail.inference.graph import quiet, to_onnx, trace
from vitrail.inference.int8_graph import (
    Int8,
    Method,
    bytes_overflow,
    fold_weights,
    layers_of,
    overflows,
    quantise_nodes,
    run_graph,
)
from vitrail.inference.int8_openvino import quantise_openvino, run_openvino
from vitrail.inference.label_agreement import label_kind
from vitrail.inference.quantisation import check_drop
from vitrail.inference.quantise import choose_method, compare_outputs, quantise, relative_error
from vitrail.models.model import Model

WIDE = replace(SMALL, depth=1, dim=64, mlp_dim=256)


@cache
def wide_model() -> Model:
    model: Model = perturbed(WIDE).eval()
    with torch.no_grad():  # a few activations far larger than the others, as in trained models
        for norm, linear in (("norm1", "attention.qkv"), ("norm2", "mlp.fc1")):
            for name in ("weight", "bias"):
                model.get_parameter(f"blocks.0.{norm}.{name}")[:3] *= 60
            model.get_parameter(f"blocks.0.{linear}.weight")[:, :3] /= 60
    model.passport = replace(model.passport, labels=LABELS)
    return model


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    names = write_photos(tmp_path_factory.mktemp("photos"), 24)
    model = wide_model()
    images = normalise(read_calibration(model, names), model.passport.preprocessing, reorder=False)
    return Samples(images)


@pytest.fixture(scope="module")
def to_graph() -> Any:
    """Traces a model once: int8 is tried on the same graph many times."""

    @cache
    def graph(weights: bytes) -> bytes:
        return to_onnx(trace(models[weights])).SerializeToString()

    models: dict[bytes, Model] = {}

    def to_graph(model: Model) -> Any:
        import onnx

        key = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        models[key] = model
        return fold_weights(onnx.load_from_string(graph(key)))

    return to_graph


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dynamic", "static"])
def test_int8_is_close_and_smaller(method: Method, samples: Samples, to_graph: Any) -> None:
    proto, record = quantise(wide_model(), samples, to_graph, method=method)
    found = run_graph(proto, samples.inputs)
    with torch.no_grad():
        expected = wide_model()(samples.images).numpy()
    assert 0 < relative_error(expected, found) < 0.06
    assert record.method == method
    assert record.layers == {"dynamic": 5, "static": 6}[method]  # queries apart; patches
    assert record.size[1] < 0.65 * record.size[0]
    assert record.images == 12
    assert record.facts()["size_after"] == record.size[1] == len(proto.SerializeToString())
    assert not any(node.metadata_props for node in proto.graph.node)


@pytest.mark.slow
def test_the_range_of_weights_suits_the_processor(samples: Samples, to_graph: Any) -> None:
    proto = to_graph(wide_model())
    nodes = layers_of(proto, "dynamic")
    assert "blocks.0.mlp.fc1" in nodes.values()
    errors = {}
    for reduced in (False, True):
        how = Int8(reduce_range=reduced)
        found = run_graph(quantise_nodes(proto, nodes, how, samples.inputs), samples.inputs)
        errors[reduced] = relative_error(run_graph(proto, samples.inputs), found)
    best = min(errors, key=errors.__getitem__)
    assert best == bytes_overflow()


@pytest.mark.slow
@pytest.mark.parametrize("overflows_here", [False, True])
@pytest.mark.parametrize("portable", [False, True])
def test_the_range_follows_the_processor_and_files_go_anywhere(
    overflows_here: bool,
    portable: bool,
    samples: Samples,
    to_graph: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Full-range weights reach 127 steps, those of 7 bits no more than 64."""
    from onnx import TensorProto, numpy_helper

    monkeypatch.setattr("vitrail.inference.quantise.bytes_overflow", lambda: overflows_here)
    proto, record = quantise(wide_model(), samples, to_graph, method="dynamic", portable=portable)
    assert record.reduced_range == (overflows_here or portable)
    weights = [one for one in proto.graph.initializer if one.data_type == TensorProto.INT8]
    largest = max(int(np.abs(numpy_helper.to_array(one).astype(int)).max()) for one in weights)
    assert largest <= 64 if record.reduced_range else largest == 127


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_f": True}, True),
        ({"architecture": "x86_64", "avx_vnni": True}, False),
        ({"architecture": "x86_64", "avx512_vnni": True, "amx_int8": True}, False),
        ({"architecture": "x86_64", "avx512_vnni": False, "amx_int8": True}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_bytes_overflow_on_x86_before_vnni(capabilities: dict[str, Any], expected: bool) -> None:
    assert overflows(capabilities) is expected


def test_balancing_helps_where_channels_differ_in_size(samples: Samples, to_graph: Any) -> None:
    balanced = balance_norms(wide_model(), samples.split()[0].images)
    assert balanced is not None
    errors = []
    for model in (wide_model(), balanced):
        proto = to_graph(model)
        how = Int8(reduce_range=bytes_overflow())
        done = quantise_nodes(proto, layers_of(proto, "dynamic"), how, samples.inputs)
        errors.append(
            relative_error(run_graph(proto, samples.inputs), run_graph(done, samples.inputs))
        )
    assert errors[1] < 0.7 * errors[0]
    assert quantise(wide_model(), samples, to_graph)[1].balanced


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "norm after adding"])
def test_balancing_changes_nothing_else(kind: str) -> None:
    model = perturbed(KINDS[kind]).double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = random_images(model.config).double()
    balanced = balance_norms(model, images)
    assert balanced is not None
    with torch.no_grad():
        torch.testing.assert_close(balanced(images), model(images), rtol=1e-12, atol=1e-12)
    changed = [
        name for name, value in balanced.state_dict().items() if not value.equal(before[name])
    ]
    assert any("norm1" in name for name in changed)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


class AddInput(nn.Module):
    """An attention that adds what it was given."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:
        result: Tensor = self.attention(x) + x
        return result


def test_a_norm_that_something_else_reads_is_not_balanced() -> None:
    model = perturbed(WIDE).eval()
    block = model.get_submodule("blocks.0")
    block.attention = AddInput(block.attention)
    assert balance_norms(model, random_images(WIDE)) is None


def test_the_most_sensitive_layers_stay_in_float(samples: Samples, to_graph: Any) -> None:
    _, every = quantise(wide_model(), samples, to_graph, max_error=1.0)
    assert not every.kept
    goal = every.error / 2
    _, record = quantise(wide_model(), samples, to_graph, max_error=goal)
    assert record.kept
    assert record.layers + len(record.kept) == every.layers
    assert record.error < every.error
    assert "kept in float" in repr(record)
    assert list(record.kept.values()) == sorted(record.kept.values(), reverse=True)


def test_nothing_is_left_to_quantise(samples: Samples, to_graph: Any) -> None:
    with pytest.raises(UserError, match="too sensitive"):
        quantise(wide_model(), samples, to_graph, max_error=1e-9)


def test_fewer_bits_for_weights_alone(samples: Samples, to_graph: Any) -> None:
    records = {
        bits: quantise(wide_model(), samples, to_graph, method="weights", bits=bits, max_error=1.0)[
            1
        ]
        for bits in (4, 8)
    }
    assert records[8].error < records[4].error < 0.5
    assert records[4].size[1] < records[8].size[1] < records[8].size[0]
    assert not records[4].reduced_range


def test_bits_that_do_not_exist(samples: Samples, to_graph: Any) -> None:
    with pytest.raises(UserError, match="4 or 8"):
        quantise(wide_model(), samples, to_graph, bits=3)
    with pytest.raises(UserError, match="weights alone"):
        quantise(wide_model(), samples, to_graph, bits=4)


def test_a_loss_beyond_the_limit_is_refused(samples: Samples, to_graph: Any) -> None:
    _, record = quantise(wide_model(), samples, to_graph, max_error=1.0)
    labelled = replace(record, accuracy=(0.9, 0.87))
    check_drop(labelled, 3.1)
    with pytest.raises(UserError, match=r"1 points of accuracy, but loses 3\.00 on 12 images"):
        check_drop(labelled, 1.0)
    with pytest.raises(UserError, match="label agreement"):
        check_drop(replace(record, agreement=0.5), 1.0)
    check_drop(replace(record, agreement=None, error=0.04), 0.0)
    with pytest.raises(UserError, match=r"outputs by 5%, but changes them by 7\.0%"):
        check_drop(replace(record, agreement=None, error=0.07), 0.0)
    check_drop(replace(record, agreement=None, error=0.07), 100.0)


def test_labels_say_what_they_can() -> None:
    model = create("vit_ti_16", depth=1, num_classes=3)
    assert label_kind(model, "logits") == "one"
    assert label_kind(model, "pooled") is None
    model.passport = replace(model.passport, multi_label=True)
    assert label_kind(model, "logits") == "several"
    single = create("vit_ti_16", depth=1, num_classes=1)
    assert label_kind(single, "logits") is None  # every image has the one class: the error decides
    before = np.array([[3, -1, -1], [2, 1, -1], [-1, -1, -1]], np.float32)
    after = np.array([[3, 1, -1], [1, 2, -1], [-2, -1, -3]], np.float32)
    found = compare_outputs(before, after, None, "several")
    assert (found["agreement"], found["accuracy"]) == (3 / 4, None)
    assert compare_outputs(-abs(before), -abs(after), None, "several")["agreement"] is None
    classes = np.array([0, 0, 1])
    found = compare_outputs(before, after, classes, "one")
    assert (found["agreement"], found["accuracy"]) == (1 / 3, (2 / 3, 2 / 3))
    assert compare_outputs(before[:, :1], after[:, :1], 0 * classes, None)["accuracy"] is None


def test_a_patch_embedding_alone_does_not_make_a_convolutional_network(to_graph: Any) -> None:
    proto = to_graph(wide_model())
    assert choose_method(proto) == "dynamic"
    proto.graph.node.add(op_type="Conv")
    assert choose_method(proto) == "static"


def test_decisions_and_figures_come_from_different_images(samples: Samples) -> None:
    labelled = replace(samples, labels=np.arange(24))
    calibration, test = labelled.split()
    assert calibration.labels is not None
    assert test.labels is not None
    assert sorted([*calibration.labels, *test.labels]) == list(range(24))
    assert len(calibration.inputs) == len(test.images) == 12
    with pytest.raises(UserError, match=r"at least 16 images .* got 15"):
        Samples(samples.images[:15]).split()


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    names = write_photos(tmp_path, 3, broken=(1,))
    with pytest.raises(UserError, match="00001"):
        read_calibration(wide_model(), names)
    with pytest.raises(UserError, match="got none"):
        read_calibration(wide_model(), [])


def test_labels_are_the_names_of_folders() -> None:
    found = labels_of(wide_model(), ["a/cat/1.jpg", Path("b/ant/1.jpg")])
    assert found is not None
    assert found.tolist() == [2, 0]
    assert labels_of(wide_model(), ["a/cat/1.jpg", "a/holiday/1.jpg"]) is None
    assert labels_of(wide_model(), []) is None


@pytest.mark.slow
def test_openvino_is_quantised_by_nncf(samples: Samples) -> None:
    import openvino

    with quiet():
        model = openvino.convert_model(trace(wide_model()))
    model.reshape([-1, *samples.images.shape[1:]])
    done, record = quantise_openvino(model, samples, "one")
    assert 0 < record.error < 0.25  # more than by ONNX Runtime's quantiser
    assert record.layers >= 4
    assert record.size[1] < 0.5 * record.size[0]
    assert record.agreement is not None
    with torch.no_grad():
        expected = wide_model()(samples.images).numpy()
    assert relative_error(expected, run_openvino(done, samples.inputs)) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dynamic", "static"])
def test_a_real_model_reads_digits_in_int8(method: Method) -> None:
    model = load(golden("mnist/mnist_vit_researchase.pt"), heads=4)

    def idx(name: str, header: int) -> Any:
        with gzip.open(golden(f"mnist/{name}.gz")) as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header)

    pixels = torch.tensor(idx("t10k-images-idx3-ubyte", 16)).view(-1, 1, 28, 28)[:2000]
    images = (pixels / 255 - 0.1307) / 0.3081
    labels = idx("t10k-labels-idx1-ubyte", 8)[:2000].astype(np.int64)
    samples = Samples(images, labels=labels)
    _, record = quantise(model, samples, lambda one: to_onnx(trace(one)), method=method)
    assert record.images >= 1000
    assert record.accuracy is not None
    assert record.accuracy[0] > 0.95
    check_drop(record, 1.0)
    assert record.size[1] < 0.5 * record.size[0]


def test_a_model_too_large_for_the_quantiser_is_refused_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantising, "MAX_PROTO", 1000)
    samples: Any = None  # nothing is looked at
    with pytest.raises(UserError, match=r"int8 needs a model of at most .* GiB of weights"):
        quantise(wide_model(), samples, samples)


def test_the_size_of_a_large_graph_is_that_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protobuf cannot give that of a whole graph above 2 GiB."""
    saved: list[bool] = []
    monkeypatch.setattr(
        "onnx.save_model", lambda *given, **options: saved.append(options["save_as_external_data"])
    )
    tensors = [SimpleNamespace(ByteSize=lambda: 2**30) for _ in range(2)]
    proto: Any = SimpleNamespace(graph=SimpleNamespace(initializer=tensors))
    save_onnx(proto, tmp_path / "model.onnx")
    tensors.pop()
    save_onnx(proto, tmp_path / "model.onnx")
    assert saved == [True, False]
