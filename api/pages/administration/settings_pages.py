"""The settings of this server: value, source, default and meaning of each."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.administration.tabs import show_tab
from api.pages.parts.rendering import page_router
from api.pages.parts.session import Administrator
from api.setting_list import given_settings

router = page_router()


@router.get("/admin/settings")
def settings_page(request: Request, caller: Administrator, word: str = "") -> Response:  # reads a file
    """The settings of this server; with ``word`` those that have it in their name, of every provider too."""
    found = [
        one
        for one in given_settings(product_of(request).settings)
        if word.upper() in one.setting.variable
        and (word or not one.setting.provider or one.source != "default")
    ]
    return show_tab(request, caller, "settings.html", "Settings", rows=found, word=word)
