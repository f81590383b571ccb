"""Whoever sells a data centre, it is one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.catalogue import load_operators
from broker.domain.market.offer import HostKind
from broker.domain.market.operators import Operator, Operators
from broker.provider_facts import load_provider_names
from tests.store.examples import offer

KNOWN = load_operators()


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (("verda", None, "FIN-02", None), ("prime_intellect", "datacrunch", "eu_north", "FIN-02")),
        (("verda", None, "FIN-02", None), ("gpuhunt", "verda", "fin-02", None)),
        (("hyperstack", None, "CANADA-1", None), ("prime_intellect", "hyperstack", "canada", "CANADA-1")),
        (("hyperstack", None, "CANADA-1", None), ("shadeform", "hyperstack", "montreal-canada-2", None)),
        (("crusoe", None, "us-east1-a", None), ("prime_intellect", "crusoecloud", "us", "us-east1-a")),
        (("lambda", None, "us-south-2", None), ("shadeform", "lambdalabs", "dallas-usa-3", None)),
        (("scaleway", None, "fr-par", "fr-par-2"), ("prime_intellect", "scaleway", "eu_west", "PAR2")),
        (("oci", None, "r", "Uocm:PHX-AD-1"), ("skypilot", "oci", "r", "PHX-AD-1")),
    ],
)
def test_two_sellers_of_one_data_centre_name_one_place(
    own: tuple[str, str | None, str, str | None], other: tuple[str, str | None, str, str | None]
) -> None:
    assert KNOWN.place_of(*own) == KNOWN.place_of(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("azure", None, "eastus", None), ("azure", None, "westeurope", None)),
        (("azure", None, "eastus", "1"), ("azure", None, "westeurope", "1")),
        (("verda", None, "FIN-01", None), ("verda", None, "FIN-02", None)),
        (("vast", "host 1", "Iowa, US", None), ("vast", "host 2", "Iowa, US", None)),
        (("lambda", None, "us-east-1", None), ("aws", None, "us-east-1", None)),
    ],
)
def test_two_data_centres_are_two_places(
    one: tuple[str, str | None, str, str | None], other: tuple[str, str | None, str, str | None]
) -> None:
    assert KNOWN.place_of(*one) != KNOWN.place_of(*other)


def test_machines_of_one_host_in_one_region_stand_in_one_place() -> None:
    here = ("tensordock", "Northern Compute", "Ashburn")
    assert KNOWN.place_of(*here, "host-1") == KNOWN.place_of(*here, "host-2")


def test_a_payload_s_word_on_hosts_stands_and_silence_is_the_operator_s() -> None:
    said = replace(offer("a"), provider="verda", host=HostKind.COMMUNITY)
    silent = replace(offer("b"), provider="verda", host=None)
    unknown = replace(offer("c"), provider="shadeform", seller="excesssupply", host=None)
    hosts = [host for _, host in KNOWN.sites([said, silent, unknown])]
    assert hosts == [HostKind.COMMUNITY, HostKind.DATACENTER, None]


def test_every_provider_is_an_operator_a_marketplace_or_sells_for_others() -> None:
    sells_for_others = {"skypilot", "gpuhunt", "shadeform"}
    for name in load_provider_names() - sells_for_others:
        assert name in KNOWN.marketplaces or KNOWN.operator_of(name, None) is not None, name


def test_a_name_belongs_to_one_operator() -> None:
    with pytest.raises(ValueError, match="both have the name"):
        Operators((Operator("a", frozenset({"Data Crunch"})), Operator("b", frozenset({"datacrunch"}))))
