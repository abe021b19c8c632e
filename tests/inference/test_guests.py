"""Guests of bench: a wrong name gets a near one, or none."""

import pytest

from vitrail import UserError
from vitrail.inference.benchmark.guests import check_guest


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torchvision:nope", "such as torchvision:mobilenet_v2"),
        ("torchvision:mobilenetv2", r"did you mean torchvision:mobilenet_v2\?"),
        ("resnet50", r"did you mean torchvision:resnet50\?"),
        ("", "such as torchvision:mobilenet_v2"),
    ],
)
def test_an_unknown_guest_gets_a_near_name_or_none(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"list_models\(\) gives, {sentence}$"):
        check_guest(name)


def test_a_known_guest_is_itself() -> None:
    assert check_guest("torchvision:mobilenet_v2") == "torchvision:mobilenet_v2"
