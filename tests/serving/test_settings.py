"""Settings: names of models, hosts, keys; and the command line that makes them."""

from pathlib import Path
from typing import Any

import pytest

from vitrail.cli.app import main
from vitrail.core.errors import UserError
from vitrail.serving.keys import key_of, parse_keys, read_keys
from vitrail.serving.settings import Settings, Source, parse_source, parse_sources


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("runs/pets/best", "pets", "runs/pets/best"),
        ("runs/pets/last/", "pets", "runs/pets/last/"),
        ("pets.onnx", "pets", "pets.onnx"),
        ("cats=runs/pets/best", "cats", "runs/pets/best"),
        ("../models/B_16.npz", "B_16", "../models/B_16.npz"),
        ("best", "best", "best"),
        ("a dir=x/y", "y", "a dir=x/y"),
        ("m=a=b", "m", "a=b"),
        ("고양이", "model", "고양이"),
    ],
)
def test_a_model_has_a_name(text: str, name: str, path: str) -> None:
    assert parse_source(text) == Source(name, path)


def test_a_model_behind_an_address_is_not_served() -> None:
    with pytest.raises(UserError, match="give its checkpoint"):
        parse_source("pets=http://127.0.0.1:9/models/pets")


def test_two_models_have_two_names() -> None:
    with pytest.raises(UserError, match="give NAME=PATH"):
        parse_sources(("a/pets", "b/pets"), "models")
    with pytest.raises(UserError, match="PATH or NAME=PATH"):
        parse_source("pets=")


@pytest.mark.parametrize(
    "options",
    [
        {"models": ()},
        {"standby": (Source("pets", "others"),)},
        {"port": 70_000},
        {"workers": 0},
        {"threads": 0},
        {"batch_size": 0},
        {"max_wait_ms": -1},
        {"queue": 0},
        {"timeout": 0},
        {"window": float("nan")},
        {"allow_host": ("http://x",)},
        {"allow_host": ("*.example.org",)},
        {"allow_host": ("Example.org",)},
        {"trusted_host": ("a b",)},
    ],
)
def test_settings_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Settings(**{"models": (Source("pets", "pets"),), **options})


def test_a_service_is_local_unless_told_otherwise() -> None:
    models = (Source("pets", "pets"),)
    assert Settings(models=models).is_local
    assert not Settings(models=models, host="0.0.0.0").is_local


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["short"], "at least 16"),
        (["0123456789abcdef owner"], "the word admin"),
        (["# nothing", ""], "holds no API key"),
        (["열여섯글자보다더긴열쇠하나입니다요"], "printable ASCII"),
    ],
)
def test_keys_are_checked(lines: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_keys(lines, where="keys.txt")


def test_a_file_of_keys_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_a_file_of_keys_is_read_as_it_is_meant(tmp_path: Path) -> None:
    """A mark of Windows' editors is no part of the first key, and # is one within a key."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf0123456789abcdef # of a colleague\r\nfedcba9876543210#x admin\n")
    keys = read_keys(file)
    assert keys.role("0123456789abcdef") == "user"
    assert keys.role("fedcba9876543210#x") == "admin"
    assert keys.role("fedcba9876543210") is None


def test_a_key_is_in_one_of_two_headers() -> None:
    assert key_of([(b"authorization", b"bearer abc ")]) == "abc"
    assert key_of([(b"x-api-key", b"abc")]) == "abc"
    assert key_of([(b"authorization", b"Basic abc")]) is None
    assert parse_keys(["0123456789abcdef"], where="").role(None) is None


def test_the_command_line_refuses_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "pets", "--port", "70000"]) == 2
    assert "--port must be" in capsys.readouterr().err
    assert main(["serve", "a/pets", "b/pets"]) == 2
    assert main(["serve", "pets", "--max-images", "0"]) == 2
    assert main(["serve", "pets", "--api-key-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
