"""`vitrail adopt` as a person meets it: what it prints, asks for, refuses and writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.zoo.styles import STYLES
from torch import nn

import vitrail
from vitrail.cli.app import main

EINOPS = STYLES["einops_blocks"]


@pytest.fixture
def my_pth(tmp_path: Path) -> Path:
    path = tmp_path / "my.pth"
    torch.save(EINOPS.build().state_dict(), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(list(map(str, words)))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_bare_file_asks_for_heads_then_is_adopted(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    code, _, said = run(capsys, "adopt", my_pth, "--out", out)
    assert code == 2
    assert said.strip().endswith("give --heads N, or the model's code")
    assert not out.exists()
    code, printed, _ = run(capsys, "adopt", my_pth, "--heads", 4, "--out", out)
    assert code == 0
    assert "not proved: give the code of the model to compare with it" in printed
    assert "assumed: LayerNorm eps 1e-05" in printed
    assert "transformer.layers.{i}.0.branch.norm.{p}" in (out / "rows.yaml").read_text("utf-8")
    model = vitrail.load(out)
    assert model.passport.origin.dialect == "adopted"
    assert model.passport.origin.source == "my.pth"
    changes = model.passport.origin.changes
    assert "assumed: pooling: cls" in changes
    resized = "assumed: images resized to the image size without cropping"
    assert f"{resized}, values in [-1, 1]" in changes
    words = ("--heads", 4, "--mean", 0.4, "--std", 0.3, "--dry-run")
    assert f"{resized}\n" in run(capsys, "adopt", my_pth, *words)[1]


def test_code_is_announced_before_it_runs_and_proves_equality(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code_file = tmp_path / "my_model.py"
    text = EINOPS.path.read_text(encoding="utf-8")
    code_file.write_text(f"{text}\nprint('it runs')\n", encoding="utf-8")
    out = tmp_path / "mine"
    code, printed, said = run(
        capsys, "adopt", my_pth, "--code", f"{code_file}:ViT", "--out", out, "--json"
    )
    assert code == 0
    facts = json.loads(printed)
    assert facts["proof"]["images"] == 2
    assert facts["proof"]["largest_difference"] <= 1e-9 * facts["proof"]["largest_logit"]
    assert facts["sources"]["heads"] == "module"
    notice, first = said.index("your own code"), said.index("it runs")
    assert notice < first
    images = torch.randn(2, 3, 32, 32)
    theirs = EINOPS.build()(images)
    torch.testing.assert_close(vitrail.load(out)(images), theirs, rtol=1e-4, atol=1e-5)


CLASS = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self, image_size, patch_size, dim, depth, heads, num_classes):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch_size, patch_size)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2 + 1, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.encoder(x)[:, 0])
"""


def named_file(tmp_path: Path) -> Path:
    (tmp_path / "named.py").write_text(CLASS, encoding="utf-8")
    space: dict[str, Any] = {}
    exec(CLASS, space)
    model = space["Named"](32, 8, 16, 2, 2, 5)
    torch.save(model.state_dict(), tmp_path / "named.pth")
    return tmp_path / "named.pth"


