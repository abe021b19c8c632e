"""`vitrail check` as a person uses it: from the shell, from Python, with bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import vitrail
from tests.zoo.mistakes import MISTAKES
from tests.zoo.styles import STYLES
from vitrail import UserError, check
from vitrail.cli.app import main
from vitrail.tasks.check import sizes_of_positions

SCALE = next(one for one in MISTAKES if str(one) == "scale_dim-einops_blocks")


def test_the_shell_prints_the_verdict_and_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SCALE.plant(tmp_path)
    assert main(["check", spec]) == 0
    out, err = capsys.readouterr()
    assert err == f"running {spec.removesuffix(':ViT')}: your own code, with your permissions\n"
    lines = out.splitlines()
    assert "1 mistake:" in lines
    assert any("<- first difference" in line and "block 0 scores" in line for line in lines)
    assert not any("block 1" in line for line in lines)
    assert main(["check", spec, "--lang", "ko", "-v"]) == 0
    out, _ = capsys.readouterr()
    assert "실수 1개를 찾았습니다:" in out
    assert "블록 1 점수" in out


def test_json_is_what_python_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = SCALE.plant(tmp_path)
    words = ["check", spec, "--args", "dim=32", "heads=2", "--lang", "ko", "--json", "-q"]
    assert main([*words, "--against", "vit_ti_16"]) == 0
    out, err = capsys.readouterr()
    found = check(spec, args={"dim": 32, "heads": 2}, lang="ko", against="vit_ti_16")
    assert json.loads(out) == found.facts()
    assert err == ""
    assert found.facts()["verdict"] == "mistake"
    assert found.facts()["sizes"]["dim"] == 32


def test_against_a_model_compares_sizes_and_choices(tmp_path: Path) -> None:
    found = check(STYLES["fused_qkv"].spec, against="vit_ti_16")
    sizes = {one.values["field"]: one.values for one in found.differences if one.code == "size"}
    assert set(sizes) == {
        "dim", "depth", "heads", "mlp_dim", "patch_size", "image_size", "num_classes",
    }  # fmt: skip
    assert (sizes["depth"]["yours"], sizes["depth"]["theirs"]) == (3, 12)
    assert "  - heads = 4. vit_ti_16: 3" in replace(found, language="ko").summary()
    fields = {"image_size": 32, "patch_size": 8, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 256}
    made = vitrail.create("vit_ti_16", num_classes=10, activation="gelu_tanh", **fields)
    saved = vitrail.save(made, tmp_path / "saved")
    found = check(STYLES["fused_qkv"].spec, against=saved)
    assert [one.code for one in found.differences] == ["activation"]
    assert "GELU in its tanh approximation" in found.sentence(found.differences[0])


def test_a_module_in_memory_keeps_its_weights_and_mode() -> None:
    model = STYLES["multihead_attention"].build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    found = check(model)
    assert found.verdict == "right"
    assert found.source == "VisionTransformer"
    assert found.inspection.steps[-1].line is not None  # of the file that its class is in
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert check(model.half()).verdict == "right"
    assert check(AveragedModel(STYLES["fused_qkv"].build())).verdict == "right"


def test_checking_a_file_leaves_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    check(STYLES["fused_qkv"].spec)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_record_prints_well(tmp_path: Path) -> None:
    found = check(SCALE.plant(tmp_path))
    assert repr(found).endswith(":ViT: mistake, scale_dim)")
    assert found._repr_html_().startswith("<pre>")
    assert "&quot;b h i d" in found._repr_html_()


class Cnn(nn.Sequential):
    def __init__(self) -> None:
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *pool, nn.Linear(8, 4))


class Tokens(nn.Module):
    """Returns what is no row of logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.model = kind, STYLES["fused_qkv"].build()

    def forward(self, x: torch.Tensor) -> object:
        logits = self.model(x)
        kinds = {"shape": logits[:, None], "none": None, "pair": (logits, None)}
        return {**kinds, "bool": logits > 0, "whole": logits.long(), "empty": logits[:, :0]}[
            self.kind
        ]


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # the line of the message


def test_what_is_no_vit_is_refused() -> None:
    with pytest.raises(UserError, match=r"2 convolutions and no attention.*nearest family: resnet"):
        check(Cnn())
    with pytest.raises(UserError, match=r"nearest family: swin"):
        check(vitrail.create("swin_t", image_size=64, window_size=4, dim=12, heads=(1, 1, 1, 1)))
    with pytest.raises(UserError, match=r"this module has no attention"):
        check(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)))
    sizes = {"image_size": 32, "dim": 32, "heads": 2, "depth": 1, "mlp_dim": 32}
    with pytest.raises(UserError, match=r"nearest family: beit"):
        check(vitrail.create("beit_b_16", **sizes))


def test_outputs_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(UserError, match=r"must be logits .* got shape \(2, 1, 10\): let forward"):
        check(Tokens("shape"))
    with pytest.raises(UserError, match=r"got a NoneType: let forward return"):
        check(Tokens("none"))
    with pytest.raises(UserError, match=r"got shape \(2, 10\) of torch.bool: let forward"):
        check(Tokens("bool"))
    with pytest.raises(UserError, match=r"got shape \(2, 10\) of torch.int64: let forward"):
        check(Tokens("whole"))
    with pytest.raises(UserError, match=r"got shape \(2, 0\): let forward"):
        check(Tokens("empty"))
    assert check(Tokens("pair")).verdict == "right"


def test_parameters_that_are_whole_numbers_stay_as_they_are() -> None:
    model = STYLES["fused_qkv"].build()
    model.steps = nn.Parameter(torch.arange(4), requires_grad=False)
    assert check(model).inspection.reproduced < 1e-6


def test_an_error_of_their_forward_is_one_sentence_with_its_line() -> None:
    match = r"the forward pass failed: RuntimeError: mat1 .*test_check.py, line \d+: return self"
    with pytest.raises(UserError, match=match):
        check(Raises())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{spec}", "--args", "dim"], "--args must be name=value, such as dim=64, got 'dim'"),
        (["{spec}", "--args", "dmi=3"], "ViT has no argument 'dmi', did you mean dim?"),
        (["{spec}", "--against", "resnet"], "resnet"),
        (["{spec}", "--against", "swin_t"], "--against must be a ViT, such as vit_b_16"),
        (["{spec}", "--image-size", "31"], "the forward pass failed"),
        (["{spec}", "--lang", "fr"], "--lang"),
        (["vit_b_16"], "check reads FILE.py:CLASS, such as my_model.py:ViT"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = STYLES["einops_blocks"].spec
    assert main(["check", "-q", *(word.format(spec=spec) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert (out, err.count("\n")) == ("", 1)


def test_the_size_of_images_follows_from_positions() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 4, stride=4)
            self.rows = nn.Parameter(torch.zeros(1, 26, 8))

    assert (20, 20) in sizes_of_positions(Table())
    for wrong in (0, -3, "abc", (1, 2, 3)):
        with pytest.raises(UserError, match="image_size must be one or two numbers"):
            check(Table(), image_size=wrong)  # type: ignore[arg-type]
