"""A real browser: the system's chromium, driven by playwright."""
import shutil
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SECONDS = 30  # that a state may take to come


def pytest_configure():
    if not CHROMIUM: raise pytest.UsageError("These tests need chromium: install it, on Debian by apt-get install chromium.")


@pytest.fixture(scope="session")
def browser():
    "Chromium, for the whole session."
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM) as browser: yield browser


@pytest.fixture
def page(browser):
    "An empty page; at the end it has had no error, and has asked no server but this machine's."
    errors, addresses = [], set()
    with browser.new_context(viewport=dict(width=1280, height=900), reduced_motion="reduce") as context:
        context.set_default_timeout(1000 * SECONDS)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        context.on("request", lambda request: addresses.add(request.url))
        page = context.new_page()
        page.on("websocket", lambda socket: addresses.add(socket.url))
        yield page
    asked = [url for url in addresses if urlsplit(url).scheme not in ("data", "blob", "file", "about")]
    assert not errors and not [url for url in asked if urlsplit(url).hostname != "127.0.0.1"]
