"""Scripts of others: exactly the files that were taken, with their licence, and the only ones there are."""

from __future__ import annotations

import hashlib
import re

from api.pages import STATIC, TEMPLATES

VENDORED = STATIC / "vendor"
INLINE = re.compile(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", re.I)


def test_every_file_has_the_hash_that_was_noted() -> None:
    lines = (VENDORED / "SHA256SUMS").read_text().splitlines()
    noted = {name: digest for digest, name in (line.split() for line in lines)}
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in VENDORED.iterdir()}
    del found["SHA256SUMS"]
    assert found == noted
    assert "Zero-Clause BSD" in (VENDORED / "LICENSE-htmx.txt").read_text()


def test_pages_have_no_script_or_style_of_their_own_and_none_from_elsewhere() -> None:
    for template in TEMPLATES.glob("*.html"):
        text = template.read_text()
        assert INLINE.search(text) is None, template.name
        assert re.search(r'(?:src|href|action)="(?:https?:)?//', text) is None, template.name
    scripts = re.findall(r'<script src="/static/(.+?)"', (TEMPLATES / "base.html").read_text())
    assert all((STATIC / script).is_file() for script in scripts)
    assert len(scripts) == 2
