"""Options that have two names: that of the Python argument, and that of older versions or tools."""

import pytest

from vitrail.cli.app import build_parser, main
from vitrail.cli.embed import Embed
from vitrail.cli.export import Export
from vitrail.cli.predict import Predict
from vitrail.cli.train import Train


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_exact_is_said_by_either_name(verb: str) -> None:
    parse, words = build_parser(), [verb, "model", "a.jpg"]
    for option, exact in {"--exact": True, "--fast": False, "--no-exact": False}.items():
        found = parse([*words, option])
        assert isinstance(found, Predict | Embed)
        assert found.exact is exact
    found = parse(words)
    assert isinstance(found, Predict | Embed)
    assert found.exact


@pytest.mark.parametrize("option", ["--from", "--start"])
def test_a_run_starts_from_a_checkpoint_by_either_name(option: str) -> None:
    found = build_parser()(["train", "photos", option, "B_16.npz"])
    assert isinstance(found, Train)
    assert found.start == "B_16.npz"


@pytest.mark.parametrize(
    ("given", "meant"), [("fp32", "float32"), ("fp16", "float16"), ("float16", "float16")]
)
def test_precision_of_an_export_by_either_name(given: str, meant: str) -> None:
    found = build_parser()(["export", "model", "--out", "m.onnx", "--precision", given])
    assert isinstance(found, Export)
    assert found.precision == meant


def test_an_unknown_precision_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "model", "--out", "m.onnx", "--precision", "fp8"]) == 2
    assert "--precision must be one of float32, float16, int8, " in capsys.readouterr().err
