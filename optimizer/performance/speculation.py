"""Speculative decoding: drafted tokens that one step of the served model verifies together."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft and acceptance, one entry a case.

    ``drafted``: tokens k that a step drafts; ``acceptance``: chance a in [0, 1] that a drafted token is
    kept, given that those before it were; ``draft_share``: time of one drafted token over a plain step's
    (a multi-token prediction layer about 1/L and the head, a small model by its size).
    """

    drafted: Array
    acceptance: Array
    draft_share: Array

    @property
    def tokens_per_step(self) -> Array:
        """Tokens that a step yields on average, (1 − a^(k+1))/(1 − a): the kept ones and one of its own.

        Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, eq. 1.
        """
        chance = xp.minimum(self.acceptance, 1.0 - 1e-9)
        return (1.0 - xp.power(chance, self.drafted + 1.0)) / (1.0 - chance)
