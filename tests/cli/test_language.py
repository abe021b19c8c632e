"""Help and messages in another language: chosen, found by their words, and complete."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from babel.messages.catalog import Message
from tools.messages import FORMS, collect, read_catalogue, sentences_of
from tools.page_texts import collect_page_texts

from vitrail.cli import app
from vitrail.cli import language as module
from vitrail.cli.app import VERBS, main, to_options
from vitrail.cli.language import (
    LOCALE,
    PAGE,
    VALUE,
    split_language,
    to_pattern,
    translate,
    translate_to,
)
from vitrail.cli.output import note
from vitrail.core.passport import Preprocessing
from vitrail.explanation.verdict import Verdict
from vitrail.tasks.evaluation import preprocessing_sentence

GLUED = re.compile(r'[a-z_]+=(?:"[^"]*"|\([^()]*\)|\w[\w.]*?)(?=[가-힣])')


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in module.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    module.use_language("en")
    yield
    module.use_language("en")


@pytest.mark.parametrize("context", [None, PAGE])
def test_the_catalogue_has_every_sentence_and_no_other(context: str | None) -> None:
    known = {one.id for one in korean() if one.id and one.context == context}
    wanted = collect() if context is None else collect_page_texts()
    assert known == set(wanted), "run python -m tools.messages"


@pytest.mark.parametrize("command", [["models", "vit_ti*"], ["train", "nowhere"]])
def test_a_command_leaves_the_language_of_its_caller(command: list[str]) -> None:
    main([*command, "--lang", "ko"])
    assert module.current_language() == "en"


def test_the_longest_sentence_is_the_one_that_is_translated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "nowhere", "--lang", "ko"]) == 2
    printed = capsys.readouterr().err
    assert "데이터" in printed
    assert not re.search("expected|such|directory", printed)


def test_every_entry_is_a_sentence_or_a_text_of_pages() -> None:
    assert {one.context for one in korean() if one.id} == {None, PAGE}


def test_every_sentence_is_translated() -> None:
    assert not [one.id for one in korean() if one.id and not one.string]


def test_a_translation_has_the_values_of_its_sentence() -> None:
    for one in korean():
        text, translation = str(one.id), str(one.string)
        values = [f"<{place}>" for place in range(text.count(VALUE))]
        if values and translation:
            filled = translation.format(*values)
            assert all(filled.count(value) == 1 for value in values), text


def test_arguments_with_values_stand_apart_from_particles() -> None:
    """`name=value을` would not be renamed to the option of the shell."""
    for one in korean():
        assert not GLUED.search(str(one.string)), one.id


def test_the_compiled_catalogue_is_the_written_one() -> None:
    sentences, page_texts = (
        {str(one.id): str(one.string) for one in korean() if one.id and one.context == context}
        for context in (None, PAGE)
    )
    assert module.read_catalogue("ko") == sentences, "run python -m tools.messages"
    assert module.read_page_texts("ko") == page_texts, "run python -m tools.messages"


def test_values_are_put_into_a_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "side {} is no multiple of {}: {}": "{1}의 배수가 아닌 변 {0}: {2}",
        "use {}": "{} 사용",
    }
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", ["", *(verb.__name__ for verb in VERBS.values())])
def test_the_help_of_a_verb_has_no_english_text(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: dict[str, str] = {}

    def remember(text: str) -> str:
        return printed.setdefault(text, translate(text))

    monkeypatch.setattr(app, "translate", remember)
    assert main([*verb.split(), "--lang", "ko", "--help"]) == 0
    assert is_korean(capsys.readouterr().out)
    assert len(printed) > 5
    assert not [text for text, shown in printed.items() if text and not is_korean(shown)]


def test_marks_of_options_are_korean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["predict", "--help", "--lang", "ko"]) == 0
    korean_help = capsys.readouterr().out
    assert "[기본값: 8]" in korean_help
    assert "[선택: float16, bfloat16" in korean_help
    assert main(["predict", "--help", "--lang", "en"]) == 0
    english_help = capsys.readouterr().out
    assert "[default: 8]" in english_help
    assert not is_korean(english_help)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("english", "translated"),
    [
        (
            "image side 225 is not a multiple of patch 16: use 224 or 240",
            "이미지의 변 225은(는) 패치 16의 배수가 아닙니다. 224 또는 240을(를) 사용하세요",
        ),
        (
            "unknown model 'vit_b16', did you mean vit_b_16?",
            "알 수 없는 모델 'vit_b16'. vit_b_16을(를) 뜻하셨나요?",
        ),
        (
            "data: holds 3 files beside train: move it into a split",
            "data: train 옆에 3 files이(가) 있습니다. 분할 안으로 옮기세요",
        ),
        (
            "smoothing must be at least 0 and below 1, got 2",
            "smoothing은(는) 0 이상 1 미만이어야 합니다 (받은 값: 2)",
        ),
        (
            "recipe: optimiser.lr must be a valid number, got 'x'",
            "recipe: optimiser.lr은(는) 수여야 합니다 (받은 값: 'x')",
        ),
        (
            "recipe: optimiser.name must be 'adamw', 'sgd' or 'muon', got 'a'",
            "recipe: optimiser.name은(는) 'adamw', 'sgd' 또는 'muon'이어야 합니다 (받은 값: 'a')",
        ),
        (
            "runs/a: config.json: unknown field 'dimm', did you mean dim?",
            "runs/a: config.json: 알 수 없는 필드 'dimm'. dim을(를) 뜻하셨나요?",
        ),
        (
            'Unknown option: --bach. Did you mean "--batch-size"? (see vitrail predict --help)',
            '알 수 없는 옵션: --bach. "--batch-size"을(를) 뜻하셨나요? '
            "(vitrail predict --help 참고)",
        ),
    ],
)
def test_errors_with_several_values(english: str, translated: str) -> None:
    assert translate_to("ko", english) == translated


@pytest.mark.parametrize(
    ("english", "shown"),
    [
        (
            "batch_size must be at least 1, got 0",
            "--batch-size은(는) 1 이상이어야 합니다 (받은 값: 0)",
        ),
        (
            "a.csv: already exists: choose another name, or pass overwrite=True",
            "a.csv: 이미 있습니다. 다른 이름을 고르거나 --overwrite 를 지정하세요",
        ),
        (
            "x.pth: its attention works on a grid of 7x9: give grid=(rows, columns)",
            "x.pth: 어텐션이 7x9 격자에서 동작합니다. --grid ROWSxCOLUMNS 를 지정하세요",
        ),
    ],
)
def test_arguments_become_options_in_korean_too(english: str, shown: str) -> None:
    assert to_options(translate_to("ko", english), ["predict"]) == shown


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("contrast", [0.25, 0.01, -0.1])
@pytest.mark.parametrize("p_value", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("correlation", [0.2, 0.6, 0.8])
def test_a_verdict_has_no_english_word(
    images: int, contrast: float, p_value: float, correlation: float
) -> None:
    verdict = Verdict(
        images=images,
        score=0.9,
        deletion=0.2,
        insertion=0.7,
        contrast=contrast,
        orders=12,
        p_value=p_value,
        adjusted_p_value=2 * p_value,
        head_correlation=0.995,
        correlation=correlation,
    )
    for sentence in (verdict.sentence, *verdict.reasons):
        assert not english_words(translate_to("ko", sentence)), sentence


@pytest.mark.parametrize(
    "how",
    [
        Preprocessing(size=(32, 32)),
        Preprocessing(size=(224, 224), resize=(256, 256)),
        Preprocessing(size=(224, 224), resize=(256, 256), squeeze=True),
    ],
)
def test_the_preprocessing_is_korean_except_for_names(how: Preprocessing) -> None:
    found = translate_to("ko", preprocessing_sentence(how))
    assert english_words(found) == ["bilinear"]


@pytest.mark.parametrize(
    ("english", "translated"),
    [
        (
            "accuracy 25.0% may still be chance: always predicting 'a' gives 24.0%; train longer "
            "or on more images, or start from a checkpoint",
            "정확도 25.0%는 아직 우연일 수 있습니다. 항상 'a'(으)로 예측해도 24.0%입니다. 더 오래 "
            "또는 더 많은 이미지로 학습하세요. 체크포인트에서 시작할 수도 있습니다",
        ),
        (
            "only 7 of 50 classes are ever predicted: 'a', 'b', 'c', 'd', 'e' and 2 more",
            "클래스 50개 가운데 7개만 예측됩니다: 'a', 'b', 'c', 'd', 'e' 외 2개",
        ),
        (
            "interrupted at step 3 of 1,000; resume continues from there. No weights were "
            "evaluated before that.",
            "1,000스텝 중 3스텝에서 중단되었습니다. 재개하면 거기서 이어집니다. "
            "그 전에 평가된 가중치는 없습니다.",
        ),
        (
            "Prediction: cat (93.1%). Explained: dog (3.0%).",
            "예측: cat (93.1%). 설명한 클래스: dog (3.0%).",
        ),
        (
            "12 epochs, as requested (the default here is 20 epochs)",
            "요청한 대로 12에폭 (여기서 기본값은 20에폭)",
        ),
        (
            "ViT (custom), 594,434 parameters, 32x32 pixels, patch 16, dim 192",
            "ViT (custom), 파라미터 594,434개, 32x32픽셀, 패치 16, dim 192",
        ),
        ("photos/a.jpg: the file is empty", "photos/a.jpg: 파일이 비어 있습니다"),
    ],
)
def test_sentences_that_are_put_together(english: str, translated: str) -> None:
    assert translate_to("ko", english) == translated


def test_what_is_looked_up_by_its_forms_is_no_entry_itself() -> None:
    assert not FORMS.keys() & collect().keys()


def test_errors_are_korean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "vit_b16", "--lang", "ko"]) == 2
    error = capsys.readouterr().err
    assert "vit_b_16" in error
    assert is_korean(error)


def test_an_error_in_json_is_in_the_language_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["predict", "no-model", "no.jpg", "--lang", "ko", "--json"]) == 2
    found = json.loads(capsys.readouterr().err)
    assert found["code"] == 2
    assert is_korean(found["error"])
    assert "no.jpg" in found["error"]


def test_a_note_is_in_the_chosen_language(capsys: pytest.CaptureFixture[str]) -> None:
    module.use_language("ko")
    note("16 tokens are merged in every block: measured to be 1.82 times as fast with eager")
    assert capsys.readouterr().err == (
        "블록마다 토큰 16개를 병합합니다. eager 엔진에서 1.82배 빠른 것으로 측정되었습니다\n"
    )


def test_a_wheel_has_the_catalogues() -> None:
    assert (Path(LOCALE) / "ko" / "LC_MESSAGES" / "vitrail.mo").exists()


def is_korean(text: str) -> bool:
    return any("가" <= letter <= "힣" for letter in text)


def english_words(text: str) -> list[str]:
    return [word for word in re.findall(r"[A-Za-z]+", text) if len(word) > 1]


@cache
def korean() -> list[Message]:
    return list(read_catalogue(LOCALE / "ko" / "LC_MESSAGES" / "vitrail.po", "ko"))
