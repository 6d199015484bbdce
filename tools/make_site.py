"""Build the site: what the pages show in _proc, the pages in _docs. Nothing is executed.

    python tools/make_site.py [FOLDER]

Notebooks lose what only JupyterLab needs, and each module gets a page of the API, read from its source.
"""
import ast
import base64
import gc
import hashlib
import io
import json
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

from PIL import Image
from sphinx.cmd.build import main as sphinx

from make_readme import ROOMS, first_lines
from make_teaching import exercises_of, index_rows
from stamp import settings_of

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {  # folder: title, what stands above its list
    "proofs": ("Proofs", "What a chapter asserts and doesn't have the room to show."),
    "guides": ("Guides", "From installing to a model of your own text."),
}


def markdown(text: str) -> dict: return dict(cell_type="markdown", metadata={}, source=text)


def toctree(docs: list[str], caption: str = "") -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}" if caption else ":maxdepth: 1", "", *docs, "```", ""])


def escaped(text: str) -> str:
    "Python's words as Markdown: nothing is emphasised but what stands between backticks."
    return re.sub(r"(`[^`]*`)|([*_<>\\$|^~{}\[\]])", lambda found: found[1] or "\\" + found[2], text)


@cache
def title_of(path: Path) -> str:
    text = path.read_text(encoding="utf8")
    if path.suffix == ".ipynb": text = "".join(json.loads(text)["cells"][0]["source"])
    return re.search(r"^# (.+)", text, re.M)[1]


