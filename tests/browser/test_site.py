"""The site: every page by its text, and a handful in a browser, as files and from a server."""
import ast
import json
import re
import subprocess
import sys
import threading
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from sphinx.util.inventory import InventoryFile

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_docs"
PAGES = ["index.html", "chapters.html", "04_attention.html", "guides/install.html", "teaching/04_attention.html", "api/attention.html"]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}  # what axe-core can judge of WCAG 2.2 A and AA
MOST = 600_000  # bytes of a page and its pictures; the theme's files are the same for all


@pytest.fixture(scope="module")
def texts():
    "The pages by name, as `make site` left them."
    return {path.relative_to(SITE).as_posix(): path.read_text(encoding="utf8") for path in SITE.rglob("*.html") if path.parent != SITE / "_static"}


@pytest.fixture(scope="module")
def server():
    "The site's address."
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_): pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# --- every page, by its text ---


def test_each_page_is_light_and_asks_no_other_server(texts):
    for name, text in texts.items():
        loaded = re.findall(r'<(?:img|script|iframe|source)\b[^>]*? src="([^"]+)"|<link\b[^>]*? rel="(?:stylesheet|preload|icon)"[^>]*? href="([^"]+)"', text)
        files = {a or b for a, b in loaded if not (a or b).startswith("data:")}
        assert not [url for url in files if urlsplit(url).scheme], name
        own = {((SITE / name).parent / urlsplit(url).path).resolve() for url in files if "_static" not in url and "searchindex" not in url}
        assert len(text.encode()) + sum(path.stat().st_size for path in own) <= MOST, name


def test_each_picture_says_what_it_shows(texts):
    pictures = [tag for text in texts.values() for tag in re.findall(r"<img\b[^>]*>", text)]
    alts = [re.search(r'alt="([^"]*)"', tag) for tag in pictures]
    assert len(pictures) > 100 and all(alt and len(alt[1].split()) > 2 and "/" not in alt[1].split()[0] for alt in alts)


def test_each_link_within_the_site_leads_somewhere(texts):
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    for name, text in texts.items():
        for href in set(re.findall(r'<a\b[^>]*? href="([^"]+)"', text)):
            url = urlsplit(unescape(href))
            if url.scheme: continue
            path = ((SITE / name).parent / unquote(url.path)).resolve() if url.path else SITE / name
            assert path.is_file(), (name, href)
            there = path.relative_to(SITE).as_posix()
            if url.fragment and there in anchors: assert unquote(url.fragment) in anchors[there], (name, href)


def test_no_line_for_tools_and_no_hidden_cell_shows(texts):
    for name, text in texts.items():
        if name.startswith(("reference/checks", "reference/course")): continue  # such lines are their subject
        cells = [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<pre>(.*?)</pre>", text, re.S)]
        assert not [cell for cell in cells if cell.startswith(("#|", "from importlib.util import find_spec\nif not find_spec"))], name


def test_each_public_name_has_an_entry_with_its_source_and_its_chapter(texts):
    inventory = InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="").data
    known = {name: item.uri for kind, items in inventory.items() if kind.startswith("py:") for name, item in items.items()}
    count = 0
    for path in sorted((ROOT / "minibert").rglob("*.py")):
        found = re.search(r"^__all__ = (\[.*?\])", path.read_text(encoding="utf8"), re.M | re.S)
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not found or re.search(r"^minibert$|\.checks\.c\d", module): continue
        for name in ast.literal_eval(found[1]):
            home = f"{module}.{name}"
            if home not in known: home, = (full for full in known if full.endswith(f".{name}"))  # imported from there
            page, _, anchor = known[home].partition("#")
            assert f'id="{anchor.replace("$", home)}"' in texts[page], home
            count += 1
    assert count > 500
    assert all(text.count('class="source"') == text.count("#cell-") for name, text in texts.items() if name.startswith("api/"))


def test_names_in_prose_lead_to_the_api(texts):
    def linked(page, name): return re.findall(rf'href="([^"]*api/[^"]*)"><code[^>]*><span class="pre">{name}<', texts[page])
    assert set(linked("04_attention.html", "attend")) == {"api/attention.html#minibert.attention.attend"}
    assert set(linked("14_numpy_forward.html", "forward")) == {"api/numpy_bert.layers.html#minibert.numpy_bert.layers.forward"}
    assert not linked("04_attention.html", "it") and not linked("05_encoder.html", "D")