def test_a_class_that_needs_arguments_asks_for_them_with_the_sizes_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, spec = named_file(tmp_path), tmp_path / "mine", f"{tmp_path / 'named.py'}:Named"
    code, _, said = run(capsys, "adopt", file, "--code", spec, "--out", out)
    assert code == 2
    asked = "--args image_size=32 patch_size=8 dim=16 depth=2 heads=… num_classes=5"
    assert said.splitlines()[-1].endswith(asked)
    assert not out.exists()
    words = ["--args", *asked.replace("…", "2").split()[1:]]
    code, printed, _ = run(capsys, "adopt", file, "--code", spec, *words, "--out", out)
    assert code == 0
    assert "equal: 2 images" in printed
    wrong = ["--args", *asked.replace("…", "2").replace("dim=16", "dim=32").split()[1:]]
    code, _, said = run(capsys, "adopt", file, "--code", spec, *wrong, "--out", tmp_path / "no")
    assert code == 2
    assert "(it has image_size 32, patch_size 8, dim 16, depth 2" in said
    code, _, said = run(capsys, "adopt", file, "--code", spec, "--args", "dim", "--out", "no")
    assert (code, "--args must be name=value" in said) == (2, True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", ["model", "state_dict", "net", "ema", "model_state_dict"])
def test_a_training_checkpoint_is_unwrapped_and_that_is_said(
    entry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = "_orig_mod.module." if entry == "model" else ""
    state = {f"{prefix}{name}": one for name, one in EINOPS.build().state_dict().items()}
    wrapped = {entry: state, "optimizer": {"state": {}, "param_groups": []}, "epoch": 3}
    torch.save(wrapped, tmp_path / "last.pth")
    code, printed, _ = run(
        capsys, "adopt", tmp_path / "last.pth", "--heads", 4, "--out", tmp_path / "mine"
    )
    assert code == 0
    assert f"unwrapped: read from its entry {entry}, beside optimizer, epoch" in printed
    assert (f"unwrapped: names without the prefix {prefix}" in printed) == bool(prefix)


class NoViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(5)))