class Site:
    def __init__(self, folder: Path):
        self.folder, self.nbs, self.out = folder, folder / "nbs", folder / "_proc"
        self.settings = settings_of(folder)
        self.rows = index_rows(folder)
        self.chapters = {stem.partition("_")[0]: stem for stem in self.rows}
        self.made: set[Path] = set()

    def write(self, name: str, content: str | bytes) -> None:
        "A file of _proc; left alone if it is as it was, so that Sphinx builds only what changed."
        path = self.out / name
        self.made.add(path)
        content = content.encode() if isinstance(content, str) else content
        if path.exists() and path.read_bytes() == content: return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    # Notebooks and pages

    def links(self, text: str, path: Path) -> str:
        "The row of links to neighbours goes: the theme has its own. Links to what the site doesn't show go to the repository; anchors are as Sphinx makes them."
        def moved(found):
            target, _, anchor = found[1].partition("#")
            there = (path.parent / target).resolve()
            if not target: return f"](#{slug(anchor)})"
            if not there.exists(): return found[0]
            inside = there.is_relative_to(self.nbs) and "answers" not in there.parts
            if inside: return f"]({target}{anchor and '#' + slug(anchor)})"
            kind = "tree" if there.is_dir() else "blob"
            return f"]({self.settings['git_url']}/{kind}/{self.settings['branch']}/{there.relative_to(self.folder).as_posix()})"

        def slug(anchor): return re.sub(r"[^\w-]", "", anchor.lower())
        text = re.sub(r"^\[.*→\]\(.*Open in Colab.*\n?|^\[← .*\n?", "", text, flags=re.M)
        return re.sub(r"\]\(((?!https?:)[^()\s]+)\)", moved, text)

    def about(self, path: Path) -> str:
        "How far a chapter is, how long it takes, and what can be done with the page."
        name, parts = path.relative_to(self.folder).as_posix(), []
        if row := self.rows.get(path.stem) if path.parent == self.nbs else None:
            place, count = list(self.rows).index(path.stem) + 1, len(self.rows)
            parts += [f'<progress max="{count}" value="{place}" aria-label="Place in the course"></progress> Chapter {place} of {count}',
                      f"{row[2]} minutes to read, {row[3]} seconds to run"]
        url, branch = self.settings["git_url"], self.settings["branch"]
        if path.suffix == ".ipynb":
            parts.append(f"[Colab](https://colab.research.google.com/{url.removeprefix('https://').replace('.com', '')}/blob/{branch}/{name})")
            parts.append(f"{{download}}`Download </../{name}>`")
        parts.append(f"[Edit]({url}/edit/{branch}/{name})")
        return '<div class="about">\n\n' + " · ".join(parts) + "\n\n</div>\n"

    def page(self, text: str, path: Path) -> str:
        "The first text of a page, with its line under the title."
        title, _, rest = self.links(text, path).partition("\n")
        return f"{title}\n\n{self.about(path)}{rest}"

    def picture(self, found: re.Match) -> str:
        "A picture inside a page becomes a file, lossless."
        kind, data = found[1], base64.b64decode(found[2])
        if kind == "png":
            file = io.BytesIO()
            image = Image.open(io.BytesIO(data))
            image.save(file, "webp", lossless=True, method=1)
            kind, data = "webp", file.getvalue()
        name = f"{hashlib.sha256(data).hexdigest()[:16]}.{kind.partition('+')[0]}"
        self.write(f"extra/pictures/{name}", data)
        return f'loading="lazy" src="{self.up}pictures/{name}"'

    def output(self, output: dict) -> dict:
        "One form of each output: HTML with its pictures as files, or text."
        data = output.get("data", {})
        if "text/html" in data:
            shown = "".join(data["text/html"])
            if not shown.startswith("<iframe"):
                shown = re.sub(r'src="data:image/([a-z+]+);base64,([^"]+)"', self.picture, shown)
            output["data"] = {"text/html": shown}
        return output

    def code(self, cell: dict) -> list[dict]:
        "A cell of code without the lines for tools, folded as in JupyterLab."
        source, meta = "".join(cell["source"]), cell["metadata"]
        if re.match(r"#\| hide", source): return []
        if found := re.match(r'check\("(\d\d\w?)\.(\d)", .+\)$', source.strip()): return [self.check(*found.groups(), source.strip())]
        label = f"(cell-{cell['id']})=\n" if re.match(r"#\| export", source) else ""
        source = re.sub(r"\A(#\|.*\n?)+|^from importlib.util import find_spec\n(if .*\n( .*\n)+)+", "", source, flags=re.M).strip()
        folds = {"source_hidden": "hide-input", "outputs_hidden": "hide-output"}
        tags = {folds[key] for key in folds if meta.get("jupyter", {}).get(key)}
        if not cell["outputs"]: tags.discard("hide-output")
        cell = cell | dict(source=source, metadata=dict(tags=sorted(tags)), outputs=[self.output(output) for output in cell["outputs"]])
        return ([markdown(label)] if label else []) + ([cell] if source else [])

    def check(self, chapter: str, number: str, call: str) -> dict:
        "What stands in the page for a cell that checks an answer."
        exercise = next(each for each in exercises_of(chapter) if each.id == f"{chapter}.{number}")
        return markdown(f"In the notebook, `{call}` says whether you are right, and if not, what went wrong.\n\n"
                        f'<details class="hint"><summary>A hint</summary>\n\n{exercise.hints[0]}\n\n</details>\n')

    def notebook(self, path: Path) -> None:
        name = path.relative_to(self.nbs).as_posix()
        self.up = "../" * name.count("/")
        book, cells = json.loads(path.read_text(encoding="utf8")), []
        book["metadata"].pop("widgets", None)  # for them Sphinx would load scripts from elsewhere
        for cell in book["cells"]:
            if cell["cell_type"] == "code": cells += self.code(cell)
            elif text := self.links("".join(cell["source"]), path): cells.append(markdown(text))
        if name == "index.ipynb":
            cells = self.home(cells)
            book["metadata"]["html_theme.sidebar_secondary.remove"] = True
        else: cells[0] = markdown(self.page("".join(book["cells"][0]["source"]), path))
        cells = [cell | dict(id=f"c{n}") for n, cell in enumerate(cells)]
        self.write(name, json.dumps(book | dict(cells=cells), indent=1))

    def home(self, cells: list[dict]) -> list[dict]:
        "The landing page: the index, with the explorer and the routes before all else."
        from minibert.inside import read_text
        from minibert.runs.course import open_course
        from minibert.show.plots import explore

        reading = read_text(*open_course(), "Anna lost her red ball.", "She found it under the bed.")
        explorer = explore(reading.attentions, reading.tokens)
        self.write("extra/pictures/explorer.html", explorer.page)
        texts = [cell["source"] for cell in cells]
        at, = (n for n, text in enumerate(texts) if "three routes:" in text)
        before, routes, after = re.split(r" There are three routes:\n\n((?:- .*\n)+)", texts[at])
        routes = re.sub(r"\b\d\d\b", lambda found: f"[{found[0]}]({self.chapters[found[0]]}.ipynb)", routes)
        intro, _, rest = texts[1].partition("## Installing")
        live = (f'{intro}\n## What a trained head looks at\n\nThe model that the chapters train, live. Choose a head, then a token.\n\n'
                f'<iframe title="Attention explorer" sandbox="allow-scripts" height="{explorer.height}" src="pictures/explorer.html"></iframe>\n\n'
                f'## Three routes\n\n<div class="cards">\n\n{routes}\n</div>\n\n## Installing{rest}\n\n')
        tree = toctree(["Chapters <chapters>", *(f"{folder}/index" for folder in SECTIONS), "Reference <reference/README>", "Teaching <teaching/README>", "API <api/index>"])
        return [cells[0], markdown(live), *cells[2:at], markdown(before + after), *cells[at + 1:], markdown(tree)]

    # Lists

    def lists(self) -> None:
        "The pages that lead to the others."
        cells = json.loads((self.nbs / "index.ipynb").read_text(encoding="utf8"))["cells"]
        table = next(found[0] for cell in cells if (found := re.search(r"(^\|.*\n)+", "".join(cell["source"]), re.M)))
        parts = re.findall(r"\*\*(.+?)\*\*.*\n((?:\| \d.*\n)+)", table)
        trees = [toctree(re.findall(r"\((\S+)\.ipynb\)", rows), caption) for caption, rows in parts]
        self.write("chapters.md", "\n".join(["# Chapters", "", table, *trees]))
        for folder, (title, purpose) in SECTIONS.items():
            books = sorted(path for path in (self.nbs / folder).iterdir() if path.suffix in (".md", ".ipynb"))
            rows = [f"- [{title_of(book)}]({book.name})" + (f": {first_lines(book)}" if book.suffix == ".ipynb" else "") for book in books]
            self.write(f"{folder}/index.md", "\n".join([f"# {title}", "", purpose, "", *rows, "", toctree([book.stem for book in books])]))

    def pages(self) -> None:
        for path in sorted(self.nbs.rglob("*.md")):
            name, text = path.relative_to(self.nbs).as_posix(), path.read_text(encoding="utf8")
            text = self.page(text, path)
            if name == "reference/README.md":
                text += "\n" + "\n".join(toctree([f"{room}/{book.stem}" for book in sorted((path.parent / room).glob("*.ipynb"))], room) for room in ROOMS)
            if name == "teaching/README.md":
                text += "\n" + toctree(sorted(page.stem for page in path.parent.iterdir() if page.suffix in (".md", ".ipynb") and page != path))
            self.write(name, text)
        for path in sorted(self.nbs.rglob("*.ipynb")):
            if not {"answers", ".ipynb_checkpoints"} & set(path.parts): self.notebook(path)
        for path in sorted((self.nbs / "images").iterdir()): self.write(f"images/{path.name}", path.read_bytes())

    # The API

    def api(self) -> None:
        "A page for each module with public names."
        rooms: dict[str, list[str]] = {"": []} | {room: [] for room in ROOMS}
        modules = [Module(path, self.folder) for path in sorted((self.folder / "minibert").rglob("*.py"))]
        names = {f"{module.name}.{name}" for module in modules for name in module.names}
        for module in modules:
            if module.names or module.again:
                rooms.setdefault(module.room, []).append(module.name)
                self.write(f"api/{module.short}.md", module.page(names))
                rows = " · ".join(f"{{py:obj}}`~{module.name}.{name}`" for name in module.names) or " · ".join(f"{{py:obj}}`~.{name}`" for name in module.again)
                rooms[module.room][-1] = f"| [`{module.short}`]({module.short}.md) | {escaped(module.says)} | {rows} |"
        public = ast.literal_eval(re.search(r"_MODULES = (\{.*?\})", (self.folder / "minibert/__init__.py").read_text(encoding="utf8"), re.S)[1])
        homes = {full.rpartition(".")[2]: full for full in names}
        homes |= {name: f"minibert.{module}.{name}" for module, listed in public.items() for name in listed.split() if f"minibert.{module}.{name}" in names}
        short = " · ".join(f"{{py:obj}}`~{homes[name]}`" for listed in public.values() for name in listed.split())
        lines = ["# API", "", f"Every public name of `minibert` {self.settings['version']}, by module. {{ref}}`All names from A to Z <genindex>`.", "",
                 f"These can be imported from `minibert` itself: {short}", ""]
        for room, rows in rooms.items():
            if rows: lines += [f"## {room or 'The chapters'}" + (f": {ROOMS[room].lower()}" if room else ""), "", "| module | what it holds | names |", "| --- | --- | --- |", *rows, ""]
        trees = [toctree([re.match(r"\| \[`(.+?)`", row)[1] for row in rows], room or "chapters") for room, rows in rooms.items() if rows]
        self.write("api/index.md", "\n".join([*lines, *trees]))


