"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser; leave it before async tests run, whose loop Playwright's would disturb."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert program is not None, "no Chromium: run tests/setup_machine.py"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()
