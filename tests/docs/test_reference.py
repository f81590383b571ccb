"""The reference that is made from the code says something of everything, and has no gap that nobody sees."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from api.cli.commands_page import commands_page
from api.reference_texts import constants_page, settings_page, workloads_page
from broker.catalogue import load_events
from broker.settings import Settings
from optimizer.calibration.sourced_constants import sourced_constants
from providers.registry import SPECS
from tests.docs.fences import DOCS

pytestmark = pytest.mark.xdist_group("docs")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The hook of the site, loaded as MkDocs loads it."""
    path = DOCS / "site" / "reference_pages.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table, without headers."""
    found: list[list[str]] = []
    for block in re.findall(r"(?:^\|.*\n?)+", page, flags=re.MULTILINE):
        lines = block.splitlines()[2:]
        found += [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return found


def test_every_parameter_of_the_api_says_what_it_means(reference: ModuleType) -> None:
    silent = [
        f"{method.upper()} {path} {one['name']}"
        for path, operations in reference.api_document()["paths"].items()
        for method, operation in operations.items()
        for one in operation.get("parameters", ())
        if not one.get("description")
    ]
    assert not silent


def test_commands_are_listed_with_their_options() -> None:
    page = commands_page()
    plan = page.split("## `broker plan`\n", 1)[1].split("\n## ", 1)[0]
    assert [row[0] for row in rows(plan)][:3] == ["`--market`", "`--time-limit`", "`--gap`"]
    assert all(said for _, said in rows(page))


def test_every_setting_has_its_default_and_its_meaning() -> None:
    page = settings_page()
    ours = {row[0]: row[1:] for row in rows(page) if len(row) == 5}
    assert list(ours) == [f"`BROKER_{name.upper()}`" for name in Settings.model_fields]
    assert ours["`BROKER_PORT`"][:3] == ["whole number", "`8080`", "≥ 0, ≤ 65,535"]
    for spec in SPECS.values():
        assert all(f"`{spec.variable(name)}`" in page for name in spec.names)


def test_a_name_without_a_meaning_and_a_meaning_without_a_name_fail_the_build(reference: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"\['port'\]"):
        reference.require_same("settings", {"host"}, {"host", "port"})
    with pytest.raises(ValueError, match=r"\['plan\.vanished'\]"):
        reference.require_same("events", {"plan.vanished"}, set())
    assert {"plan.done", "reservation.short", "budget.threshold"} <= reference.event_names()
    reference.require_same("events", set(load_events()), reference.event_names())


def test_every_constant_stands_with_its_source() -> None:
    found = rows(constants_page())
    constants = sourced_constants()
    assert [row[0] for row in found] == [f"`{one.name}`" for one in constants]
    assert all(row[1] and row[2] for row in found)


def test_links_between_fields_of_the_workloads_document_lead_somewhere() -> None:
    page = workloads_page()
    headings = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    linked = set(re.findall(r"\]\(#([a-z-]+)\)", page))
    assert linked <= headings
    assert {"training", "serving", "batch", "traffic", "policy"} <= linked


def test_every_operation_and_document_stands_in_the_reference(reference: ModuleType) -> None:
    page, document = reference.operations_page(), reference.api_document()
    asked = {f"### `{m.upper()} {path}`" for path, found in document["paths"].items() for m in found}
    named = {f"### {name}" for name in document["components"]["schemas"]}
    assert (asked | named) - set(page.splitlines()) == set()
    assert page.count("```bash") == page.count("```python") == len(asked)
