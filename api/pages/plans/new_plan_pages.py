"""The page for a new plan: a form with a card for each workload, or the document as text.

The document is what is planned; the form only edits it. Every button of the form sends all of it, so that
the page works without scripts. Where scripts run, estimates and errors follow what is typed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.parts.forms import SentForm, act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanWritingVisitor
from api.pages.plans.workload_cards import (
    KIND_WORDS,
    MOST_CARDS,
    DocumentCards,
    build_cards,
    can_be_shown,
    take_over,
    title_of,
    workload_of,
)
from api.plan_requests import ask_for_plan, estimate, options_of
from api.schemas.imports.starting_points import StartingPoint, read_starting_point
from api.schemas.workloads.document_edit import EditedDocument, empty_document
from api.schemas.workloads.form_fields import NEW_WORKLOADS
from api.schemas.workloads.shortest import as_yaml, shortened
from broker.catalogue import load_hugging_face_names, load_models
from broker.data_folder import data_folder
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError, TooManyEstimates
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.workload import WorkloadKind
from broker.ports.planning import PlanRecord

EXAMPLES = data_folder("fixtures", "examples")
EXAMPLE_NAMES: Mapping[str, str] = {
    "quickstart": "A short fine-tune, then a small service",
    "finetune-and-chat": "A fine-tune beside a 70B assistant and a batch",
    "pretrain-then-serve": "A pretraining run, then the model served",
}
COMMAND = "#   broker"
SOURCE = "workloads"
FORM, DOCUMENT, EXAMPLE = "form", "document", "example"

router = page_router()


@dataclass(frozen=True, slots=True)
class Writing:
    """What the page shows: the text of the document, as a form or as text, and what is wrong with it.

    ``written``: the fields of the form as they were sent. ``before``: the text that was there until now,
    which *Undo* brings back; ``gone`` says what became of it.
    """

    text: str
    view: str
    problems: Sequence[FieldProblem] = ()
    found: CostEstimate | None = None
    example: str = ""
    based_on: PlanRecord | None = None
    begun: StartingPoint | None = None
    pasted: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    gone: str = ""


@router.get("/plans/new")
async def new_plan_page(
    request: Request,
    caller: PlanWritingVisitor,
    example: str = "",
    view: str = FORM,
    from_: Annotated[str | None, Query(alias="from")] = None,
) -> Response:
    """The form, or the text with ``view=document``, of an example or of the document of a plan; without
    either a form without workloads, or the text of the first example.
    """
    shown = DOCUMENT if view == DOCUMENT else FORM
    if from_ is not None:
        product = product_of(request)
        record = await product.planning.find_plan(caller, from_)
        short = await asyncio.to_thread(shortened, json.loads(record.document), product.clock.now())
        return await _page(request, Writing(as_yaml(short), shown, based_on=record))
    if not example and shown == FORM:
        return await _page(request, Writing(empty_document(caller.team), shown))
    name = example if example in EXAMPLE_NAMES else "quickstart"
    return await _page(request, Writing(_example_text(name, caller), shown, example=name))


def _example_text(name: str, caller: Caller) -> str:
    """An example with the visitor's team, without the command at the head of its file."""
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    kept = (line for line in text.splitlines() if not line.startswith(COMMAND))
    return "".join(f"team: {caller.team}\n" if line.startswith("team:") else f"{line}\n" for line in kept)


async def _page(request: Request, writing: Writing) -> Response:
    """The page; a document that has no form is shown as text, with the reason."""
    cards, problems = None, tuple(writing.problems)
    if writing.view == FORM:
        try:
            cards = await asyncio.to_thread(_cards, writing, product_of(request).clock.now())
        except InputError as error:
            problems = problems or error.problems
    return show(
        request,
        "plan_new.html",
        "New plan",
        422 if problems else 200,
        cards=cards,
        is_mixed=len(set(product_of(request).modes.values())) > 1,
        text=writing.text,
        example=writing.example,
        examples=EXAMPLE_NAMES,
        based_on=writing.based_on,
        begun=writing.begun,
        pasted=writing.pasted,
        before=writing.before,
        gone=writing.gone,
        problems=problems if cards is None else cards.problems,
        wrong=len(problems),
        lines=writing.text.splitlines(),
        estimates=_estimates(writing.found),
        kinds=KIND_WORDS,
        models=[(model, load_hugging_face_names().get(model, "")) for model in load_models()],
        proof=proof_of(request),
        once=new_once(),
    )