class Module:
    "A module's public names, read from its source."

    def __init__(self, path: Path, folder: Path):
        self.text = path.read_text(encoding="utf8")
        self.lines, self.tree = self.text.splitlines(), ast.parse(self.text)
        self.name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        self.short = self.name.removeprefix("minibert.")
        self.room = self.short.partition(".")[0] if (folder / "nbs/reference" / self.short.partition(".")[0]).is_dir() else ""
        self.says = ast.get_docstring(self.tree) or ""
        book = re.search(r"^# AUTOGENERATED! .* File to edit: (?:\.\./)+nbs/(\S+)\.$", self.text, re.M)
        self.book = book and not book[1].startswith("answers") and folder / "nbs" / book[1]
        self.page_of = book and book[1]
        self.comments = {token.start[0]: token.string.lstrip("# ") for token in tokenize.generate_tokens(io.StringIO(self.text).readline) if token.type == tokenize.COMMENT}
        self.defined = {name: node for node in self.tree.body for name in names_of(node)}
        found = self.defined.get("__all__")
        names = ast.literal_eval(found.value) if found and self.book else []
        self.names = [name for name in names if name in self.defined]
        self.again = [name for name in names if name not in self.defined]  # of other modules

    def source(self, node: ast.AST) -> str:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        return "\n".join(self.lines[first - 1 : node.end_lineno])

    def cell(self, node: ast.AST) -> str:
        "The id of the notebook's cell that a line comes from."
        return next(found[1] for line in reversed(self.lines[: node.lineno]) if (found := re.match(r"# %% \S+ #(\w+)$", line)))

    def arguments(self, node: ast.FunctionDef) -> list[str]:
        "What each argument is, from the comment on its line."
        every = [*node.args.posonlyargs, *node.args.args, *filter(None, [node.args.vararg]), *node.args.kwonlyargs, *filter(None, [node.args.kwarg])]
        last = {each.end_lineno: each for each in every}  # a comment belongs to the last one on its line
        fields = [f":param {each.arg}: {escaped(self.comments[line])}" for line, each in last.items() if line in self.comments]
        if node.returns and (said := self.comments.get(node.returns.end_lineno)) and node.returns.end_lineno not in last: fields.append(f":returns: {escaped(said)}")
        return fields

    def entry(self, name: str, node: ast.AST, colons: int = 6) -> list[str]:
        "A name: signature, docstring, arguments, source, and where it is built."
        kind, signature, fields, inner = "data", "", [], []
        if isinstance(node, ast.FunctionDef):
            inside = "." in name
            marks = {getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list}
            kind = "property" if marks & {"property", "cached_property"} else "method" if inside else "function"
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            arguments = re.sub(r"^self(, )?", "", ast.unparse(node.args)) if inside else ast.unparse(node.args)
            signature, fields = ("" if kind == "property" else f"({arguments}){returns}"), self.arguments(node)
        if isinstance(node, ast.ClassDef):
            kind = "class"
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            made = next((each for each in methods if each.name == "__init__"), None)
            if made: signature, fields = "(" + re.sub(r"^self(, )?", "", ast.unparse(made.args)) + ")", self.arguments(made)
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and not each.target.id.startswith("_"):
                    value = [f":value: {ast.unparse(each.value)}"] if each.value else []
                    inner += [f"{':' * (colons - 1)}{{py:attribute}} {name}.{each.target.id}", f":type: {ast.unparse(each.annotation)}", *value, "",
                              escaped(self.comments.get(each.end_lineno, "")), ":" * (colons - 1), ""]
            for each in methods:
                if not each.name.startswith("_"): inner += self.entry(f"{name}.{each.name}", each, colons - 1)
        says = escaped(ast.get_docstring(node) or "") if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else escaped(self.comments.get(node.end_lineno, ""))
        place = f"Built in {{ref}}`{title_of(self.book)} <cell-{self.cell(node)}>`." if "." not in name else ""
        code = ["<details class=\"source\"><summary>Source</summary>", "", "````python", *self.source(node).splitlines(), "````", "", "</details>", ""] if "." not in name else []
        return [f"{':' * colons}{{py:{kind}}} {name}{signature}", "", says, "", *fields, "", place, "", *code, *inner, ":" * colons, ""]

    def page(self, names: set[str]) -> str:
        shadowed = [":no-index:"] if self.name in names else []  # a function has the module's name
        lines = [f"# {self.short}", "", escaped(self.says), "", f"From [{title_of(self.book)}](../{self.page_of}).", "",
                 f"```{{py:module}} {self.name}", *shadowed, "```", ""]
        if self.again: lines += ["Also here: " + ", ".join(f"{{py:obj}}`~.{name}`" for name in self.again) + ".", ""]
        for name in self.names: lines += self.entry(name, self.defined[name])
        return "\n".join(lines)


def names_of(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(name, ast.Name)]


def main(folder: Path) -> int:
    site = Site(folder)
    for step in (site.lists, site.pages, site.api): step()
    for path in site.out.rglob("*"):
        if path.is_file() and path not in site.made and ".doctrees" not in path.parts: path.unlink()
    gc.set_threshold(200_000, 20, 20)  # the pages' trees are large and die together: a quarter of the time was spent on looking for garbage
    return sphinx(["-q", "-W", "--keep-going", "-j", "auto", "-d", str(folder / "_proc/.doctrees"), "-c", str(folder / "site"), str(site.out), str(folder / "_docs")])


if __name__ == "__main__": sys.exit(main(Path(*sys.argv[1:2]).resolve() if sys.argv[1:] else ROOT))