def test_versions_are_listed_newest_first(tmp_path):
    for name in ("main", "v0.9.0", "v0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    subprocess.run([sys.executable, "tools/list_versions.py", tmp_path, "/minibert"], cwd=ROOT, check=True)
    rows = json.loads((tmp_path / "versions.json").read_text(encoding="utf8"))
    assert [(row["url"], row["preferred"]) for row in rows] == [("/minibert/v0.10.0/", True), ("/minibert/v0.9.0/", False), ("/minibert/main/", False)]
    assert "url=v0.10.0/" in (tmp_path / "index.html").read_text(encoding="utf8")


# --- in a browser ---


def test_search_leads_to_the_api_its_source_and_the_chapter(server, page):
    page.goto(f"{server}/index.html")
    page.keyboard.press("Control+k")
    page.locator("#pst-search-dialog input").fill("attend")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="minibert.attention.attend", exact=True).click()
    entry = page.locator("dl.py.function").filter(has=page.locator("[id='minibert.attention.attend']"))
    expect(entry).to_contain_text("(B, H, Q, K)")
    entry.get_by_text("Source", exact=True).click()
    expect(entry.locator("pre")).to_contain_text("scores.softmax(-1)")
    entry.get_by_role("link", name="4. Attention").click()
    cell = page.locator(f"[id='{urlsplit(page.url).fragment}']")
    expect(cell).to_be_in_viewport()
    expect(page.locator("h1")).to_contain_text("4. Attention")


def test_search_works_from_files(page):
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=attend")
    expect(page.get_by_role("link", name="minibert.attention.attend", exact=True)).to_be_visible()


def test_mathematics_is_drawn(page):
    page.goto((SITE / "15_numpy_backward.html").as_uri())
    boxes = page.evaluate("[...document.querySelectorAll('math')].map(each => each.getBoundingClientRect()).map(box => [box.width, box.height])")
    assert len(boxes) > 50 and all(width > 2 and height > 2 for width, height in boxes)


def test_explorer_follows_the_keyboard(page):
    page.goto((SITE / "index.html").as_uri())
    frame = page.frame_locator("iframe[title='Attention explorer']")
    frame.locator("#heads button[aria-checked=true]").press("ArrowRight")
    expect(frame.locator("#t2")).to_have_text("Layer 0, head 1")
    frame.locator("#map").press("ArrowDown")
    expect(frame.locator("#from")).to_have_value("1")
    assert not Axe().run(page.locator("iframe").element_handle().content_frame(), options=RULES).response["violations"]


def test_theme_is_chosen_and_kept(page):
    page.goto((SITE / "04_attention.html").as_uri())
    for theme in ("dark", "light"):
        page.get_by_role("button", name="Color mode").click()
        page.locator(f".theme-change-button[data-mode={theme}]").first.click()
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)


def test_hint_unfolds_and_code_that_draws_is_folded(page):
    page.goto((SITE / "04_attention.html").as_uri())
    hint = page.locator("details.hint").first
    expect(hint.locator("p")).to_be_hidden()
    hint.locator("summary").click()
    expect(hint.locator("p")).to_be_visible()
    expect(page.get_by_text("import math", exact=False).first).to_be_hidden()


def test_a_page_on_paper_is_light_and_unfolded(page):
    page.goto((SITE / "04_attention.html").as_uri())
    page.evaluate("document.documentElement.dataset.theme = 'dark'; dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator(".bd-header").first).to_be_hidden()
    assert page.evaluate("document.querySelectorAll('details:not(.hint):not([open])').length") == 0


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_both_widths_and_breaks_no_rule_of_access(name, page):
    "In both themes."
    for width, theme in ((360, "light"), (1280, "dark")):
        page.set_viewport_size(dict(width=width, height=800))
        page.emulate_media(color_scheme=theme)
        page.goto((SITE / name).as_uri())
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page, options=RULES).response["violations"]
        assert not [(rule["id"], node["target"], node["failureSummary"]) for rule in found for node in rule["nodes"]]
