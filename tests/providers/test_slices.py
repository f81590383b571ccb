"""A part of a card is sold by no seller as the card, however the seller tells it.

Every seller and list that states the memory of a GPU is given its own recorded answer with a fifth of that
memory in every row; those that tell the card by a word are given a word that names a part.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from broker.provider_facts import load_provider_facts
from providers.registry import SPECS
from tests.contract.exchanges import OBSERVED_AT, payloads

STATED = {
    "digitalocean": rb'("vram": \{\s*"amount": )(\d+)',
    "lambda": rb"(\()(\d+)(?= GB)",
    "latitude": rb'("vram_per_gpu": )(\d+)',
    "mithril": rb'("gpu_memory_gb": )(\d+)',
    "prime_intellect": rb'("gpuMemory": )(\d+)',
    "scaleway": rb'("gpu_memory": )(\d+)',
    "shadeform": rb'("vram_per_gpu_in_gb": )(\d+)',
    "skypilot": rb"('SizeInMiB': )(\d+)",
    "vast": rb'("gpu_ram": )(\d+)',
    "verda": rb'("gpu_memory": \{[^}]*?"size_in_gigabytes": )(\d+)',
}
"""Where an answer states the memory of a GPU, or of all GPUs of a row."""
WORDS = {
    "crusoe": (rb'"gpu_type": "', b'"gpu_type": "1/4 '),
    "cudo": (rb'"gpuModel": "', b'"gpuModel": "1/4 '),
    "hotaisle": (rb'"model": "', b'"model": "1/4 '),
    "hyperstack": (rb'"gpu": "(?=[A-Z])', b'"gpu": "1/4 '),
    "tensordock": (rb'"v0Name": "', b'"v0Name": "1/4 '),
    "together": (rb'"(?=[A-Z0-9]+_(?:SXM|PCI))', b'"1/4 '),
}
"""Words of sellers that state no memory of a GPU."""
BY_TYPE = ("aws", "azure", "oci")
"""Sellers of whose types those alone are sold that the configuration knows with a whole count."""
OWN_TESTS = {"gcp", "gpuhunt", "ovh", "runpod", "sfcompute", "vultr"}
"""Their recorded answers have slices among the rejected rows; SF Compute sells zones of whole nodes."""


def offers(provider: str, change: Callable[[bytes], bytes]) -> int:
    changed = [(name, change(body)) for name, body in payloads(provider)]
    return len(SPECS[provider].parse(changed, OBSERVED_AT).offers)


@pytest.mark.parametrize("provider", STATED)
def test_a_fifth_of_the_memory_is_no_whole_card(provider: str) -> None:
    def fifth(body: bytes) -> bytes:
        return re.sub(STATED[provider], lambda found: found[1] + b"%d" % (int(found[2]) // 5), body)

    assert offers(provider, lambda body: body) > 0
    assert offers(provider, fifth) == 0


@pytest.mark.parametrize("provider", WORDS)
def test_a_word_that_names_a_part_is_no_whole_card(provider: str) -> None:
    words, of_a_part = WORDS[provider]
    assert offers(provider, lambda body: body) > 0
    assert offers(provider, lambda body: re.sub(words, of_a_part, body)) == 0


@pytest.mark.parametrize("provider", BY_TYPE)
def test_types_that_are_sold_by_name_have_whole_cards(provider: str) -> None:
    facts = load_provider_facts(provider)
    counts = [node.gpus_per_node for node in facts.nodes.values()]
    assert all(isinstance(count, int) and count >= 1 for count in counts)
    assert not {name for name in facts.nodes if name in facts.search.get("fractional", ())}


def test_every_seller_has_been_asked() -> None:
    assert {*STATED, *WORDS, *BY_TYPE, *OWN_TESTS} == set(SPECS)
