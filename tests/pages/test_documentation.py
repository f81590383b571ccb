"""The documentation that a server shows: complete, linked, and found by a search."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from api.cli.commands_page import COMMANDS_PAGE
from api.pages.help.documentation import Documentation, chapters, render
from broker.domain.basics.errors import NotFound
from tests.api.house import Home, House
from tests.docs.fences import DOCS, ROOT


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


LINK = re.compile(r"\]\(([^)\s]+)\)")


class _Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given["id"] or ""} if "id" in given else set()
        self.links |= {given.get("href") or given.get("src") or ""} if tag in ("a", "img") else set()


def entries() -> Iterator[str]:
    return (entry.path for chapter in chapters() for entry in chapter.entries)


def test_every_written_page_has_its_place_in_the_order() -> None:
    written = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    assert written == {path for path in entries() if not path.startswith("reference/")}


@pytest.mark.parametrize("page", [*DOCS.rglob("*.md"), *ROOT.glob("*.md")], ids=lambda path: path.name)
def test_every_link_of_a_clone_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    local = {link.partition("#")[0] for link in LINK.findall(text) if "://" not in link and link[0] != "#"}
    assert {link for link in local if not (page.parent / link).exists()} == set()


async def test_every_link_of_the_served_pages_leads_to_a_page_and_a_heading(home: Home) -> None:
    anyone = home.client(None)
    documentation = Documentation(COMMANDS_PAGE)
    home.app.state.documentation = documentation
    pages: dict[str, _Page] = {}
    waiting = ["/docs"]
    while waiting:
        address = waiting.pop()
        answer = await anyone.get(address)
        assert answer.status_code in (200, 303), address
        is_page = answer.headers.get("Content-Type", "").startswith("text/html")
        pages[address] = found = _Page(answer.text if is_page else "")
        targets = {link.partition("#")[0] for link in found.links if link.startswith("/docs")}
        waiting += targets - pages.keys() - set(waiting)
    assert {f"/docs/{path}" for path in entries() if path != "reference/api"} <= pages.keys()
    broken = [
        f"{address} → {link}"
        for address, page in pages.items()
        for link in page.links
        for target, _, anchor in [link.partition("#")]
        if anchor and (target or address) in pages and anchor not in pages[target or address].anchors
    ]
    assert broken == []


async def test_a_search_finds_pages_and_pages_have_a_link_to_help(home: Home) -> None:
    anyone = home.client(None)
    assert '<a href="/docs"' in (await anyone.get("/signin")).text
    found = await anyone.get("/docs", params={"q": "BROKER_PAUSED restore"})
    assert 'href="/docs/operations"' in found.text
    assert "No page has all of these words" in (await anyone.get("/docs", params={"q": "zebra"})).text
    assert (await anyone.get("/docs/images/plan.png")).headers["Content-Type"] == "image/png"
    for strange in (
        "/docs/nothing",
        "/docs/../pyproject",
        "/docs/site/reference_pages",
        "/docs/images/x.png",
    ):
        assert (await anyone.get(strange)).status_code == 404, strange


def test_text_is_text_and_links_lead_from_their_page() -> None:
    page = render(
        "# A\n\n## B & c\n\n## B & c\n\n<script>x</script> [t](../x.md#y) [z](../../out.toml) `/docs/q`",
        "g/p",
    )
    assert page.headings == (("b-c", "B & c"), ("b-c_1", "B & c"))
    assert "<script>" not in page.html
    assert '<a href="/docs/x#y">t</a> z <a href="/docs/q">' in page.html
    with pytest.raises(NotFound):
        Documentation({}).render("guides/../operations")