def test_bad_input_is_one_sentence_and_writes_nothing(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(NoViT().state_dict(), tmp_path / "cnn.pth")
    torch.save(EINOPS.build(), tmp_path / "pickled.pth")
    (tmp_path / "broken.yaml").write_text("rows: [{theirs: a, our: b}]", encoding="utf-8")
    (tmp_path / "random.yaml").write_text("[1, 2", encoding="utf-8")
    out = tmp_path / "mine"
    cases: list[tuple[tuple[object, ...], str]] = [
        ((my_pth,), "missing --out DIR"),
        ((tmp_path / "cnn.pth", "--out", out), "looks like a ResNet, of no known dialect: adopt"),
        ((tmp_path / "none.pth", "--out", out), "no such file"),
        ((tmp_path / "pickled.pth", "--out", out), "save model.state_dict() instead"),
        ((my_pth, "--heads", 5, "--out", out), "64 attention channels do not make 5 heads"),
        ((my_pth, "--heads", 4, "--set", "dim=3", "--out", out), "dim cannot be given to adopt"),
        ((my_pth, "--heads", 4, "--set", "activation=swish", "--out", out), "activation must be"),
        ((my_pth, "--args", "a=1", "--out", out), "--args must come with code"),
        ((my_pth, "--code", "nowhere.py:ViT", "--out", out), "nowhere.py: cannot be read"),
        ((my_pth, "--code", f"{EINOPS.path}:Vit", "--out", out), "has no class Vit"),
        ((my_pth, "--rows", tmp_path / "broken.yaml", "--out", out), "unknown key 'our'"),
        ((my_pth, "--rows", tmp_path / "random.yaml", "--out", out), "cannot be read as YAML"),
        ((my_pth, "--heads", 4, "--out", tmp_path / "mine.pth"), "is a directory"),
        ((my_pth, "--heads", 4, "--out", tmp_path), "already exists"),
        ((my_pth, "--heads", 4, "--labels", "a", "b", "--out", out), "labels must be 10 names"),
        ((my_pth, "--heads", 4, "--mean", "1,2", "--out", out), "must have 1 or 3 numbers"),
        ((EINOPS.path, "--out", out), "expected a file of tensors"),
    ]
    for words, sentence in cases:
        code, printed, said = run(capsys, "adopt", *words)
        assert (code, printed) == (2, ""), words
        assert sentence in said, words
        assert not out.exists()


def test_edited_rows_are_used_and_are_a_dialect(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adopt, edit, adopt again, write the names back, read them by the rows."""
    out, rows = tmp_path / "mine", tmp_path / "edited.yaml"
    assert run(capsys, "adopt", my_pth, "--heads", 4, "--out", out)[0] == 0
    text = (out / "rows.yaml").read_text(encoding="utf-8")
    rows.write_text(text.replace("heads: 4", "heads: 8"), encoding="utf-8")
    edited = tmp_path / "edited"
    assert run(capsys, "adopt", my_pth, "--rows", rows, "--out", edited)[0] == 0
    assert vitrail.load(edited).config.heads == 8
    code, _, said = run(
        capsys, "adopt", my_pth, "--rows", rows, "--code", EINOPS.spec, "--out", tmp_path / "no"
    )
    assert code == 2
    assert "blocks.0: the attention" in said
    back = tmp_path / "back.pth"
    code, printed, _ = run(capsys, "convert", out, back, "--to", out / "rows.yaml")
    assert code == 0
    named = "its names are those of no known dialect: to load it later, give --dialect "
    named += str(out / "rows.yaml")
    assert f"caution: {named}" in printed
    before, after = (torch.load(path, weights_only=True) for path in (my_pth, back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    images = torch.randn(1, 3, 32, 32)
    read = vitrail.load(my_pth, dialect=str(out / "rows.yaml"))
    assert torch.equal(read(images), vitrail.load(out)(images))


def test_a_dry_run_prints_the_rows_and_writes_nothing(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    code, printed, _ = run(capsys, "adopt", my_pth, "--heads", 4, "--out", out, "--dry-run")
    assert code == 0
    assert "\nconfig:\n" in printed
    assert "\nrows:\n- theirs: " in printed
    assert not out.exists()
    assert run(capsys, "adopt", my_pth, "--heads", 4, "--dry-run")[0] == 0


def test_labels_mean_and_images_go_with_the_model(
    my_pth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"kind {n}" for n in range(10)), encoding="utf-8")
    out = tmp_path / "mine"
    words = ("--mean", "0.4", "--std", "0.2,0.2,0.3", "--labels", labels, "--out", out)
    assert run(capsys, "adopt", my_pth, "--heads", 4, *words)[0] == 0
    passport = vitrail.load(out).passport
    assert passport.preprocessing.mean == (0.4, 0.4, 0.4)
    assert passport.preprocessing.std == (0.2, 0.2, 0.3)
    assert passport.labels is not None
    assert passport.labels[3] == "kind 3"
    assert not [note for note in passport.origin.changes if "[-1, 1]" in note]


def test_a_module_in_memory_is_its_own_code(tmp_path: Path) -> None:
    done = vitrail.adopt(STYLES["korean_tutorial"].build(), tmp_path / "mine")
    assert done.match.proof is not None
    assert done.model.config == vitrail.load(tmp_path / "mine").config
    with pytest.raises(vitrail.UserError, match="a Vitrail model already"):
        vitrail.adopt(done.model)
    with pytest.raises(vitrail.UserError, match="a Vitrail checkpoint already"):
        vitrail.adopt(tmp_path / "mine")
    with pytest.raises(vitrail.UserError, match="is its own code"):
        vitrail.adopt(EINOPS.build(), code=EINOPS.spec)
    with pytest.raises(vitrail.UserError, match=r"source must be .* got dict"):
        vitrail.adopt({})  # type: ignore[arg-type]


# what it becomes is a ViT like others, which tests/exporters exports quickly
@pytest.mark.parametrize("exported", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_adopted_model_is_explained_and_exported(exported: bool, tmp_path: Path) -> None:
    done = vitrail.adopt(STYLES["encoder_post_norm"].build(), tmp_path / "mine")
    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 40), (200, 30, 30)).save(photo)
    why = vitrail.explain(done.model, photo, method="attention", verdict=False)
    assert why.facts()
    if exported:
        vitrail.export(tmp_path / "mine", tmp_path / "mine.onnx", images=photo)
        assert (tmp_path / "mine.onnx").is_file()
    predicted = vitrail.predict(tmp_path / "mine", photo, top=2)
    assert predicted.facts()
