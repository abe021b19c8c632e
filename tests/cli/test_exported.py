"""The quick way of `vitrail predict` with an exported file parses as all verbs do."""

from dataclasses import fields

import pytest

from vitrail.cli.app import build_parser
from vitrail.cli.exported import ExportedPredict, parse_exported
from vitrail.cli.predict import Predict

PLAIN = [
    "predict m.onnx a.jpg",
    "predict M.ONNX a.jpg b.jpg",
    "predict m.xml a.jpg --top 3 b.jpg",
    "predict --json m.onnx a.jpg",
    "predict m.onnx --batch-size=2 a.jpg --threads 1",
    "predict m.onnx a.jpg --top 0",
    "predict m.onnx photos/*.jpg --json --top=10",
]
LEFT = [
    "predict m.onnx",
    "predict",
    "",
    "predict model a.jpg",
    "embed m.onnx a.jpg",
    "--json predict m.onnx a.jpg",
    "predict m.onnx a.jpg --fast",
    "predict m.onnx a.jpg --out x.csv",
    "predict m.onnx -",
    "predict m.onnx a.jpg -q",
    "predict m.onnx a.jpg --top",
    "predict m.onnx a.jpg --top -1",
    "predict m.onnx a.jpg --top 2.5",
    "predict m.onnx a.jpg --top ٣",
    "predict m.onnx a.jpg --top 1 --top 2",
    "predict m.onnx a.jpg --json=false",
    "predict m.onnx a.jpg --help",
    "predict m.onnx -- a.jpg",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_command_line_is_parsed_as_by_the_parser_of_all_verbs(line: str) -> None:
    quick, full = parse_exported(line.split()), build_parser()(line.split())
    assert quick is not None
    assert isinstance(full, Predict)
    names = {field.name for field in fields(ExportedPredict)}
    assert {name: getattr(full, name) for name in names} == vars(quick)
    defaults = Predict("m.onnx", ("a.jpg",))
    other = {field.name for field in fields(Predict)} - names
    assert {name: getattr(full, name) for name in other} == {
        name: getattr(defaults, name) for name in other
    }


@pytest.mark.parametrize("line", LEFT)
def test_anything_else_is_left_to_that_parser(line: str) -> None:
    assert parse_exported(line.split()) is None
