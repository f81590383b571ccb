"""Documents that are wrong a hundred thousand times cost no more than those that are wrong twenty times.

The work is counted: searches of a nearest word, and problems that are made. Nothing is timed.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest
from pydantic import ValidationError

from api.http.strict_requests import require_plain
from api.schemas.base.document import MAX_SHOWN
from api.schemas.holding.reservation import ReservationRequest
from api.schemas.market.contract_prices import read_contract_prices
from api.schemas.market.market import read_market
from api.schemas.workloads.document_walk import MOST_UNKNOWN
from api.schemas.workloads.what_if import ChangeForm, changed_document
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus, load_models
from broker.domain.basics.errors import InputError
from optimizer.calibration.own.rows import check_rows
from optimizer.performance.constants.calibrated import load_calibration
from tests.fakes.clock import NOON

HEAD = "team: a\nhorizon: {start: tomorrow, days: 14}\n"
RUN = (
    "{name: %s, kind: training, model: %s, tokens: 2e9, sequence_length: 8192, global_batch_tokens: 1e6,"
    " deadline: +7d%s}"
)
SOUND = f"workloads: [{RUN % ('a', 'Llama-3.1-8B', '')}]\n"
MANY = 500


def listed(form: str) -> str:
    return ", ".join(form % index for index in range(MANY))


MEASURED = listed("{gpu: XX%d, tokens_per_s: 1}")
DOCUMENTS = {
    "fields": HEAD + "".join(f"f{index}: 1\n" for index in range(MANY)) + SOUND,
    "fewer fields": HEAD + "".join(f"f{index}: 1\n" for index in range(MOST_UNKNOWN)) + SOUND,
    "models": HEAD + "workloads: [" + ", ".join(RUN % (f"a{n}", f"no{n}", "") for n in range(MANY)) + "]\n",
    "countries": HEAD + f"policy: {{countries: [{listed('Nowhere%d')}]}}\n" + SOUND,
    "providers": HEAD + f"policy: {{providers: {{only: [{listed('nobody%d')}]}}}}\n" + SOUND,
    "quotas": HEAD + f"policy: {{quotas: {{{listed('p%d: {vcpus: 1}')}}}}}\n" + SOUND,
    "measured": HEAD + f"workloads: [{RUN % ('a', 'Llama-3.1-8B', f', measured: [{MEASURED}]')}]\n",
    "invisible text": HEAD + "".join(f'f{index}: "\\u202E"\n' for index in range(MANY)) + SOUND,
}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words whose nearest known word was searched."""
    asked: list[str] = []
    search = difflib.get_close_matches

    def counted(word: str, *args: Any, **more: Any) -> list[str]:
        asked.append(word)
        return search(word, *args, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return asked


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_wrong_everywhere_is_read_as_far_as_it_is_shown(
    name: str, searches: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        read_workloads(DOCUMENTS[name], source="w", base=None, now=NOON)
    assert 1 <= len(error.value.problems) <= MAX_SHOWN + 1
    # The two lists of a policy that name providers search each word twice.
    assert len(searches) <= 3 * (MAX_SHOWN + 1)


def test_an_object_of_very_many_fields_is_one_problem() -> None:
    with pytest.raises(InputError) as error:
        read_workloads(DOCUMENTS["fields"], source="w", base=None, now=NOON)
    (problem,) = error.value.problems
    assert problem.found == f"an object with team, horizon, f0, f1, f2 and {MANY - 2} more"
    assert problem.expected == "at most the 6 fields team, horizon, budget, policy, confidence, workloads"


def test_other_inputs_stop_too() -> None:
    rows = "\n".join(f"c,p,,,,x{n},2026-01-01,5," for n in range(MANY))
    header = "contract,provider,sku,region,tier,from,to,discount_percent,price_usd_per_node_hour\n"
    with pytest.raises(InputError) as prices:
        read_contract_prices(header + rows, "prices.csv")
    assert len(prices.value.problems) == MAX_SHOWN + 1
    market = {"as_of": "2026-11-28T00:00:00Z", "offers": [{"x": n} for n in range(MANY)]}
    with pytest.raises(InputError) as offers:
        read_market(json.dumps(market), "m.json")
    assert len(offers.value.problems) == MAX_SHOWN + 1
    with pytest.raises(InputError) as unseen:
        require_plain(json.dumps(["\u202e"] * MANY).encode())
    assert len(unseen.value.problems) == MAX_SHOWN + 1


def test_measured_rows_are_checked_as_far_as_they_are_shown() -> None:
    rows = [{"id": str(number), "kind": "dreaming"} for number in range(MANY)]
    with pytest.raises(InputError) as error:
        check_rows(rows, "runs.csv", load_calibration(), load_gpus(), load_models())
    assert len(error.value.problems) == MAX_SHOWN + 1
    assert error.value.problems[-1].found == "further faults"


def test_a_patch_cannot_double_the_document_forty_times() -> None:
    copies = [{"op": "copy", "from": "/workloads", "path": "/workloads/-"}]
    change = ChangeForm.model_validate({"name": "x", "patch": copies * 40})
    with pytest.raises(InputError, match="copies of more than 1,000,000 characters"):
        changed_document(json.dumps({"workloads": [{"name": "a"}]}), change, 0)
    few = ChangeForm.model_validate({"name": "x", "patch": copies * 2})
    assert len(json.loads(changed_document('{"workloads": [1]}', few, 0))["workloads"]) == 3


def test_a_wrong_cell_of_contract_prices_is_named_by_line_and_column() -> None:
    text = "contract,provider,from,to,discount_percent\nc,aws,soon,2026-12-31,5\n"
    with pytest.raises(InputError) as error:
        read_contract_prices(text, "prices.csv")
    (problem,) = error.value.problems
    assert str(problem).startswith("/2/from (line 2, column 3): found 'soon'")
    with pytest.raises(InputError, match=r"\(line 1\): found nothing"):
        read_contract_prices("", "prices.csv")


def test_a_quota_in_other_words_names_the_fields_that_it_has() -> None:
    text = HEAD + "policy: {quotas: {aws: {vcpus: 192}}}\n" + SOUND
    with pytest.raises(InputError, match="one of gpus, nodes"):
        read_workloads(text, source="w", base=None, now=NOON)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/whisper-large-v3", "a model of speech cannot be planned yet"),
        ("distil-whisper/distil-large-v3", "a model of speech cannot be planned yet"),
        ("microsoft/resnet-50", "a model of images cannot be planned yet"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "a model of images cannot be planned yet"),
        ("Qwen/Qwen-Image", "a model of images cannot be planned yet"),
        ("FacebookAI/xlm-roberta-large", "a model of embeddings cannot be planned yet"),
        ("google/flan-t5-xl", "a model of text-to-text tasks cannot be planned yet"),
        ("facebook/esm2_t33_650M_UR50D", "a model of proteins cannot be planned yet"),
        ("graphcast", "a model of weather cannot be planned yet"),
        ("my-org/private-32b", "for a model of your own the one that it was made of, or its config.json"),
        ("Qwen/Qwen3-VL-8B-Instruct", "a model of images and text cannot be planned yet"),
        ("Lama-3.1-8B", "nearest: Llama-3.1-8B"),
        ("Qwen/Qwen3-8B-AWQ", "a model in 16 bits"),
    ],
)
def test_a_model_that_is_not_planned_is_answered_by_its_kind(model: str, expected: str) -> None:
    text = HEAD + f"workloads: [{RUN % ('a', model, '')}]\n"
    with pytest.raises(InputError) as error:
        read_workloads(text, source="w", base=None, now=NOON)
    (problem,) = error.value.problems
    assert expected in problem.expected
    assert "Mistral-Large" not in problem.expected
    assert "OPT" not in problem.expected


