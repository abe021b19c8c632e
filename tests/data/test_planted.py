"""Planted evidence: every picture is decided by (seed, part, index), and its box is true."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from vitrail import UserError
from vitrail.cli.app import main
from vitrail.data.planted import (
    PARTS,
    RASTER,
    Chances,
    Planted,
    handwriting,
    scrambled,
    shapes,
    stretch,
    texture,
)
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Origin


@given(
    side=st.integers(32, 96), seed=st.integers(0, 2**31), distractors=st.integers(0, 4),
    part=st.sampled_from(list(PARTS)),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_picture_hangs_on_its_seed_part_and_index_alone(
    side: int, seed: int, distractors: int, part: str
) -> None:
    source = Planted(8, part, side, seed, distractors)
    longer = Planted(20, part, side, seed, distractors)
    backwards = {index: longer.read(index) for index in reversed(range(8))}
    for index in range(8):
        assert np.array_equal(source.read(index), backwards[index])
    assert source.targets is not None
    assert longer.targets is not None
    assert source.targets.tolist() == longer.targets[:8].tolist()
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(again.read(5), source.read(5))
    assert again.fingerprint() == source.fingerprint()
    assert source.read(0).shape == (side, side)
    assert source.read(0).dtype == np.uint8
    top, left, bottom, right = source.boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (bottom <= side).all()
    assert (right <= side).all()
    assert (bottom - top > 0.15 * side).all()  # a digit is as high as its field
    assert (right > left).all()


def test_another_seed_gives_other_pictures() -> None:
    one, other = Planted(4, seed=0), Planted(4, seed=1)
    assert not np.array_equal(one.read(0), other.read(0))
    assert one.fingerprint() != other.fingerprint()
    assert not np.array_equal(Planted(1, "val").read(0), Planted(1, "test").read(0))


def test_who_gets_a_picture_may_write_to_it() -> None:
    source = Planted(1)
    before = source.read(0)
    source.read(0)[:] = 0
    assert np.array_equal(source.read(0), before)
    with pytest.raises(IndexError):
        source.read(1)


def test_the_box_holds_the_ink_and_no_more() -> None:
    source = Planted(60, "test", distractors=0)
    for index in range(len(source)):
        bare = texture(64, Chances(*source.keys, index))
        top, left, side = source.places[index]
        raster = source.rasters[source.digits[index]]
        grow = stretch(RASTER, int(side))
        density = np.zeros((64, 64))
        density[top : top + side, left : left + side] = grow @ raster @ grow.T
        changed = source.read(index) / 255 - bare.clip(0, 1)
        assert abs(changed[density == 0]).max() <= 0.5 / 255 + 1e-9
        assert changed[density > 0.6].min() > 0.05  # bright on every canvas
        rows, columns = np.nonzero(density > 0.65)
        top, left, bottom, right = source.boxes[index]
        assert top <= rows.min()
        assert left <= columns.min()
        assert rows.max() < bottom
        assert columns.max() < right
        cell = -(-side // RASTER)
        rows, columns = np.nonzero(density > 0.2)
        assert rows.min() <= top + cell
        assert columns.min() <= left + cell
        assert rows.max() >= bottom - 1 - cell
        assert columns.max() >= right - 1 - cell


def test_distractors_leave_the_digit_alone() -> None:
    crowded, alone = Planted(60), Planted(60, distractors=0)
    outside = 0
    for index in range(60):
        top, left, side = crowded.places[index]
        digit = (slice(top, top + side), slice(left, left + side))
        assert np.array_equal(crowded.read(index)[digit], alone.read(index)[digit])
        outside += int((crowded.read(index) != alone.read(index)).any())
    assert outside >= 58  # nearly always there is room for one


def test_chances_do_not_hang_on_how_many_are_taken_at_once() -> None:
    one, other = Chances(1, 2, 3), Chances(1, 2, 3)
    pieces = np.concatenate([one.draw(count) for count in (1, 2000, 100, 5000)])
    assert np.array_equal(pieces, other.draw(7101))


def test_no_handwriting_is_in_two_parts() -> None:
    seen = [{raster.tobytes() for raster in handwriting(part)[0]} for part in PARTS]
    assert sum(len(handwriting(part)[0]) for part in PARTS) == len(load_digits().target)
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_scrambling_keeps_the_ink_and_shapes_are_no_digits() -> None:
    raster = handwriting("train")[0][0]
    mixed = scrambled(raster, np.arange(16)[::-1])
    assert sorted(mixed.ravel().tolist()) == sorted(raster.ravel().tolist())
    assert not np.array_equal(mixed, raster)
    assert shapes().min() == 0
    assert shapes().max() == 1
    assert ((shapes().mean(axis=(1, 2)) > 0.2) & (shapes().mean(axis=(1, 2)) < 0.6)).all()


def test_planted_is_a_data_set_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    data = open_data("planted")
    assert {name: len(part) for name, part in data.parts.items()} == PARTS
    for part in data.parts.values():
        assert isinstance(part, Origin)
        assert part.labels == tuple("0123456789")
        assert part.targets is not None
        shares = np.bincount(part.targets, minlength=10) / len(part)
        assert shares.min() > 0.07
        assert shares.max() < 0.13
    assert data["val"].name(7) == "planted/val[7]"
    assert main(["train", "planted", "--dry-run", "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)
    assert recipe["fields"]["image_size"] == [64, 64]
    assert recipe["augmentation"]["flip"] == 0  # a mirrored digit is another


@pytest.mark.parametrize(
    ("arguments", "told"),
    [((4, "tset"), "no split 'tset'"), ((4, "val", 16), "at least 32 pixels"), ((-1,), "negative")],
)
def test_what_cannot_be_drawn_is_told(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Planted(*arguments)
