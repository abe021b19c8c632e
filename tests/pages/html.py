"""A page read as a browser reads it: balanced tags, tables, figures, addresses, text."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "path", "circle", "image", "rect", "input", "wbr", "use", "line"}
NASTY = 'a<b> & "c" \udcff\x1b[2J\u202e'
SAFE = "a&lt;b&gt; &amp; &#34;c&#34; \\udcff\\x1b[2J\\u202e"


WORD_BREAK = "\u200b"


def _joined(text: str) -> str:
    """Text with single spaces, and none where a name may be broken."""
    return " ".join(text.split()).replace(f" {WORD_BREAK} ", "")


class Page(HTMLParser):
    """Tables by the first of their classes, the text of each figure and of the whole page; every
    tag that is opened must be closed, every id must be one of a kind."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.figures: list[str] = []
        self.charts = 0
        self.charts_with_table = 0
        self.opened: list[str] = []
        self.loads: list[str] = []
        self.links: list[dict[str, str]] = []
        self.ids: list[str] = []
        self.rows: list[list[str]] = []
        self.scripts = ""
        self.handlers: list[str] = []
        self._texts: list[str] = []
        self._in_chart = False
        self.feed(page)
        self.close()
        assert not self.opened, self.opened
        assert len(set(self.ids)) == len(self.ids), "an id twice"
        self.text = _joined(" ".join(self._texts))
        self.figures = [_joined(text) for text in self.figures]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.handlers += [name for name in given if name.startswith("on")]
        self.loads += [given[key] for key in ("src", "href", "srcset", "data") if key in given]
        if "id" in given and "svg" not in self.opened:
            self.ids.append(given["id"])
        classes = given.get("class", "").split()
        match tag:
            case "wbr":
                self.handle_data(WORD_BREAK)
            case "a":
                self.links.append(given)
            case "table":
                self.charts_with_table += self._in_chart
                self._in_chart = False
                self.rows = self.tables.setdefault((classes or [""])[0], [])
            case "tr":
                self.rows.append([])
            case "td" | "th":
                self.rows[-1].append("")
            case "figure":
                self.figures.append("")
                self._in_chart = "chart" in classes
                self.charts += self._in_chart
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.opened.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.opened.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "script" in self.opened:
            self.scripts += data
        if "style" in self.opened or "script" in self.opened:
            return
        self._texts.append(data)
        if "figure" in self.opened:
            self.figures[-1] += f" {data}"
        if self.opened and ("td" in self.opened or "th" in self.opened):
            self.rows[-1][-1] += data.replace(WORD_BREAK, "")


def check_page(page: str) -> Page:
    """What holds for every page: it parses, needs no network, runs nothing but its own script, and
    every chart has its numbers."""
    read = Page(page)
    page.encode("utf-8")
    outside = [load for load in read.loads if not load.startswith(("#", "data:image/"))]
    assert not outside, outside
    targets = {load[1:] for load in read.loads if load.startswith("#")}
    inside_svg = {target for target in targets if target not in read.ids}
    assert not {link["href"][1:] for link in read.links} & inside_svg, "a link that leads nowhere"
    assert not read.handlers
    assert read.charts == read.charts_with_table
    assert "\x1b" not in page
    assert "\u202e" not in page
    return read
