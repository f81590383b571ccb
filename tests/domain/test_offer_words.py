"""Words of filters: what they stand for, and what a word that stands for nothing is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.near_words import near_words
from broker.domain.market.offer import Stock, StockLevel
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.offer_words import KnownNames, OfferTraits, names_of, read_offer_words
from broker.domain.market.sku import Form
from tests.fakes.examples import an_offer

GPUS = ("A10G", "H100-NVL-94GB", "H100-PCIE-80GB", "H100-SXM-80GB", "H200-SXM-141GB")
KNOWN = KnownNames(
    gpus=GPUS,
    providers=("aws", "lambda"),
    regions=("eu-west-1", "us-east-1", "us-west-2"),
    countries=("DE", "US"),
    gpu_aliases={"A10G-24GB": "A10G"},
)
names = st.lists(
    st.text(st.characters(codec="ascii", categories=("Lu", "Ll", "Nd"), include_characters="-"), min_size=1),
    min_size=1,
    max_size=8,
    unique_by=str.casefold,
)


@given(names, st.data())
def test_names_stand_for_themselves_whatever_their_case_and_order(
    known: list[str], data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.sampled_from(known), min_size=1))
    text = " , ".join(data.draw(st.sampled_from([name, name.upper(), name.lower()])) for name in asked)
    found, unknown = names_of(text, known, families=True)
    assert set(found) == set(asked)
    assert unknown == ""
    assert list(found) == [name for name in known if name in asked]


@given(names, st.data())
def test_a_pattern_stands_for_every_name_that_begins_so(known: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(known))
    start = name[: data.draw(st.integers(0, len(name)))].swapcase()
    found, _ = names_of(f"{start}*", known)
    assert set(found) == {one for one in known if one.casefold().startswith(start.casefold())}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H100", GPUS[1:4]),
        ("h100", GPUS[1:4]),
        ("H100*", GPUS[1:4]),
        ("H100-SXM-80GB", "H100-SXM-80GB"),
        ("H200,A10G", ("A10G", "H200-SXM-141GB")),
        ("A10G-24GB", "A10G"),
    ],
)
def test_a_family_is_every_gpu_of_its_name(text: str, expected: object) -> None:
    wanted, problems = read_offer_words({"gpu": text}, KNOWN)
    assert (wanted.names, problems) == (OfferFilter(gpu=expected), ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "nearest"),
    [
        ("gpu", "H1OO", "H100"),
        ("gpu", "H100,H1000", "H100"),
        ("gpu", "h1[0]0*", ""),
        ("gpu", "", ""),
        ("provider", "lamda", "lambda"),
        ("region", "us-eest-*", "us-east-1"),
        ("region", "us", "us-east-1"),
        ("tier", "ondemand", "on_demand"),
        ("form", "baremetal", "bare_metal"),
        ("country", "UX", "US"),
        ("gpus_per_node", "8,eight", "such as 8"),
        ("gpus_per_node", "0", "such as 8"),
        ("gpus_per_node", "²", "such as 8"),
    ],
)
def test_a_word_that_names_nothing_is_a_problem_of_its_field(name: str, text: str, nearest: str) -> None:
    _, (problem,) = read_offer_words({name: text}, KNOWN)
    assert problem.pointer == f"/{name}"
    assert nearest in problem.expected


def test_every_wrong_word_is_told_at_once() -> None:
    _, problems = read_offer_words({"gpu": "H1OO", "tier": "spt", "region": "us-*"}, KNOWN)
    assert [one.pointer for one in problems] == ["/gpu", "/tier"]


def test_an_unknown_market_takes_regions_as_they_are() -> None:
    wanted, problems = read_offer_words({"region": "us-east-1"}, KnownNames())
    assert (wanted.names.region, problems) == ("us-east-1", ())


def test_traits_admit_what_has_all_of_them() -> None:
    offer = an_offer("a", "24")
    node = replace(offer.sku, form=Form.VM)
    offer = replace(offer, sku=node, country="US", stock=Stock(StockLevel.SOME, None))
    traits = OfferTraits(("US",), ("vm",), (node.gpus_per_node,), orderable=True)
    assert traits.admit(offer)
    assert not traits.admit(replace(offer, country="DE"))
    assert not traits.admit(replace(offer, sku=replace(node, form=Form.CONTAINER)))
    assert not traits.admit(replace(offer, sku=replace(node, gpus_per_node=node.gpus_per_node + 1)))
    assert not traits.admit(replace(offer, stock=Stock(StockLevel.NONE, None)))
    assert not traits.admit(replace(offer, stock=Stock(StockLevel.LOW, 0)))


@given(st.text(), st.lists(st.text(min_size=1)), st.integers(1, 5))
def test_near_words_are_known_and_few(word: str, known: list[str], count: int) -> None:
    near = near_words(word, known, count)
    assert len(near) <= count
    assert set(near) <= set(known)
