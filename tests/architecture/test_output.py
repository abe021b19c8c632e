"""One module of the command line prints; what the others want to say goes through it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import vitrail

CLI = Path(vitrail.__file__).parent / "cli"


def printing(tree: ast.AST) -> Iterator[int]:
    """Lines that print by themselves: print(…), console.print(…), sys.stdout.write(…)."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        prints = called == "print" or called.endswith((".print", ".print_json"))
        writes = called.endswith((".write", ".writelines")) and "sys.std" in called
        if prints or writes:
            yield node.lineno


def test_one_module_prints() -> None:
    found = {
        path.name: list(printing(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(CLI.glob("*.py"))
    }
    assert found.pop("output.py")
    assert not {name: lines for name, lines in found.items() if lines}


def test_every_way_to_print_is_seen() -> None:
    source = "print(1)\nconsole.print(2)\nsys.stdout.write('3')\nfile.write('no')\nsay('no')\n"
    assert list(printing(ast.parse(source))) == [1, 2, 3]