@pytest.mark.parametrize(
    "model", ["my-org/samba-7b", "my-org/R1-Distill-Large-7B", "my-org/laser-7b", "dolphin-t51"]
)
def test_a_name_that_only_resembles_another_kind_is_not_refused_for_it(model: str) -> None:
    text = HEAD + f"workloads: [{RUN % ('a', model, '')}]\n"
    with pytest.raises(InputError) as error:
        read_workloads(text, source="w", base=None, now=NOON)
    (problem,) = error.value.problems
    assert "cannot be planned yet" not in problem.expected


@pytest.mark.parametrize(
    ("model", "precision"),
    [("Qwen/Qwen3-32B-FP8", "fp8"), ("Qwen/Qwen3-14B-AWQ", "int4"), ("Qwen/Qwen3-8B", "bf16")],
)
def test_a_name_that_states_a_format_means_it(model: str, precision: str) -> None:
    text = (
        HEAD + f"workloads: [{{name: s, kind: serving, model: {model}, traffic: {{peak_requests_per_s: 1, "
        "input_tokens: 9, output_tokens: 9}, slo: {ttft_p95_ms: 900, itl_p95_ms: 90}}]\n"
    )
    (service,) = read_workloads(text, source="w", base=None, now=NOON).workloads
    assert [str(one) for one in service.precisions] == [precision]  # type: ignore[union-attr]
    other = text.replace("Qwen/Qwen3-8B,", "Qwen/Qwen3-8B-GPTQ-Int8,")
    if other != text:
        with pytest.raises(InputError, match="weights in int8, which no plan has"):
            read_workloads(other, source="w", base=None, now=NOON)


def test_a_change_that_fails_is_named_without_the_whole_document() -> None:
    stored = json.dumps({"team": "research", "workloads": [{"name": "a"}]})
    for operation in ({"op": "test", "path": "/team", "value": "x"}, {"op": "remove", "path": "/b/c"}):
        change = ChangeForm.model_validate({"name": "a", "patch": [operation]})
        with pytest.raises(InputError) as refused:
            changed_document(stored, change, 0)
        (problem,) = refused.value.problems
        assert problem.found == f'{operation["op"]} at "{operation["path"]}"'


def test_the_disk_of_an_order_is_a_number() -> None:
    wish = {"offer_id": "a", "nodes": 1, "disk_gb": 350}
    assert ReservationRequest.model_validate(wish).disk_gb == 350
    with pytest.raises(ValidationError):
        ReservationRequest.model_validate({**wish, "disk_gb": True})
