"""What exports where: every family to every target, as the table of docs/export.md.

python -m tests.exporters.table              # writes the table
python -m tests.exporters.table swin litert  # prints one cell
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import vitrail
from tests.parity.test_every_family import SHALLOW, make
from vitrail import UserError
from vitrail.exporters.export import Export
from vitrail.exporters.targets import TARGETS
from vitrail.exporters.web.runtime import EVERY

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
NOT_RUN = "not run yet"
START, END = "<!-- table: python -m tests.exporters.table -->", "<!-- end of table -->"


def export_cell(family: str, target: str) -> str:
    """One cell: that the file ran and agreed, that it was converted, or the converter's reason."""
    model = make(family, configs=SHALLOW)
    with TemporaryDirectory() as folder:
        out = Path(folder) / f"model{TARGETS[target].suffix}"
        runtime = placeholder_runtime(Path(folder)) if target == "web" else None
        try:
            done = vitrail.export(
                model,
                out,
                to=target,
                attention=model.has_attention,
                features=True,
                runtime=runtime,
            )
        except UserError as error:
            return f"no: {str(error).replace('|', '/')}"
    assert isinstance(done, Export)
    return "converted" if done.check is None else "equal"


def placeholder_runtime(folder: Path) -> Path:
    """Files by the names of ONNX Runtime Web's package: the table is about the graph, which ONNX
    Runtime runs here; `test_web_browser.py` runs it in a browser."""
    package = folder / "package"
    (package / "dist").mkdir(parents=True)
    facts = '{"name": "onnxruntime-web", "version": "9.9.9"}'
    (package / "package.json").write_text(facts, encoding="utf-8")
    for name in EVERY:
        (package / "dist" / name).write_text(f"// {name}", encoding="utf-8")
    return package


def read_table() -> dict[tuple[str, str], str]:
    """The cells of the page by family and target."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index(START) : text.index(END)].strip().splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]
    targets = [cell.strip("`") for cell in rows[0][1:]]
    return {
        (row[0], target): cell
        for row in rows[2:]
        for target, cell in zip(targets, row[1:], strict=True)
    }


def write_table(cells: dict[tuple[str, str], str]) -> None:
    head = ["family", *(f"`{target}`" for target in TARGETS)]
    rows = [[family, *(cells[family, target] for target in TARGETS)] for family in SHALLOW]
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    text = PAGE.read_text(encoding="utf-8")
    pattern = f"{re.escape(START)}.*?{re.escape(END)}"
    new = re.sub(pattern, lambda _: f"{START}\n\n{table}\n\n{END}", text, flags=re.DOTALL)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(export_cell(sys.argv[1], sys.argv[2]))
    else:
        found = {}
        for target in TARGETS:
            for family in SHALLOW:
                found[family, target] = export_cell(family, target)
                print(family, target, found[family, target], flush=True)
        write_table(found)
