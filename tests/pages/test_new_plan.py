"""A plan without YAML: the form of workloads in a real browser, with and without scripts."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from tests.pages.conftest import DESK, PHONE, Open

pytestmark = pytest.mark.xdist_group("browser")


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name)


def test_estimates_and_errors_follow_what_is_typed(shopping: Open) -> None:
    page = shopping(who="team")
    page.goto("/plans/new?example=quickstart")
    run = card(page, "Training run: finetune-8b")
    said = run.locator("output")
    expect(said).to_contain_text("left out: 3 by the policy on providers, regions and hosts")
    run.get_by_text("Further fields").click()
    run.get_by_label("Hosts").fill("datacenter, community")
    expect(said).to_contain_text("× H100-SXM-80GB for")
    expect(said).to_contain_text("$")
    run.get_by_label("Model").fill("Lama-3.1-8B")
    expect(run.locator(".field-error").filter(has_text="nearest: Llama-3.1-8B")).to_be_visible()
    expect(run.get_by_label("Model")).to_have_value("Lama-3.1-8B")
    expect(page.locator("#estimate-all")).to_have_text("1 problem to correct first")
    expect(said).to_be_empty()
    expect(card(page, "Service: assistant-8b").locator("output")).to_contain_text("left out")
    run.get_by_label("Model").fill("Llama-3.1-8B")
    expect(page.locator("#estimate-all")).to_contain_text("together $")
    assert page.locator("datalist#models option").count() > 50


def test_amounts_and_times_in_words_are_said_in_full(shopping: Open) -> None:
    page = shopping(PHONE, who="team")
    page.goto("/plans/new?example=quickstart")
    run = card(page, "Training run: finetune-8b")
    tokens, done = run.get_by_label("Tokens to train on"), run.get_by_label("Done by")
    expect(tokens).to_have_accessible_description("2,000,000,000 tokens")
    tokens.fill("500M")
    expect(tokens).to_have_accessible_description("500,000,000 tokens")
    done.fill("in 2 days")
    expect(done).to_have_accessible_description(
        re.compile(r"^[A-Z][a-z]{2} \d+ [A-Z][a-z]{2} \d{4} 00:00 UTC")
    )
    expect(tokens).to_have_value("500M")
    page.get_by_role("button", name="Document (YAML)").click()
    text = page.get_by_label("Workloads, as YAML or JSON").input_value()
    assert "tokens: 5e8\n" in text
    assert re.search(r'deadline: "?\d{4}-\d\d-\d\dT00:00:00Z"', text)


def test_form_and_text_are_one_document(shopping: Open) -> None:
    page = shopping(who="team")
    page.goto("/plans/new?example=quickstart")
    card(page, "Training run: finetune-8b").get_by_label("Tokens to train on").fill("3e9")
    page.get_by_role("button", name="Document (YAML)").click()
    text = page.get_by_label("Workloads, as YAML or JSON")
    written = text.input_value()
    assert "tokens: 3e9\n" in written
    assert "# counted from the horizon's start" in written
    more = "    measured: [{gpu: H100-SXM-80GB, tokens_per_s: 9000}]\n    deadline: +4d"
    text.fill(written.replace("    deadline: +4d", more))
    page.get_by_role("button", name="Form", exact=True).click()
    run = card(page, "Training run: finetune-8b")
    expect(run).to_contain_text("The document also has measured")
    expect(run.get_by_label("Tokens to train on")).to_have_value("3e9")
    run.get_by_label("Done by").fill("+5d")
    page.get_by_role("button", name="Document (YAML)").click()
    assert text.input_value() == written.replace("    deadline: +4d", more.replace("+4d", "+5d"))


def test_without_scripts_a_plan_is_made_of_cards_alone(shopping: Open) -> None:
    page = shopping(who="team", scripts=False)
    page.goto("/plans/new?example=quickstart")
    page.get_by_role("button", name="Remove assistant-8b").click()
    page.get_by_role("button", name="Remove finetune-8b").click()
    expect(page.locator("section.workload h2")).to_have_count(0)
    page.get_by_role("button", name="Add a training run").click()
    run = card(page, "Training run: training")
    run.get_by_label("Name", exact=False).first.fill("cards-8b")
    run.get_by_label("Tokens to train on").fill("many")
    page.get_by_role("button", name="Make a plan").click()
    expect(page.get_by_role("alert")).to_contain_text("1 problem to correct")
    run = card(page, "Training run: cards-8b")
    tokens = run.get_by_label("Tokens to train on")
    expect(tokens).to_have_value("many")
    expect(tokens).to_have_attribute("aria-invalid", "true")
    described = tokens.get_attribute("aria-describedby")
    expect(page.locator(f"#{described}")).to_contain_text("Expected a number")
    tokens.fill("2e9")
    page.get_by_role("button", name="Estimate now").click()
    expect(card(page, "Training run: cards-8b").locator("output")).to_contain_text("left out")
    page.get_by_label("Plan from").fill("now")
    page.get_by_role("button", name="Make a plan").click()
    expect(page).to_have_url(re.compile(r"/plans/plan-"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("cards-8b")


def test_a_document_that_has_no_form_stays_text(shopping: Open) -> None:
    page = shopping(who="team", scripts=False)
    page.goto("/plans/new?view=document")
    text = page.get_by_label("Workloads, as YAML or JSON")
    for broken in ("workloads: [", "workloads: [{kind: surfing}]"):
        text.fill(broken)
        page.get_by_role("button", name="Form", exact=True).click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(text).to_have_value(broken)


def test_enter_in_a_field_plans_nothing(shopping: Open) -> None:
    page = shopping(who="team")
    page.goto("/plans/new?example=quickstart")
    page.get_by_label("For days").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("New plan")
    expect(card(page, "Service: assistant-8b").locator("output")).to_contain_text("left out")


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_no_finding_of_axe_on_cards_with_errors(shopping: Open, size: tuple[int, int], scheme: str) -> None:
    page = shopping(size, who="team", scheme=scheme)
    page.goto("/plans/new?example=quickstart")
    for summary in page.locator("details.more summary").all():
        summary.click()
    page.get_by_label("Model").first.fill("Lama")
    expect(page.locator(".field-error").filter(has_text="Expected")).to_be_visible()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:100] for node in one["nodes"][:3]]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_command_line_becomes_a_card(shopping: Open) -> None:
    page = shopping(who="team", scripts=False)
    page.goto("/plans/new?example=quickstart")
    pasted = page.get_by_label("The command of a server or of a training run")
    pasted.fill("ls -l")
    page.get_by_role("button", name="Add its workload").click()
    expect(page.get_by_role("alert")).to_contain_text("a Kubernetes manifest, a configuration of axolotl")
    expect(pasted).to_have_value("ls -l")
    line = "vllm serve meta-llama/Llama-3.1-70B-Instruct \\\n  --quantization fp8"
    pasted.fill(f"{line} --served-model-name pasted")
    page.get_by_role("button", name="Add its workload").click()
    expect(page.locator("section.notice")).to_contain_text("examples in their place: requests per second")
    notice = page.locator("section.notice")
    expect(notice).not_to_contain_text("Not used")
    added = card(page, "Service: pasted")
    expect(added.get_by_label("Model")).to_have_value("Llama-3.1-70B")
    page.get_by_label("Or its file").set_input_files(
        {"name": "t.sh", "mimeType": "text/x-sh", "buffer": b"torchrun --nproc_per_node 8 train.py"}
    )
    page.get_by_role("button", name="Add its workload").click()
    expect(card(page, "Training run: training").get_by_label("GPUs at most")).to_have_value("8")
    page.get_by_label("Kind").select_option("batch")
    pasted.fill("vllm serve Qwen/Qwen3-8B --port 80 --enforce-eager")
    page.get_by_role("button", name="Add its workload").click()
    expect(notice).to_contain_text("--enforce-eager: planned with CUDA graphs")
    expect(notice).to_contain_text("--port: they set up the server")
    expect(card(page, "Batch: batch").get_by_label("Model")).to_have_value("Qwen3-8B")


def test_a_renamed_run_is_followed_and_problems_lead_to_their_fields(shopping: Open) -> None:
    page = shopping(who="team")
    page.goto("/plans/new?example=quickstart")
    run, service = card(page, "Training run: finetune-8b"), card(page, "Service: assistant-8b")
    run.get_by_label("Name").fill("tune")
    after = service.get_by_label("Starts after the run")
    expect(after).to_have_accessible_description("tune, as the run is called now")
    after_problem = page.locator("#estimate-all")
    expect(after_problem).not_to_contain_text("to correct")
    service.get_by_text("Further fields").click()
    service.get_by_label("Hosts").fill("nowhere")
    service.get_by_text("Further fields").click()
    page.get_by_role("link", name="1 problem to correct first").click()
    expect(service.get_by_label("Hosts")).to_be_in_viewport()
    page.get_by_role("button", name="Make a plan").click()
    alert = page.get_by_role("alert")
    alert.get_by_role("link", name="assistant-8b: Hosts").click()
    expect(service.get_by_label("Hosts")).to_be_in_viewport()
    expect(card(page, "Service: assistant-8b").get_by_label("Starts after the run")).to_have_value("tune")


def test_the_form_begins_with_the_question_what_to_run(shopping: Open) -> None:
    page = shopping(PHONE, who="team", scripts=False)
    page.goto("/plans/new")
    question = page.get_by_role("heading", name="What do you want to run?")
    page.get_by_label("For days").fill("9")
    page.get_by_label("For days").press("Enter")
    expect(question).to_be_visible()
    expect(page.get_by_role("button", name="Make a plan")).to_have_count(0)
    page.get_by_role("button", name="Add a service").click()
    expect(question).to_have_count(0)
    service = card(page, "Service: service")
    service.get_by_text("Further fields").click()
    expect(service.get_by_label("Starts after the run").locator("option")).to_have_text("none (default)")
    page.get_by_role("button", name="Add a training run").click()
    service.get_by_text("Further fields").click()
    service.get_by_label("Starts after the run").select_option("training")
    page.get_by_role("button", name="Document (YAML)").click()
    text = page.get_by_label("Workloads, as YAML or JSON").input_value()
    assert "starts: {after: training}" in text
    assert "days: 9" in text


SHORT, LONG = "A short fine-tune, then a small service", "A pretraining run, then the model served"


def test_an_example_wipes_nothing_that_cannot_be_brought_back(shopping: Open) -> None:
    page = shopping(PHONE, who="team")
    page.goto("/plans/new?example=quickstart")
    undo = page.get_by_role("button", name="Undo")
    page.get_by_role("button", name=LONG).press("Enter")
    expect(page.get_by_role("button", name=LONG)).to_have_attribute("aria-current", "true")
    expect(undo).to_have_count(0)
    page.get_by_role("button", name=SHORT).click()
    tokens = card(page, "Training run: finetune-8b").get_by_label("Tokens to train on")
    tokens.fill("700M")
    for example in (LONG, SHORT, LONG):
        page.get_by_role("button", name=example).click()
        expect(page.get_by_role("button", name=example)).to_have_attribute("aria-current", "true")
        expect(page.get_by_role("status").filter(has=undo)).to_be_focused()
        expect(page.get_by_role("status").filter(has=undo)).to_contain_text("The example replaced")
    undo.press("Enter")
    expect(tokens).to_have_value("7e8")
    expect(undo).to_have_count(0)


def test_what_is_removed_or_replaced_by_a_file_can_be_brought_back(shopping: Open) -> None:
    page = shopping(who="team", scripts=False)
    page.goto("/plans/new?example=quickstart")
    run = card(page, "Training run: finetune-8b")
    run.get_by_label("Tokens to train on").fill("3e9")
    page.get_by_role("button", name="Remove finetune-8b").click()
    expect(run).to_have_count(0)
    expect(page.get_by_role("status").first).to_contain_text("Removed finetune-8b.")
    page.get_by_role("button", name="Undo").click()
    expect(run.get_by_label("Tokens to train on")).to_have_value("3e9")
    expect(page.get_by_role("status").first).to_contain_text("What was written before is back.")
    page.get_by_role("button", name="Undo").click()
    expect(run).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    file = b"team: research\nhorizon: {start: now, days: 3}\nworkloads: []\n"
    page.get_by_label("The file replaces the text").set_input_files(
        {"name": "w.yaml", "mimeType": "text/yaml", "buffer": file}
    )
    page.get_by_role("button", name="Take this file").click()
    expect(page.get_by_label("For days")).to_have_value("3")
    page.get_by_role("button", name="Undo").click()
    expect(run.get_by_label("Tokens to train on")).to_have_value("3e9")


def test_a_batch_of_each_night_is_written_once(shopping: Open) -> None:
    page = shopping(who="team", scripts=False)
    page.goto("/plans/new?example=quickstart")
    page.get_by_role("button", name="Add a batch").click()
    batch = card(page, "Batch: batch")
    batch.get_by_text("Further fields").click()
    batch.get_by_label("Again every").fill("1d")
    batch.get_by_label("Done by").fill("+6h")
    batch.get_by_label("How many times").fill("30")
    page.get_by_role("button", name="Estimate now").click()
    expect(batch.get_by_label("How many times")).to_have_accessible_description(re.compile("at most 7"))
    batch.get_by_label("How many times").fill("7")
    page.get_by_role("button", name="Document (YAML)").click()
    expect(page.locator("textarea").first).to_have_value(re.compile("every: 1d"))


def test_no_finding_of_axe_where_something_can_be_undone(shopping: Open) -> None:
    page = shopping(PHONE, who="team")
    page.goto("/plans/new?example=quickstart")
    page.get_by_role("button", name="Add a batch").click()
    page.get_by_role("button", name="Remove assistant-8b").click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:100] for node in one["nodes"][:3]]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
