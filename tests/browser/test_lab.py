"""The course in a real JupyterLab: each chapter opens, three run, an exercise is solved by keyboard, and everything is legible."""
import os
import platform
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from command import call
from conftest import ROOT, copy_checkout

CHAPTERS = sorted((ROOT / "nbs").glob("*.ipynb"))
RUN = 120_000  # milliseconds that a chapter may take from top to bottom
POLLING = 100  # milliseconds between two looks at a state: playwright's own way is to ask for one frame after another
THEMES = "JupyterLab Light", "JupyterLab Dark"
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf8")


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    "The address of JupyterLab, as `make lab` starts it, on a copy of the course with a learner's folder in it."
    home = tmp_path_factory.mktemp("lab")
    copy_checkout(home / "course")
    for path in home.glob("course/nbs/*.ipynb"):  # JupyterLab notes the kernel's version in a notebook, and so changes each that another Python ran
        path.write_text(re.sub(r'"version": "[\d.]+"', f'"version": "{platform.python_version()}"', path.read_text(encoding="utf8")), encoding="utf8")
    call("course", "new", home / "course/mine", "--edition", "build", "--chapters", "01")
    own = {f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "RUNTIME")} | dict(IPYTHONDIR=str(home / "ipython"), PYTHONPATH=str(ROOT))
    env = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "MINIBERT_PROGRESS", "MINIBERT_NAME")} | own
    with socket.create_server(("127.0.0.1", 0)) as free: port = free.getsockname()[1]  # JupyterLab looks from 8888 on, where two workers can both find the same
    words = [sys.executable, "-m", "jupyterlab", "--config=tools/lab.json", f"--port={port}", "--no-browser", "--LabApp.expose_app_in_browser=True"]
    with open(home / "log", "w") as log: server = subprocess.Popen(words, cwd=home / "course", env=env, stdout=log, stderr=log)
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/\S+token=\w+\n", (home / "log").read_text())):
            assert server.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
        yield found[0].strip()
    finally:
        server.terminate()
        server.wait()


NOW = "jupyterapp?.shell?.currentWidget"


def wait_for(page, name):
    "Until a notebook is in front, with the focus, and its kernel is idle."
    page.wait_for_function(f"""window.{NOW}?.context?.path == '{name}' && {NOW}.content.node.contains(document.activeElement)
        && {NOW}.context.sessionContext.session?.kernel?.status == 'idle'""", polling=POLLING)


def start(page, lab, name="nbs/index.ipynb"):
    "Open JupyterLab, without the tabs of the last time, on a notebook."
    page.goto(lab.replace("?", "?reset&").replace("nbs/index.ipynb", name))
    wait_for(page, name)


def open_notebook(page, name, kernel=None):
    "Open a notebook in a tab; with a kernel that runs already, or else with its own."
    page.evaluate("([path, id]) => jupyterapp.commands.execute('docmanager:open', {path, kernel: id && {id}}).then(() => null)", [name, kernel])
    wait_for(page, name)


def run_all(page):
    "Run the notebook in front from top to bottom, and give the errors that it shows."
    page.set_default_timeout(RUN)
    return page.evaluate(f"""async () => {{
        await jupyterapp.commands.execute('notebook:run-all-cells');
        const outputs = {NOW}.content.widgets.flatMap(cell => cell.model.outputs?.toJSON() ?? []);
        return outputs.filter(output => output.output_type == 'error').map(output => `${{output.ename}}: ${{output.evalue}}`);
    }}""")


def press_until(page, key, state):
    "Press a key until a state holds."
    for _ in range(100):
        if page.evaluate(state): return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never leads to {state}")


def focused(selector): return f"document.activeElement.matches({selector!r})"


def chosen(words): return f"{NOW}.content.activeCell.model.sharedModel.source.includes({words!r})"


def write(page, code):
    "Replace the source of the chosen cell, by keyboard."
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(code)


# --- each chapter ---


def test_each_chapter_opens_without_a_dialog(page, lab):
    "With the kernel that the index got when it opened, to save 28 starts."
    start(page, lab)
    kernel = page.evaluate(f"{NOW}.context.sessionContext.session.kernel.id")
    for path in CHAPTERS:
        open_notebook(page, f"nbs/{path.name}", kernel)
        own = page.evaluate(f"[{NOW}.content.model.getMetadata('kernelspec').name, {NOW}.content.widgets.length, {NOW}.context.model.dirty]")
        assert own == ["python3", len(nbformat.read(path, 4).cells), False], path.name
        assert not page.locator(".jp-Dialog").count(), path.name
        page.evaluate(f"{NOW}.close()")


@pytest.mark.parametrize("name", ["00_one_page", "04_attention"])
def test_a_chapter_runs_from_top_to_bottom(page, lab, name):
    start(page, lab, f"nbs/{name}.ipynb")
    assert not run_all(page)


def test_a_built_chapter_says_what_is_open_and_runs_once_it_is_written(page, lab):
    start(page, lab, "mine/01_config.ipynb")
    error, = run_all(page)
    assert error == "NotImplementedError: `count_parameters` isn't written yet: write it in its chapter."
    ours = {cell.id: cell.source for cell in nbformat.read(ROOT / "nbs/01_config.ipynb", 4).cells if "#| build" in cell.source}
    page.evaluate(f"""ours => {NOW}.content.widgets.filter(cell => cell.model.id in ours)
        .forEach(cell => cell.model.sharedModel.setSource(ours[cell.model.id].replaceAll("minibert.", "mybert.")))""", ours)
    assert not run_all(page)


# --- an exercise, by keyboard alone ---

