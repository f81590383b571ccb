"""What a dataclass has is in the answer and in its form, without a second list of fields."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, make_dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import model_json_schema

from api.schemas.accounts.audit import AUDIT
from api.schemas.base import forms
from api.schemas.base.forms import Form, From, PageForm, form_of, rounded, write
from api.schemas.finance.economics import CHANGE, CLOSED_MONTH, ENERGY, PERIOD_INTERVAL, SAVINGS
from api.schemas.finance.finance import FIGURES
from api.schemas.finance.spend import ITEM, ORPHANED, SpendItem
from api.schemas.holding.reconciliation import PROSPECT
from api.schemas.holding.reservation import SHORTFALL
from api.schemas.market.offer import OFFER
from api.schemas.market.prices import DAY, FORECAST, POINT, SKU_DAY
from api.schemas.market.provider import BATCH, FEED, MISSING, PROBE, PROVIDER, QUARANTINED, ROUND
from api.schemas.plans.plan import PLAN
from api.schemas.plans.reoptimization import REOPTIMIZATION
from broker.domain.market.offer import Offer
from broker.domain.moving.reoptimization import Move, Reoptimization, Risk
from tests import strategies
from tests.depth import examples

SCHEMAS = Path(forms.__file__).parent.parent
TOLD: tuple[Form[Any], ...] = (
    AUDIT, BATCH, CHANGE, CLOSED_MONTH, DAY, ENERGY, FEED, FIGURES, FORECAST, ITEM, MISSING, OFFER, ORPHANED,
    PERIOD_INTERVAL, PLAN, POINT, PROBE, PROSPECT, PROVIDER, QUARANTINED, REOPTIMIZATION, ROUND, SAVINGS,
    SHORTFALL, SKU_DAY,
)  # fmt: skip
NOT_TOLD = {
    "ConfiguredProvider.feed", "Feed.health", "Feed.polling", "Feed.unread",
    "FeedHealth.failures", "FeedHealth.not_before", "FeedHealth.probe", "Missing.only", "Offer.sku",
    "OfferForecast.offer", "PeriodInterval.quantiles", "PriceDay.on_sale", "PricePoint.offer_id",
    "ProbeReport.provider", "Quarantined.accepted_usd_per_node_hour", "Reoptimization.version", "SkuDay.gpu",
    "SkuDay.tier", "SpendItem.row", "Stock.held_nodes",
}  # fmt: skip
"""What the answer leaves out, or has in other words: somebody has to say why in the form."""


def parts_of(form: Form[Any], known: set[type]) -> Iterator[Form[Any]]:
    """The form and those of all its parts."""
    if form.cls in known:
        return
    known.add(form.cls)
    yield form
    hints = get_type_hints(form.cls)
    for name in sorted(form.inlined):
        yield from parts_of(form_of(hints[name]), known)
    for entry in form.entries:
        for inner in forms_in(entry.annotation):
            yield from parts_of(inner, known)


def forms_in(annotation: Any) -> Iterator[Form[Any]]:
    if isinstance(annotation, Form):
        yield annotation
    for part in get_args(annotation):
        yield from forms_in(part)


SEEN: set[type] = set()
EVERY = tuple(part for form in TOLD for part in parts_of(form, SEEN))


@pytest.mark.parametrize("form", EVERY, ids=lambda form: form.name)
def test_every_field_of_a_dataclass_is_in_its_form(form: Form[Any]) -> None:
    own = {one.name for one in fields(form.cls)}
    assert set(form.names) == own - form.left_out - form.inlined
    schema = set(form.model.model_json_schema()["properties"])
    assert set(form.names.values()) <= schema
    for name in form.inlined:
        inner = form_of(get_type_hints(form.cls)[name])
        assert {entry.name for entry in inner.entries} <= schema
    apart = {f"{form.cls.__name__}.{name}" for name in form.left_out | form.inlined}
    assert apart <= NOT_TOLD


def test_what_is_not_told_is_still_there() -> None:
    apart = {f"{form.cls.__name__}.{name}" for form in EVERY for name in form.left_out | form.inlined}
    assert apart == NOT_TOLD


@given(st.one_of(strategies.offers, strategies.plans, strategies.reoptimizations, strategies.audit_entries))
@settings(max_examples=examples(30))
def test_an_answer_has_the_fields_of_its_form_in_their_order(whole: Any) -> None:
    form = form_of(type(whole))
    answer = form.write(whole)
    assert list(answer) == list(form.model.model_fields)
    assert json.loads(json.dumps(answer)) == answer


@given(strategies.reoptimizations)
@settings(max_examples=examples(20))
def test_an_answer_is_read_back(look: Reoptimization) -> None:
    read = REOPTIMIZATION.read(json.loads(json.dumps(REOPTIMIZATION.write(look))))
    assert REOPTIMIZATION.write(read) == REOPTIMIZATION.write(look)
    assert read.moves == look.moves


NEW_FIELDS: list[tuple[str, Any, Any]] = [
    ("carbon_g_per_kwh", float | None, None),
    ("deposit_usd", Decimal, Decimal("1E+3")),
    ("seen_at", datetime, datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    ("tags", frozenset[str], frozenset({"b", "a"})),
]


def grown(kind: type, frozen: bool = True) -> Any:
    return make_dataclass(f"Grown{kind.__name__}", NEW_FIELDS, bases=(kind,), frozen=frozen)


@pytest.mark.parametrize("kind", [part.cls for part in EVERY], ids=lambda kind: kind.__name__)
def test_a_new_field_of_a_dataclass_is_in_the_schema_without_another_word(kind: type) -> None:
    more = grown(kind, frozen=kind is not SpendItem)  # made once a row, so that one is not frozen
    told: Form[Any] = form_of(kind)
    form = Form(more, leave_out=told.left_out, types=told._types)
    schema = form.model.model_json_schema(mode="serialization")
    names = {name for name, *_ in NEW_FIELDS}
    assert names <= set(schema["properties"]) & set(schema["required"])
    assert schema["properties"]["deposit_usd"]["type"] == "string"


def test_a_new_field_of_a_dataclass_is_in_the_answer_and_read_back() -> None:
    more = grown(Move)
    whole = more("train", ("a",), ("b",), Decimal("2.50"), "cheaper")
    form = Form(more, name="MoreForm")
    answer = form.write(whole)
    assert answer["carbon_g_per_kwh"] is None
    assert answer["deposit_usd"] == "1000"
    assert answer["seen_at"] == "2026-01-01T00:00:00Z"
    assert answer["tags"] == ["a", "b"]
    assert form.read(json.loads(json.dumps(answer))) == whole


class Whole:
    """Something to be told."""

    class inner:
        price_usd = Decimal("2.50")

    nothing = None
    at = datetime(2026, 11, 23, tzinfo=UTC)
    share = 0.123456


class View(BaseModel):
    price: Annotated[str, From("inner.price_usd")]
    absent: Annotated[str | None, From("nothing?.price_usd")]
    left_out: Annotated[str | None, From("nothing", unless_none=True)] = None
    share: Annotated[float, rounded(2)]
    year: Annotated[int, From(lambda whole: whole.at.year)]


def test_a_view_says_whence_its_values_come() -> None:
    assert write(View, Whole) == {"price": Decimal("2.50"), "absent": None, "share": 0.12, "year": 2026}


def test_a_dataclass_has_one_form() -> None:
    with pytest.raises(TypeError, match="Offer already has a form"):
        Form(Offer)


def test_lists_are_named_after_what_they_list() -> None:
    page = PageForm[Annotated[Offer, OFFER]]
    assert page.__name__ == "OfferPage"
    assert page is PageForm[Annotated[Offer, OFFER]]
    assert "OfferForm" in model_json_schema(page)["$defs"]
    with pytest.raises(ValidationError):
        page.model_validate({"items": [{}]})


ALONE = """
import importlib, os, sys, traceback
from api.schemas.base.forms import Form

def tried(name):
    try:
        module = importlib.import_module(name)
        for form in [one for one in vars(module).values() if isinstance(one, Form)]:
            form.write, form.model
    except Exception:
        print(name, traceback.format_exc())
    sys.stdout.flush()
    os._exit(0)

for name in sys.argv[1:]:
    if os.fork() == 0:
        tried(name)
    os.wait()
"""
"""Each module in a process of its own, forked before any of them is imported."""
MODULES = sorted(
    str(path.relative_to(SCHEMAS.parent.parent).with_suffix("")).replace("/", ".")
    for path in SCHEMAS.rglob("*.py")
    if " Form(" in path.read_text() and path.name != "forms.py"
)


def test_a_module_of_forms_needs_no_other_module_to_be_imported_before() -> None:
    """A command imports few of them: each brings the forms of what its own forms hold."""
    command = [sys.executable, "-c", ALONE, *MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert len(MODULES) > 10
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_dataclass_without_a_form_is_named() -> None:
    with pytest.raises(TypeError, match="GrownRisk has no form"):
        form_of(grown(Risk))
