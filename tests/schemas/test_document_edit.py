"""A form changes a document as its text: what it does not show stays, and so do comments."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from api.pages.plans.workload_cards import build_cards, can_be_shown, take_over
from api.schemas.base.document import read_document
from api.schemas.workloads.document_edit import EditedDocument, empty_document
from api.schemas.workloads.form_fields import (
    DOCUMENT_FIELDS,
    NEW_WORKLOADS,
    WORKLOAD_FIELDS,
    FormField,
    shown,
    value_at,
)
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import WorkloadKind
from tests.depth import examples

NOW = datetime(2026, 11, 24, tzinfo=UTC)
FIXTURES = Path(__file__).parents[2] / "fixtures"
EXAMPLES = sorted([*FIXTURES.glob("examples/*.yaml"), *FIXTURES.glob("teams/*.yaml")])
KEPT = """\
# who asks
team: research   # and pays
horizon: {start: tomorrow, days: 7}
policy:
  quotas: {lambda: {gpus: 64}}
workloads:
  - name: tune   # the run
    kind: training
    model: Llama-3.1-8B
    tokens: 2.0e9
    sequence_length: 8192
    global_batch_tokens: 1.0e6
    gpus: 32
    deadline: +4d
    measured: [{gpu: H100-SXM-80GB, gpus: 8, tokens_per_s: 90000}]
  # and then
  - name: chat
    kind: serving
    model: Llama-3.1-8B
    traffic:
      mix: [{share: 1, input_tokens: 1000, output_tokens: 100}]
      peak_requests_per_s: 2
    slo: {ttft_p95_ms: 1500, itl_p95_ms: 80}
    starts: {after: tune}