RIGHT = "def attend_one(q, k, v, t):\n    probs = (k @ q / t).softmax(0)\n    return probs @ v, probs"
PROGRESS = 'from minibert.checks import progress\nprint("begun anew:", "attend_one" not in globals())\nprogress()'
SOLVED = re.compile("04 +█░░░ +1 of 4")


def test_an_exercise_is_solved_by_keyboard_and_its_progress_survives(page, lab):
    press = page.keyboard.press
    start(page, lab)
    press_until(page, "Tab", focused("a[href*='/04_attention.ipynb']"))
    press("Enter")
    wait_for(page, "nbs/04_attention.ipynb")
    press_until(page, "Shift+Enter", chosen("#| exercise 04.1"))
    for answer, verdict in (RIGHT.replace("/", "*"), "You multiply the scores by t, so a large temperature"), (RIGHT, "04.1 one query, at a temperature: right"):
        write(page, answer)
        press("Shift+Enter")
        press("Shift+Enter")
        expect(page.get_by_text(verdict)).to_be_visible(timeout=RUN)
        press("ArrowUp")
        if "right" in verdict: break
        press("b")
        write(page, 'hint("04.1")')
        for n in 1, 2, 3:
            press("Control+Enter")
            expect(page.get_by_text(f"04.1: hint {n} of 3")).to_be_visible()
        press("ArrowUp")
        press("ArrowUp")
    press("b")
    write(page, PROGRESS)
    press("Control+Enter")
    expect(page.get_by_text(SOLVED)).to_be_visible(timeout=RUN)
    press("Control+S")
    page.wait_for_function(f"!{NOW}.context.model.dirty", polling=POLLING)

    page.reload()
    wait_for(page, "nbs/04_attention.ipynb")
    press_until(page, "ArrowDown", chosen("begun anew"))
    expect(page.get_by_text("04.1 one query, at a temperature: right")).to_be_visible()
    expect(page.get_by_text("begun anew: False")).to_be_visible()
    page.evaluate(f"window.heard = []; {NOW}.context.sessionContext.statusChanged.connect((_, status) => window.heard.push(status))")
    press("0")
    press("0")
    expect(page.get_by_role("button", name="Confirm Kernel Restart")).to_be_focused()
    press("Enter")
    page.wait_for_function("heard.includes('restarting')", polling=POLLING)
    wait_for(page, "nbs/04_attention.ipynb")
    press("Control+Enter")
    expect(page.get_by_text("begun anew: True")).to_be_visible()
    expect(page.get_by_text(SOLVED)).to_be_visible(timeout=RUN)  # the exercises import torch


# --- what we show ---

SHOW = """
import os
os.environ["MINIBERT_PROGRESS"] = "elsewhere.jsonl"
import torch
from IPython.display import display
from minibert.checks import check, hint, progress, solution
from minibert.show.plots import explore

def right(q, k, v, t):
    probs = (k @ q / t).softmax(0)
    return probs @ v, probs
def wrong(q, k, v, t): return right(q, k, v, 1 / t)
def broken(q, k, v, t): return q.nothing
told = [check("04.1", answer) for answer in (..., broken, wrong, right)] + [hint("04.1") for _ in range(3)] + [solution("04.1"), progress()]
display(*told)
explore(list(torch.eye(5).expand(2, 3, 5, 5)), "[CLS] anna lost it [SEP]".split())
"""


@pytest.fixture
def shown(page, lab):
    "A notebook that shows each kind of verdict, and the explorer."
    start(page, lab)
    page.evaluate("""async code => {
        const {path} = await jupyterapp.commands.execute('docmanager:new-untitled', {type: 'notebook', path: 'nbs'});
        const panel = await jupyterapp.commands.execute('docmanager:open', {path, kernel: {name: 'python3'}});
        await panel.context.ready;
        panel.content.widgets[0].model.sharedModel.setSource(code);
        await panel.context.sessionContext.ready;
    }""", SHOW.strip())
    assert not run_all(page)
    return page


def test_what_we_show_is_legible_and_the_explorer_is_walked_by_keyboard(shown):
    page, press = shown, shown.keyboard.press
    frame = page.frame_locator("iframe[title='Attention explorer']")
    expect(frame.get_by_role("heading", name="Layer 0, head 0")).to_be_visible()  # before that, a frame takes no keys
    press_until(page, "Tab", focused("iframe"))
    expect(frame.locator("#heads button").first).to_be_focused()
    press("ArrowRight")
    press("ArrowDown")
    expect(frame.get_by_role("heading", name="Layer 1, head 1")).to_be_visible()
    press("Tab")
    press("ArrowDown")
    expect(frame.get_by_role("img", name="layer 1, head 1: anna looks most at anna")).to_be_focused()
    press("Tab")
    press("ArrowDown")
    expect(frame.get_by_label("from")).to_have_value("2")

    for theme in THEMES:
        page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_function("theme => document.body.dataset.jpThemeName == theme", arg=theme, polling=POLLING)
        words = [*page.locator(".jp-OutputArea-output").all(), frame.locator("body")]
        found = [pair for place in words for pair in place.evaluate(CONTRAST)]
        assert {"Where a token looks", "? 04.1: hint 3 of 3"} <= {text for text, _ in found}
        assert not [pair for pair in found if pair[1] < 4.5], theme


def test_the_letters_of_each_diagram_are_legible(page):
    "A diagram brings its own ground, so it's the same in both themes."
    outputs = [output for path in CHAPTERS for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])]
    drawn = {output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})}
    page.set_content("".join(drawn))
    found = page.locator("body").evaluate(CONTRAST)
    assert len(drawn) > 20 and len(found) > 300
    assert not [pair for pair in found if pair[1] < 4.5]
