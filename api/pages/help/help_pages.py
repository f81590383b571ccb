"""The documentation at ``/docs``: its pages, its images and its search. Anybody may read it."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from markupsafe import Markup

from api.http.errors import REFERENCE
from api.pages.help.documentation import Documentation, image
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import Reader

FIRST = "index"

router = page_router()


@router.get("/docs")
def first_page(request: Request, reader: Reader, q: str = "") -> Response:
    """The first page, or with ``q`` what a search finds."""
    return show_page(request, reader, FIRST) if not q.strip() else _show_found(request, q)


@router.get("/docs/images/{name}")
def show_image(name: str) -> Response:
    """An image of the documentation."""
    return FileResponse(image(name))


@router.get("/docs/{path:path}")
def show_page(request: Request, _: Reader, path: str) -> Response:  # on a thread: some pages take a second
    """One page of the documentation."""
    if not path:
        return RedirectResponse("/docs", 303)
    if path in ("reference/api", "api"):
        return RedirectResponse(REFERENCE, 303)
    documentation = _documentation_of(request)
    page = documentation.render(path)
    title = next(
        (one.title for chapter in documentation.chapters for one in chapter.entries if one.path == path), path
    )
    return show(
        request,
        "documentation.html",
        title,
        chapters=documentation.chapters,
        path=path,
        body=Markup(page.html),  # noqa: S704  made of our own files, without HTML of theirs
        headings=page.headings,
        asked="",
    )


def _show_found(request: Request, asked: str) -> Response:
    documentation = _documentation_of(request)
    return show(
        request,
        "documentation.html",
        "Search",
        chapters=documentation.chapters,
        path="",
        found=documentation.search(asked),
        asked=asked,
    )


def _documentation_of(request: Request) -> Documentation:
    documentation: Documentation = request.app.state.documentation
    return documentation