"""
COMMENTS = ("# who asks", "# and pays", "# the run", "# and then")


def field(kind: str, path: str) -> FormField:
    return next(one for one in WORKLOAD_FIELDS[WorkloadKind(kind)] if one.path == path)


def head(path: str) -> FormField:
    return next(one for one in DOCUMENT_FIELDS if one.path == path)


def edited(*changes: tuple[FormField, int | None, str], text: str = KEPT) -> str:
    document = EditedDocument(text, "test")
    for change in changes:
        document.put(*change)
    assert read_document(document.text, "test").data == document.data
    return document.text


def sent_back(document: EditedDocument) -> dict[str, str]:
    """What a browser sends of a form that nobody touched."""
    form = build_cards(document, NOW)
    fields = [*form.head, *(one for card in form.cards for one in (*card.first, *card.folded))]
    return {one.name: one.value for one in fields}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_form_that_nobody_touched_changes_no_letter(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    document = EditedDocument(text, "test")
    assert can_be_shown(document)
    take_over(document, sent_back(document), NOW)
    assert document.text == text


def test_a_service_follows_the_new_name_of_its_run() -> None:
    document = EditedDocument((FIXTURES / "examples" / "quickstart.yaml").read_text(encoding="utf-8"), "test")
    sent = sent_back(document) | {"/workloads/0/name": "tune"}
    take_over(document, sent, NOW)
    assert yaml.safe_load(document.text)["workloads"][1]["starts"]["after"] == "tune"
    (shown,) = (
        one
        for one in build_cards(document, NOW, (), sent).cards[1].folded
        if one.field.path == "starts/after"
    )
    assert (shown.value, shown.meaning) == ("tune", "tune, as the run is called now")
    take_over(document, sent_back(document) | {"/workloads/1/starts/after": ""}, NOW)
    assert "starts" not in yaml.safe_load(document.text)["workloads"][1]


def test_changed_added_and_removed_fields_leave_all_else_as_it_was() -> None:
    text = edited(
        (head("horizon/days"), None, "14"),
        (head("budget/usd"), None, "12,500"),
        (field("training", "tokens"), 0, "3e9"),
        (field("training", "gpus/max"), 0, "64"),
        (field("training", "precision"), 0, "fp8"),
        (field("training", "policy/geography"), 0, "eu, us"),
        (field("serving", "traffic/peak_requests_per_s"), 1, "12"),
        (field("serving", "redundancy/zones"), 1, "2"),
        (field("serving", "starts/after"), 1, ""),
    )
    for comment in COMMENTS:
        assert comment in text
    data = yaml.safe_load(text)
    run, service = data["workloads"]
    assert data["horizon"]["days"] == 14
    assert data["budget"] == {"usd": 12500}
    assert data["policy"] == {"quotas": {"lambda": {"gpus": 64}}}
    assert (run["gpus"], run["precision"], run["policy"]) == (64, "fp8", {"geography": ["eu", "us"]})
    assert run["measured"][0]["tokens_per_s"] == 90000
    assert service["traffic"]["mix"][0]["share"] == 1
    assert service["traffic"]["peak_requests_per_s"] == 12
    assert service["redundancy"] == {"zones": 2}
    assert "starts" not in service
    assert read_workloads(text, source="test", base=None, now=NOW).workloads[0].name == "tune"


def test_another_field_of_an_object_that_one_figure_stands_for() -> None:
    text = edited((field("training", "gpus/min"), 0, "8"))
    assert yaml.safe_load(text)["workloads"][0]["gpus"] == {"max": 32, "min": 8}
    assert COMMENTS[0] in text


@pytest.mark.parametrize("short", ["H100", "[H100, L40S]"])
def test_names_of_gpus_that_stand_for_the_rules(short: str) -> None:
    text = KEPT.replace("    gpus: 32\n", f"    gpus: 32\n    policy: {{gpus: {short}}}\n")
    names = ["H100", "L40S"] if short.startswith("[") else "H100"
    only, memory = field("training", "policy/gpus/only"), field("training", "policy/gpus/min_memory_gb")
    assert shown(value_at(EditedDocument(text, "test").workloads[0], only.steps)) == short.strip("[]")
    wider = yaml.safe_load(edited((memory, 0, "40"), text=text))["workloads"][0]["policy"]["gpus"]
    assert wider == {"only": names, "min_memory_gb": 40}
    other = edited((only, 0, "T4, L4"), text=text)
    assert yaml.safe_load(other)["workloads"][0]["policy"]["gpus"] == ["T4", "L4"]
    for one in (text, other):
        assert "policy" not in yaml.safe_load(edited((only, 0, ""), text=one))["workloads"][0]
    assert yaml.safe_load(edited((only, 0, "L40S")))["workloads"][0]["policy"] == {"gpus": {"only": "L40S"}}


def test_what_is_no_number_is_kept_as_it_was_typed() -> None:
    text = edited((field("training", "tokens"), 0, "lots: of # them"))
    assert yaml.safe_load(text)["workloads"][0]["tokens"] == "lots: of # them"
    with pytest.raises(InputError) as refused:
        read_workloads(text, source="test", base=None, now=NOW)
    assert [one.pointer for one in refused.value.problems] == ["/workloads/0/tokens"]
    form = build_cards(EditedDocument(text, "test"), NOW, refused.value.problems)
    (wrong,) = (one for one in form.cards[0].first if one.wrong)
    assert (wrong.field.path, wrong.value) == ("tokens", "lots: of # them")


def test_a_name_that_reads_like_a_number_stays_a_name() -> None:
    assert yaml.safe_load(edited((head("team"), None, "007")))["team"] == "007"


def test_workloads_come_and_go_with_their_comments() -> None:
    document = EditedDocument(KEPT, "test")
    for kind in ("batch", "batch", "serving"):
        document.add(NEW_WORKLOADS[WorkloadKind(kind)])
    assert [one["name"] for one in document.workloads] == ["tune", "chat", "batch", "batch-2", "service"]
    assert all(comment in document.text for comment in COMMENTS)
    read_workloads(document.text, source="test", base=None, now=NOW)
    document.remove(0)
    assert "starts" not in document.workloads[0], "it followed the run that is gone"
    read_workloads(document.text, source="test", base=None, now=NOW)


def test_the_comment_before_the_next_workload_stays() -> None:
    document = EditedDocument(KEPT.replace("    starts: {after: tune}\n", ""), "test")
    document.remove(0)
    assert "workloads:\n  # and then\n  - name: chat\n" in document.text


def test_what_the_form_writes_is_short() -> None:
    document = EditedDocument(empty_document("research"), "test")
    for kind in WorkloadKind:
        document.add(NEW_WORKLOADS[kind])
    read_workloads(document.text, source="test", base=None, now=NOW)
    assert len(document.text.splitlines()) <= 3 + 7 + 5 + 7
    assert "  - name: service\n    kind: serving\n" in document.text


def test_what_the_form_does_not_show_is_named() -> None:
    form = build_cards(EditedDocument(KEPT, "test"), NOW)
    assert form.beyond == ("policy.quotas.lambda.gpus",)
    assert [card.beyond for card in form.cards] == [("measured",), ("traffic.mix",)]


@pytest.mark.parametrize("text", ["[1]", "workloads: 3", "just words", "workloads: {a: 1}"])
def test_what_is_no_list_of_workloads_has_no_form(text: str) -> None:
    with pytest.raises(InputError):
        EditedDocument(text, "test")


ANY = [
    (index, one)
    for index, kind in ((0, "training"), (1, "serving"))
    for one in WORKLOAD_FIELDS[WorkloadKind(kind)]
]
TYPED = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ANY), TYPED), max_size=6))
def test_whatever_is_typed_stands_in_the_document_and_can_be_typed_over(
    typed: list[tuple[tuple[int, FormField], str]],
) -> None:
    document = EditedDocument(KEPT, "test")
    for (index, one), written in typed:
        document.put(one, index, written)
        assert read_document(document.text, "test").data == document.data
        stands = shown(value_at(document.workloads[index], one.steps))
        if one.entry.value in ("text", "choice"):
            assert stands == " ".join(written.split())
        document.put(one, index, "")
        assert shown(value_at(document.workloads[index], one.steps)) == ""