def _cards(writing: Writing, now: datetime) -> DocumentCards:
    document = EditedDocument(writing.text, SOURCE)
    if not can_be_shown(document):
        expected = (
            f"at most {MOST_CARDS} workloads of the kinds {', '.join(WorkloadKind)} to show it as a form"
        )
        problem = FieldProblem("/workloads", f"{len(document.workloads)} workloads", expected)
        raise InputError(SOURCE, (problem,))
    return build_cards(document, now, writing.problems, writing.written)


def _estimates(found: CostEstimate | None) -> dict[int, str]:
    return {} if found is None else {index: one.says for index, one in enumerate(found.workloads)}


@router.post("/plans/new")
async def ask(request: Request, caller: PlanWritingVisitor) -> Response:
    """Does what the pressed button says: plans, estimates, adds or removes a workload, takes an
    example, brings back what was replaced, or turns the page over to the form or the text. Errors stand at
    their fields, or at their lines.
    """
    form = await read_form(request)
    try:
        writing = await asyncio.to_thread(_written, form, product_of(request).clock.now())
    except InputError as error:
        text = form.fields.get("workloads", "").replace("\r\n", "\n")
        return await _page(request, Writing(text, DOCUMENT, error.problems))
    action, _, which = form.text("action").partition(":")
    try:
        if action in (FORM, DOCUMENT):
            return await _page(request, replace(writing, view=action))
        if action == EXAMPLE and which in EXAMPLE_NAMES:
            return await _page(request, _with_example(writing, which, form, caller))
        if action == "undo":
            return await _page(request, _brought_back(writing, form, caller))
        if action in ("add", "remove"):
            return await _page(request, await asyncio.to_thread(_rearranged, writing, action, which))
        if action == "start":
            return await _page(request, await asyncio.to_thread(_begun, writing, form))
        if action == "estimate":
            found = await estimate(product_of(request), caller, writing.text, SOURCE)
            return await _page(request, replace(writing, found=found))
        return await _plan(request, caller, form, writing.text)
    except InputError as error:
        return await _page(request, replace(writing, problems=error.problems))


def _written(form: SentForm, now: datetime) -> Writing:
    """The document as it was sent, with what was written into the fields of the form."""
    text, file = _text_sent(form, "workloads"), _text_sent(form, "file")
    view = form.text("view") or DOCUMENT
    if view == FORM:
        document = EditedDocument(text, SOURCE)
        take_over(document, form.fields, now)
        text = document.text
    if file:
        return Writing(file, view, before=text, gone="The file replaced what was written here.")
    return Writing(text, view, written=form.fields if view == FORM else {})


def _text_sent(form: SentForm, name: str) -> str:
    return form.fields.get(name, "").replace("\r\n", "\n")


def _with_example(writing: Writing, name: str, form: SentForm, caller: Caller) -> Writing:
    """An example in place of what was written; of an example that nobody changed nothing is kept."""
    before = _own_text(writing, caller) or _text_sent(form, "before")
    gone = "The example replaced what was written here." if before else ""
    return Writing(
        _example_text(name, caller),
        writing.view,
        example=name,
        pasted=_text_sent(form, "begin"),
        before=before,
        gone=gone,
    )


