"""What the documentation tells people to type: fenced blocks and commands, with their places."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("sh", "console", "")  # blocks that may hold commands; "" where a prompt shows them
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line it begins at, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command as the shell splits it, and the lines that are printed below it."""

    block: Block
    text: str
    printed: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """Without comments, and without the variables set before it.

        >>> Command(Block("a.md", 1, "sh", ""), "LANG=ko vitrail models 'swin*'  # some").words
        ['vitrail', 'models', 'swin*']
        """
        words = shlex.split(self.text, comments=True)
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        return words


def pages() -> list[str]:
    """Every page that people read, as paths from the root; the log and decisions tell of the past,
    and what they name may be gone."""
    found = [ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md")]
    found += sorted((ROOT / "docs").rglob("*.md"))
    found += sorted((ROOT / "examples").glob("*.md"))
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if name != "docs/log.md" and "decisions" not in name]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order, without their indentation."""
    text = read(page)
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        inside = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Block(page, line, match[2], inside))
    return found


def commands(block: Block) -> list[Command]:
    r"""The commands of a block: behind a prompt, or every line of one without prompts.

    >>> text = "$ vitrail models \\\n  'vit*'\nvit_b_16\n$ vitrail info vit_b_16\n"
    >>> [(one.words, one.printed) for one in commands(Block("a.md", 1, "console", text))]
    [(['vitrail', 'models', 'vit*'], ['vit_b_16']), (['vitrail', 'info', 'vit_b_16'], [])]
    """
    if block.language not in SHELL:
        return []
    prompts = any(line.startswith("$ ") for line in block.text.splitlines())
    if not prompts and block.language != "sh":
        return []
    found: list[Command] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ ") or (not prompts and line.strip() and not line.startswith("#")):
            found.append(Command(block, line.removeprefix("$ ")))
        elif prompts and found:
            found[-1].printed.append(line)
    return [one for one in found if one.words]


def inline_commands(page: str) -> Iterator[Command]:
    """Commands of ours inside sentences and tables, but for those with something left out."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), read(page))
    for match in re.finditer(r"(?<!`)`(vitrail\s[^`]+)`(?!`)", text):
        if "…" not in match[1] and "VERB" not in match[1]:
            line = text.count("\n", 0, match.start()) + 1
            yield Command(Block(page, line, "inline", ""), " ".join(match[1].split()))
