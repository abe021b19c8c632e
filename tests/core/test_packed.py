"""Packed arrays: what is written is read again, aligned, and nothing else is accepted."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from vitrail.core.errors import UserError
from vitrail.core.packed import DTYPES, Packed, compress, unpack

ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
    ),
    max_size=4,
)


@given(arrays=ARRAYS, note=st.text())
def test_what_is_written_is_read_again(arrays: dict[str, np.ndarray], note: str) -> None:
    again = unpack(Packed({"note": note}, arrays).to_bytes())
    assert again.header == {"note": note}
    assert list(again.arrays) == list(arrays)
    for name, array in arrays.items():
        assert again.arrays[name].dtype == array.dtype
        assert again.arrays[name].shape == array.shape
        np.testing.assert_array_equal(again.arrays[name], array)


def test_the_bytes_are_as_documented() -> None:
    grid = np.arange(6, dtype=np.int32).reshape(2, 3)
    content = Packed({"a": "é"}, {"odd": np.ones(3, np.uint8), "grid": grid}).to_bytes()
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length].decode())
    assert (4 + length) % 8 == 0
    assert header["arrays"]["grid"] == {"dtype": "int32", "shape": [2, 3], "offset": 8}
    start = 4 + length + header["arrays"]["grid"]["offset"]
    assert content[start : start + 24] == grid.astype("<i4").tobytes()


def test_arrays_may_be_views_of_any_order() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert unpack(Packed({}, {"t": turned}).to_bytes()).arrays["t"].tolist() == turned.tolist()


def test_numbers_that_are_not_finite_are_null_in_the_header() -> None:
    assert unpack(Packed({"x": float("nan")}, {}).to_bytes()).header == {"x": None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\xff\xff\xff\xff{}",
        b"\x02\0\0\0{}",
        b"\x04\0\0\0nope",
        Packed({}, {"x": np.ones(4)}).to_bytes()[:-1],
        Packed({}, {"x": np.ones(4)}).to_bytes().replace(b"float64", b"object\x20"),
    ],
)
def test_other_bytes_are_refused_in_one_sentence(content: bytes) -> None:
    with pytest.raises(UserError, match="packed arrays"):
        unpack(content)


def test_only_numbers_are_packed() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        Packed({}, {"x": np.array(["text"])}).to_bytes()
    with pytest.raises(ValueError, match="arrays"):
        Packed({"arrays": {}}, {}).to_bytes()


def test_compression_is_gzip_and_repeatable() -> None:
    content = Packed({}, {"x": np.zeros(4096, np.uint8)}).to_bytes()
    assert compress(content) == compress(content)
    assert gzip.decompress(compress(content)) == content
