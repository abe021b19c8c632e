"""Linear layers by oneDNN: equal to F.linear, gradients of gradients too, and only where it may."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from vitrail import create
from vitrail.core import processor
from vitrail.layers import linear as room
from vitrail.layers.linear import Linear, is_onednn_faster, linear, prefers_onednn

SHAPES = [(3, 5), (2, 3, 5), (2, 3, 4, 5), (1, 5)]


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN for products of any size, whatever the processor; the shapes that it multiplied."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    seen: list[tuple[int, ...]] = []
    multiply = room.multiply

    def watched(x: Tensor, *rest: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return multiply(x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(room, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(room, "multiply", watched)
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_equal_those_of_float64(
    shape: tuple[int, ...], has_bias: bool, onednn: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(7, 5), torch.randn(7)
    given = [one.requires_grad_() for one in (x, weight, bias)[: 3 if has_bias else 2]]
    exact = [one.detach().double().requires_grad_() for one in given]
    found, expected = linear(*given), F.linear(*exact)
    towards = torch.randn_like(found)
    gradients = torch.autograd.grad(found, given, towards, create_graph=True)
    wanted = torch.autograd.grad(expected, exact, towards.double(), create_graph=True)
    second = torch.autograd.grad([one.square().sum() for one in gradients[:2]], given[:2])
    wanted_second = torch.autograd.grad([one.square().sum() for one in wanted[:2]], exact[:2])
    assert len(onednn) >= 3
    for ours, theirs in zip(
        [found, *gradients, *second], [expected, *wanted, *wanted_second], strict=True
    ):
        assert torch.allclose(ours.double(), theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_output_is_no_view(shape: tuple[int, ...], onednn: list[tuple[int, ...]]) -> None:
    """FSDP2 warns of blocks whose output is one."""
    assert not Linear(5, 7)(torch.randn(shape))._is_view()
    assert onednn


def test_only_what_its_gradients_need_is_kept(onednn: list[tuple[int, ...]]) -> None:
    layer, x = Linear(5, 7).requires_grad_(False), torch.randn(3, 5, requires_grad=True)
    kept = list[tuple[int, ...]]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        layer(x)  # frozen, as below adapters
        Linear(5, 7)(x.detach())
    assert kept == [(7, 5), (3, 5)]
    assert len(onednn) == 2


def test_a_weight_with_gaps_is_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class token's row of every image is such a weight in the gradient of a head."""
    seen = list[bool]()

    def watched(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        seen.append(weight.is_contiguous() or weight.mT.is_contiguous())
        return F.linear(x, weight)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    x, tokens = torch.randn(3, 5), torch.randn(9, 4, 5)
    for weight in (torch.randn(9, 8)[:, :5], torch.randn(9, 10)[:, ::2], tokens[:, 0]):
        assert torch.allclose(room.multiply(x, weight, None), F.linear(x, weight), atol=1e-5)
    room.multiply(torch.randn(7, 9), tokens[:, 0].T, None)
    assert seen == [True] * 4


@pytest.mark.parametrize(
    "bias",
    [torch.randn(14)[::2], torch.tensor(2.0), torch.randn(1).expand(7), torch.randn(1, 7)],
    ids=["steps", "scalar", "expanded", "two dimensions"],
)
def test_a_bias_that_onednn_would_read_wrongly(bias: Tensor, onednn: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
    assert onednn == []


def test_layers_that_are_not_trained_get_no_gradient(onednn: list[tuple[int, ...]]) -> None:
    layer = Linear(5, 7).requires_grad_(False)
    x = torch.randn(3, 5, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None
    assert onednn == [(3, 5), (3, 7)]


def test_parts_of_a_weight_and_maps_that_lie_otherwise_in_memory(
    onednn: list[tuple[int, ...]],
) -> None:
    weight, x = torch.randn(9, 5), torch.randn(2, 5, 3, 4)
    with torch.inference_mode():
        found = linear(x.permute(0, 2, 3, 1), weight[3:])
        assert torch.allclose(found, F.linear(x.permute(0, 2, 3, 1), weight[3:]), atol=1e-5)
    assert onednn


@pytest.mark.parametrize("name", ["vit_ti_16", "beit_b_16", "swin_t", "mobilevit_xxs", "coatnet_0"])
def test_a_model_equals_itself_without_onednn(
    name: str, onednn: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = create(name, num_classes=3, **({"depth": 1} if name[:3] in ("vit", "bei") else {}))
    model.eval()
    torch.manual_seed(0)
    nn.init.normal_(model.get_parameter("head.classes.weight"), std=0.1)
    images = torch.rand(1, 3, *model.config.image_size)
    gradients = []
    for enabled in (True, False):
        monkeypatch.setattr(room, "is_onednn_faster", lambda enabled=enabled: enabled)
        model.zero_grad()
        model(images).square().sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters()})
        onednn.append(())
    assert onednn.index(()) > 10
    assert onednn[-2:] == [(), ()]  # nothing was multiplied once it was switched off
    largest = max(one.abs().max() for one in gradients[1].values() if one is not None)
    for parameter, gradient in gradients[0].items():
        other = gradients[1][parameter]
        if gradient is not None and other is not None:
            assert (gradient - other).abs().max() <= 1e-4 * largest, parameter


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_it_is_off_where_onednn_is(onednn: list[tuple[int, ...]]) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        linear(torch.ones(3, 5), torch.ones(7, 5))
    assert onednn == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_whoever_watches_operators_sees_the_usual_one(onednn: list[tuple[int, ...]]) -> None:
    layer, x = Linear(5, 7), torch.randn(3, 5)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 3 * 5 * 7
    per_sample = torch.func.vmap(torch.func.grad(lambda one: layer(one).sum()))(x)
    assert torch.allclose(per_sample, layer.weight.sum(0).expand(3, 5), atol=1e-6)
    tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]
    assert torch.allclose(tangent, layer.weight.sum(1).expand(3, 7), atol=1e-6)
    with forward_ad.dual_level():
        dual = layer(forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, tangent)
        with torch.no_grad():
            dual = layer(forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, tangent)
    assert torch.equal(
        torch.fx.symbolic_trace(nn.Sequential(layer))(x), F.linear(x, *[*layer.parameters()])
    )
    program = torch.export.export(layer, (x,))
    assert "mkldnn" not in str(program.graph)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64
    assert onednn == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_what_onednn_cannot_multiply(onednn: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    expected = F.linear(x, weight)
    assert torch.allclose(linear(x, weight.to_sparse_csr()), expected, atol=1e-6)
    assert torch.allclose(linear(x, weight[0]), expected[:, 0], atol=1e-6)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x, torch.randn(7, 6))
    assert onednn == []


def test_small_products_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "is_onednn_faster", lambda: True)
    assert not prefers_onednn(torch.ones(2, 5), torch.ones(7, 5))
    assert prefers_onednn(torch.ones(512, 128), torch.ones(128, 128))


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
    ],
)
def test_amd_processors_with_avx512_take_onednn(
    vendor: str,
    capability: str,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("this PyTorch has no MKL")
    monkeypatch.setattr(processor, "read_cpuinfo", lambda: f"vendor_id : {vendor}\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_onednn_faster.__wrapped__() is expected
