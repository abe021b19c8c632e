"""Help and messages in another language: chosen, found by their words, and complete."""

import ast
from pathlib import Path

import pytest

from tools.messages import LOCALE, collect, read_catalogue, sentences_of
from vitrail.cli import language as module
from vitrail.cli.app import main
from vitrail.cli.language import split_language, to_pattern, translate_to


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    token = module._language.set("en")
    yield
    module._language.reset(token)


def test_the_catalogue_has_every_sentence_and_no_other() -> None:
    known = {one.id for one in korean() if one.id}
    assert known == set(collect()), "run python -m tools.messages"


def test_every_sentence_is_translated() -> None:
    assert not [one.id for one in korean() if one.id and not one.string]


def test_a_translation_has_the_values_of_its_sentence() -> None:
    for one in korean():
        if one.id and one.string:
            assert one.string.count("{") == one.id.count("{"), one.id


def test_the_compiled_catalogue_is_the_written_one() -> None:
    written = {str(one.id): str(one.string) for one in korean() if one.id and one.string}
    assert module.read_catalogue("ko") == written, "run python -m tools.messages"


def test_values_are_put_into_a_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"side {} is no multiple of {}: {}": "{1}의 배수가 아닌 변 {0}: {2}", "use {}": "{} 사용"}
    monkeypatch.setattr(module, "read_catalogue", lambda language: known)
    module.patterns.cache_clear()
    try:
        found = translate_to("xx", "side 225 is no multiple of 16: use 224")
    finally:
        module.patterns.cache_clear()
    assert found == "16의 배수가 아닌 변 225: 224 사용"


def test_sentences_of_errors_are_found_in_the_source() -> None:
    code = 'raise UserError(f"{a} must be {b:.2f}, " f"got {c!r}" if d else "none")'
    assert list(sentences_of(ast.parse(code))) == ["{} must be {}, got {}", "none"]


def test_a_pattern_matches_the_whole_sentence() -> None:
    assert to_pattern("got {}: use (a)").fullmatch("got 2: use (a)")
    assert not to_pattern("got {}").fullmatch("I got 2")


@pytest.mark.parametrize(
    ("words", "environment", "language"),
    [
        (["info", "--lang", "ko"], {"LANG": "C.UTF-8"}, "ko"),
        (["--lang=en", "info"], {"LANG": "ko_KR.UTF-8"}, "en"),
        (["info"], {"LC_ALL": "ko_KR.UTF-8", "LANG": "C"}, "ko"),
        (["info"], {"LC_ALL": "", "LANG": "ko"}, "ko"),
        (["info"], {"LANG": "fr_FR.UTF-8"}, "en"),
        (["info"], {}, "en"),
    ],
)
def test_the_language_is_the_options_or_the_systems(
    words: list[str], environment: dict[str, str], language: str
) -> None:
    assert split_language(words, environment) == (language, ["info"])


def test_an_unknown_language_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--lang", "kr"]) == 2
    assert "--lang must name a language, got 'kr'" in capsys.readouterr().err


def test_help_and_errors_are_korean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--lang", "ko", "--help"]) == 0
    assert any("가" <= letter <= "힣" for letter in capsys.readouterr().out)
    assert main(["info", "vit_b16", "--lang", "ko"]) == 2
    error = capsys.readouterr().err
    assert "vit_b_16" in error
    assert any("가" <= letter <= "힣" for letter in error)


def test_a_wheel_has_the_catalogues() -> None:
    assert (Path(LOCALE) / "ko" / "LC_MESSAGES" / "vitrail.mo").exists()


def korean() -> list:
    return list(read_catalogue(LOCALE / "ko" / "LC_MESSAGES" / "vitrail.po", "ko"))