def _begun(writing: Writing, form: SentForm) -> Writing:
    """The document with a workload more, of what was pasted or uploaded."""
    pasted = form.fields.get("source") or form.fields.get("begin", "").replace("\r\n", "\n")
    writing = replace(writing, pasted=pasted)
    try:
        word = form.text("start_kind")
        kind = WorkloadKind(word) if word in set(WorkloadKind) else None
        begun = read_starting_point(pasted, "start from", kind=kind)
    except InputError as error:
        return replace(writing, problems=error.problems)
    document = EditedDocument(writing.text, SOURCE)
    document.add(begun.workload)
    return replace(writing, text=document.text, view=FORM, begun=begun, pasted="")


def _brought_back(writing: Writing, form: SentForm, caller: Caller) -> Writing:
    """What was there before; what stands in its place now can be brought back in turn."""
    before = _own_text(writing, caller)
    gone = "What was written before is back." if before else ""
    return Writing(_text_sent(form, "before"), writing.view, before=before, gone=gone)


def _own_text(writing: Writing, caller: Caller) -> str:
    """The text, unless it is empty or an example that nobody changed."""
    unchanged = {empty_document(caller.team), *(_example_text(one, caller) for one in EXAMPLE_NAMES)}
    return "" if writing.text in unchanged else writing.text


def _rearranged(writing: Writing, action: str, which: str) -> Writing:
    """The document with a workload more or less."""
    document = EditedDocument(writing.text, SOURCE)
    if action == "add" and which in set(WorkloadKind):
        document.add(NEW_WORKLOADS[WorkloadKind(which)])
    elif action == "remove" and which.isdecimal() and int(which) < len(document.workloads):
        gone = f"Removed {title_of(document.workloads[int(which)], int(which))}."
        document.remove(int(which))
        return replace(writing, text=document.text, written={}, before=writing.text, gone=gone)
    return replace(writing, text=document.text)


async def _plan(request: Request, caller: Caller, form: SentForm, text: str) -> Response:
    options = options_of(product_of(request).settings)

    async def act(named: Caller) -> str:
        record = await ask_for_plan(product_of(request), named, text, options, SOURCE)
        return f"/plans/{record.plan_id}?done=asked"

    return await act_once(request, caller, form, act, lambda stored: f"/plans/{stored[0]}")


@router.post("/plans/new/estimate")
async def estimate_part(request: Request, caller: PlanWritingVisitor) -> Response:
    """Parts of the page that follow what is typed: an estimate at each card, an error at each field."""
    form = await read_form(request)
    writing, notice = Writing("", FORM), ""
    found: CostEstimate | None = None
    now = product_of(request).clock.now()
    says: dict[int, str] = {}
    try:
        writing = await asyncio.to_thread(_written, form, now)
        found = await estimate(product_of(request), caller, writing.text, SOURCE)
        says = _estimates(found)
    except InputError as error:
        writing = replace(writing, problems=error.problems)
        says = await _estimates_of_sound(request, caller, writing)
    except TooManyEstimates as error:
        notice = str(error)
    try:
        cards = await asyncio.to_thread(_cards, writing, now)
    except InputError:
        cards = DocumentCards((), ())
    return show(
        request,
        "plan_new_live.html",
        "Estimate",
        cards=cards,
        found=found,
        estimates=says,
        wrong=len(writing.problems),
        notice=notice,
    )


async def _estimates_of_sound(request: Request, caller: Caller, writing: Writing) -> dict[int, str]:
    """The estimates of the workloads in which nothing is wrong; none where something else is wrong."""
    places = [workload_of(problem.pointer) for problem in writing.problems]
    wrong = {place for place in places if place is not None}
    if None in places:
        return {}
    try:
        document = await asyncio.to_thread(EditedDocument, writing.text, SOURCE)
        sound = [index for index in range(len(document.workloads)) if index not in wrong]
        for index in sorted(wrong, reverse=True):
            document.remove(index)
        if not sound:
            return {}
        found = await estimate(product_of(request), caller, document.text, SOURCE)
    except (InputError, TooManyEstimates):  # what is left out may be what the others need
        return {}
    return dict(zip(sound, _estimates(found).values(), strict=True))
