"""Why a workload is placed as it is, for readers: a few sentences at once, the rest on demand."""

from __future__ import annotations

from collections.abc import Sequence

from broker.domain.planning.plan import Placement, Why

MOST_AT_ONCE = 6


def sentences_of(why: Why) -> tuple[str, ...]:
    """The sentences of an explanation; of a plan that was made without them, the rules that decided."""
    return why.sentences or tuple(f"{rule[:1].upper()}{rule[1:]}." for rule in why.binding)


def sentences_together(placements: Sequence[Placement]) -> tuple[str, ...]:
    """The sentences of all placements of one workload, those of the dearest first, each once."""
    dearest = max(placements, key=lambda placement: placement.cost_usd)
    others = (placement for placement in placements if placement is not dearest)
    told = (sentence for one in (dearest, *others) for sentence in sentences_of(one.why))
    return tuple(dict.fromkeys(told))


def folded(sentences: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is shown at once, and what is folded away."""
    return sentences[:MOST_AT_ONCE], sentences[MOST_AT_ONCE:]
