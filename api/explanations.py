"""The reasons of a placement for people: a few sentences at once, the others on demand."""

from __future__ import annotations

from collections.abc import Sequence

from broker.domain.planning.plan import Placement, Why

MOST_AT_ONCE = 6


def sentences_of(why: Why) -> tuple[str, ...]:
    """The sentences of an explanation; for older plans without sentences, the binding rules."""
    return why.sentences or tuple(f"{rule[:1].upper()}{rule[1:]}." for rule in why.binding)


def sentences_together(placements: Sequence[Placement]) -> tuple[str, ...]:
    """The distinct sentences of all placements of one workload; those of the most expensive placement come
    first.
    """
    dearest = max(placements, key=lambda placement: placement.cost_usd)
    others = (placement for placement in placements if placement is not dearest)
    told = (sentence for one in (dearest, *others) for sentence in sentences_of(one.why))
    return tuple(dict.fromkeys(told))


def folded(sentences: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The sentences that are shown at once, and those that are shown on demand."""
    return sentences[:MOST_AT_ONCE], sentences[MOST_AT_ONCE:]
