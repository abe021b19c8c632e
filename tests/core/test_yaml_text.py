"""YAML that people write."""

import pytest
import yaml

from vitrail.core.yaml_text import load_yaml


def test_a_key_that_is_there_twice_is_refused_with_its_line() -> None:
    with pytest.raises(yaml.YAMLError, match=r"the key 'a' is there twice \(line 3\)"):
        load_yaml("models:\n  a: vit_ti_16\n  a: resnet18\n")
    with pytest.raises(yaml.YAMLError):  # a list cannot be a key
        load_yaml("? [a, b]\n: 1\n? [a, b]\n: 2\n")
    assert load_yaml("one: {a: 1}\ntwo: {a: 2}") == {"one": {"a": 1}, "two": {"a": 2}}


def test_nothing_but_plain_values_is_made() -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml("!!python/object/apply:os.getcwd []")
