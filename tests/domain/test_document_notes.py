"""What is told of a document: patterns of regions that leave out most of a continent, contexts extended."""

from __future__ import annotations

from dataclasses import replace

from broker.catalogue import load_geographies
from broker.domain.planning.notes import document_notes, region_notes
from broker.domain.planning.workload import Policy
from tests.placement.market import MODEL, offer, request, serving, training

EUROPE = [
    *(offer(f"aws/{n}", "1.00", region=f"eu-west-{n}", country="IE") for n in range(3)),
    offer("aws/london", "1.00", region="eu-london", country="GB"),
    *(offer(f"verda/{n}", "1.00", region=f"FIN-0{n}", country="FI") for n in range(6)),
    offer("aws/us", "1.00", region="us-east-1", country="US"),
]


def notes(policy: Policy) -> tuple[str, ...]:
    asked = replace(request(serving()), policy=policy)
    return region_notes(asked, EUROPE, load_geographies())


def test_a_pattern_that_finds_a_third_of_the_union_is_told() -> None:
    (note,) = notes(Policy(regions=("eu-*", "europe-*", "us-*")))
    assert "eu-*, europe-* in the team's policy match 3 of the 9 offers in EU, and 1 elsewhere" in note
    assert "geography: [eu]" in note


def test_a_pattern_that_finds_all_and_one_that_names_a_region_are_not() -> None:
    assert notes(Policy(regions=("us-*",))) == ()
    assert notes(Policy(regions=("eu-west-*",))) == ()
    assert notes(Policy(regions=("eu-west-1",))) == ()
    assert notes(Policy(countries=("IE",))) == ()
    assert notes(Policy()) == ()


def test_sequences_beyond_a_models_context_are_told() -> None:
    long = training("long", sequence_length=2 * MODEL.context)
    (note,) = document_notes(request(long, training("short")), EUROPE, load_geographies())
    assert note == (
        "long trains on sequences of 262,144 tokens, which is more than the context of Llama-3.1-8B "
        "(131,072), so it extends the context"
    )
