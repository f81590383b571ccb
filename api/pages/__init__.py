"""The pages: Jinja2 templates with charts drawn as SVG on the server; readable without a script."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"
