"""bfloat16 on a processor that advertises it and faults: one sentence, and the process lives."""

import sys
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

import vitrail
from tests.inference.photos import small_model
from vitrail import UserError
from vitrail.core import matrix_unit
from vitrail.core.matrix_unit import check_bfloat16, check_int8, product_faults
from vitrail.training.precision import check_precision

FAULT = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """The answer of a process is remembered: none comes in from other tests, and none leaves."""
    product_faults.cache_clear()
    yield
    product_faults.cache_clear()


def advertise(monkeypatch: pytest.MonkeyPatch, *, product: str) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(matrix_unit, "PRODUCT", product)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_processor_that_faults_is_told_before_it_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advertise(monkeypatch, product=FAULT)
    with pytest.raises(UserError, match=r"advertises bfloat16 but faults.*ONEDNN_MAX_CPU_ISA"):
        check_precision("bfloat16", torch.device("cpu"))
    with pytest.raises(UserError, match="use ONNX Runtime"):
        check_int8()
    check_precision("bfloat16", torch.device("cuda"))
    check_precision("float32", torch.device("cpu"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_model_in_bfloat16_is_refused_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    advertise(monkeypatch, product=FAULT)
    photo, model = Image.new("RGB", (32, 32)), small_model()
    with pytest.raises(UserError, match="use float32"):
        vitrail.predict(model, photo, precision="bfloat16")
    with pytest.raises(UserError, match="use float32"):
        vitrail.predict(vitrail.load(model, dtype="bfloat16"), photo)
    vitrail.predict(model, photo)


def test_the_product_is_tried_once_and_only_where_it_is_advertised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for flag in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, flag, lambda: False)
    check_bfloat16()
    check_int8()
    assert product_faults.cache_info().misses == 0
    advertise(monkeypatch, product="raise SystemExit(1)")  # a failure of another kind is no fault
    check_bfloat16()
    check_bfloat16()
    assert product_faults.cache_info().misses == 1


@pytest.mark.slow
def test_the_real_product_agrees_with_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """conftest.py keeps this process from instructions that some virtual machines refuse."""
    advertise(monkeypatch, product=matrix_unit.PRODUCT)
    check_bfloat16()
    ones = torch.ones(64, 64, dtype=torch.bfloat16)
    assert (ones @ ones).sum().item() == 64**3
