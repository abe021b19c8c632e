"""The parts of the loop: schedule, groups of parameters, average, precision."""

import pytest
import torch
from torch import nn

from tests.models.kinds import KINDS, SMALL
from vitrail import UserError
from vitrail.models.catalogue import build, change, find
from vitrail.objectives.supervised import Supervised
from vitrail.training import muon
from vitrail.training.ema import EMA
from vitrail.training.muon import Muon
from vitrail.training.optimiser import freeze, group_parameters, make_optimisers, set_rate
from vitrail.training.precision import check_precision
from vitrail.training.recipe import Optimiser, Recipe, Schedule
from vitrail.training.schedule import rate_at


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_the_rate_warms_up_and_comes_down(kind: str) -> None:
    schedule = Schedule(kind=kind, warmup=10, floor=0.1)  # type: ignore[arg-type]
    rates = [rate_at(step, 100, schedule) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == pytest.approx(1.0)
    after = rates[10:]
    assert after == sorted(after, reverse=True)
    end = {"cosine": 0.1, "linear": 0.11, "constant": 1.0}[kind]
    assert rates[-1] == pytest.approx(end, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_in_one_group(kind: str) -> None:
    model = build(KINDS[kind])
    groups = group_parameters(Supervised(model), Optimiser(layer_decay=0.5))
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_layers_below_learn_slower_and_only_matrices_decay() -> None:
    model = build(SMALL)
    groups = group_parameters(Supervised(model), Optimiser(layer_decay=0.5, weight_decay=0.3))
    by_id = {id(p): group for group in groups for p in group["params"]}

    def group_of(name: str) -> dict[str, float]:
        return by_id[id(model.get_parameter(name))]

    assert group_of("head.classes.weight")["scale"] == 1
    assert group_of("blocks.1.mlp.fc1.weight")["scale"] == 0.5
    assert group_of("blocks.0.mlp.fc1.weight")["scale"] == 0.25
    assert group_of("positions.table")["scale"] == 0.125
    assert group_of("blocks.0.mlp.fc1.weight")["weight_decay"] == 0.3
    for name in ("positions.table", "cls", "blocks.0.norm1.weight", "blocks.0.mlp.fc1.bias"):
        assert group_of(name)["weight_decay"] == 0


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    muon, adamw = make_optimisers(Supervised(build(SMALL)), Optimiser(name="muon", lr=0.01))
    assert all(p.ndim == 2 for group in muon.param_groups for p in group["params"])
    assert sum(len(group["params"]) for group in muon.param_groups) == 8
    set_rate([muon, adamw], 0.5)
    assert {group["lr"] for group in (*muon.param_groups, *adamw.param_groups)} == {0.5}


def test_frozen_parameters_are_left_alone() -> None:
    model = build(SMALL)
    freeze(Supervised(model), ("blocks.*", "patches.*"))
    (optimiser,) = make_optimisers(Supervised(model), Optimiser())
    trained = {id(p) for group in optimiser.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in trained}
    assert names == {"cls", "positions.table", "norm.weight", "norm.bias"} | {
        "head.classes.weight", "head.classes.bias",
    }  # fmt: skip
    with pytest.raises(UserError, match="leaves nothing to train"):
        freeze(Supervised(build(SMALL)), ("*",))


def test_the_average_follows() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = EMA(model, 0.9)
    nn.init.ones_(model.weight)
    expected = 0.0
    for step in range(200):
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay)
        assert average.state["weight"].item() == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(1.0, abs=1e-6)


def test_half_precision_is_refused_where_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    with pytest.raises(UserError, match="20 times slower than float32 on this CPU"):
        check_precision("bfloat16", torch.device("cpu"))
    check_precision("float32", torch.device("cpu"))
    check_precision("bfloat16", torch.device("cuda"))


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_bfloat16_is_taken_where_the_cpu_has_it(
    hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == hardware)
    check_precision("bfloat16", torch.device("cpu"))
    with pytest.raises(UserError, match="precision float16 is about 20 times slower"):
        check_precision("float16", torch.device("cpu"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 10, "accumulate": 3}, "must be a divisor of batch_size 10, got 3: use 2"),
        ({"ema_decay": 1.0}, "ema_decay must be above 0 and below 1, got 1.0"),
    ],
)
def test_a_recipe_that_cannot_be(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Recipe(data="x", **values)  # type: ignore[arg-type]


def test_muon_steps_as_torch_has_them() -> None:
    """torch's own computes in bfloat16, so near is what can be asked for."""
    torch.manual_seed(0)
    shapes = [(24, 16), (24, 16), (16, 24)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    mine = Muon([{"params": ours, "weight_decay": 0.1}], lr=0.01)
    other = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    before = [p.detach().clone() for p in ours]
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        mine.step()
        other.step()
    for p, q, start in zip(ours, theirs, before, strict=True):
        moved = (q - start).norm()
        assert (p - q).norm() < 0.03 * moved
        assert moved > 0.1


def test_muon_leaves_a_model_without_matrices_to_adamw() -> None:
    model = build(change(find("mobilevitv2_050"), {"num_classes": 2}))
    (adamw,) = make_optimisers(Supervised(model), Optimiser(name="muon", lr=0.01))
    assert isinstance(adamw, torch.optim.AdamW)
    everything_else = tuple(
        name for name, _ in build(SMALL).named_parameters() if not name.endswith("fc1.weight")
    )
    objective = Supervised(build(SMALL))
    freeze(objective, everything_else)
    (muon,) = make_optimisers(objective, Optimiser(name="muon"))
    assert isinstance(muon, Muon)


@pytest.mark.parametrize("width", [4, 3])  # each part square, or with more rows than columns
def test_muon_takes_queries_keys_and_values_apart(width: int) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(12, width)
    fused, parts = (
        nn.Parameter(torch.zeros(12, width)),
        [nn.Parameter(torch.zeros(4, width)) for _ in "qkv"],
    )
    fused.grad = gradient
    for part, share in zip(parts, gradient.chunk(3), strict=True):
        part.grad = share.clone()
    Muon([{"params": [fused], "parts": 3}], lr=0.1).step()
    Muon([{"params": parts}], lr=0.1).step()
    torch.testing.assert_close(fused.detach(), torch.cat([part.detach() for part in parts]))


def test_muon_takes_many_matrices_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process has the matrices whole that are computed at once."""
    sizes = list[int]()
    orthogonalise = muon.orthogonalise

    def note(matrices: torch.Tensor) -> torch.Tensor:
        sizes.append(matrices.numel())
        return orthogonalise(matrices)

    monkeypatch.setattr(muon, "orthogonalise", note)
    found = []
    for limit in (2**26, 2 * 24 * 16, 10):
        torch.manual_seed(0)
        matrices = [nn.Parameter(torch.randn(24, 16)) for _ in range(5)]
        for matrix in matrices:
            matrix.grad = torch.randn(24, 16)
        monkeypatch.setattr(muon, "MAX_NUMBERS", limit)
        Muon([{"params": matrices}], lr=0.1).step()
        found.append(torch.stack([matrix.detach() for matrix in matrices]))
    assert sizes == [5 * 384, 768, 768, 384, *[384] * 5]
    for parts in found[1:]:
        torch.testing.assert_close(parts, found[0])
