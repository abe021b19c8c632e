"""YAML of people: plain values, and no key twice, of which PyYAML would keep the last."""

from typing import Any

import yaml


class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Plain values alone."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[tuple[str, str]]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"the key {key.value!r} is there twice (line {line})")
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """
    >>> load_yaml("models: [a, b]")
    {'models': ['a', 'b']}
    """
    return yaml.load(text, Loader)
