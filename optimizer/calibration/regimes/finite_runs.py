"""Runs of a finite number of requests: the cost of the end, when no new requests replace the last ones.

Arrays over rows; lengths in tokens, times in seconds.
"""

from __future__ import annotations

import numpy as np

from optimizer.calibration.regimes.closed_loops import uneven_share
from optimizer.calibration.regimes.load import LoadSpec, places_of
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.serving.queueing import Lengths, mean_context, met_output_tokens
from optimizer.performance.serving.served_model import ServedModel
from optimizer.performance.serving.steps import decode_step, prefill

EULER = 0.5772  # harmonic numbers are about ln n plus this
DOUBT = (0.85, 0.95, 1.05, 1.15)  # share of the predicted places of a replica
NODES, SHARES = np.polynomial.legendre.leggauss(6)


def run_share(served: ServedModel, lengths: Lengths, asked: LoadSpec, tokens_per_s: Array) -> Array:
    """Mean rate of a run of ``asked.requests`` as a share of ``tokens_per_s``, the rate with all slots taken.

    A step with b of B sequences takes longer than b/B of a full one. With x the total of that excess in
    seconds over the steps of the end, the share is 1/(1 + x·rate/(N·output)). Equal answers that start
    together end together, in waves of which the last is smaller; prompts that take turns and unequal answers
    separate them.
    """
    batch = np.where(asked.batch > 0, asked.batch, np.inf)
    ends = np.isfinite(asked.requests)
    requests = np.where(ends, asked.requests, 1.0)
    flying = np.maximum(np.minimum(np.minimum(places_of(served, lengths), batch), requests), 1.0)
    together = _together(served, lengths, asked, flying, tokens_per_s)
    waves = _last_wave_s(served, lengths, requests, flying)
    apart = _ending_s(served, lengths, asked, requests, flying)
    lost = served.rates.drain_share * (together * waves + (1.0 - together) * apart) * asked.parted
    kept: Array = 1.0 / (1.0 + lost * tokens_per_s / (requests * lengths.output_tokens))
    return np.where(ends, kept, 1.0)


def _together(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, flying: Array, tokens_per_s: Array
) -> Array:
    """Share of a wave that ends together, after the time of all its prompts and unequal answers have spread
    it."""
    answer_s = flying * lengths.output_tokens / tokens_per_s
    prompts_s = flying * prefill(served, lengths.new_tokens).work
    uneven = uneven_share(_output_cv(served, lengths), asked)
    return np.maximum(1.0 - np.hypot(prompts_s / answer_s, uneven), 0.0)


def _last_wave_s(served: ServedModel, lengths: Lengths, requests: Array, flying: Array) -> Array:
    """The excess time of a last wave of r = N mod B answers over r/B of a full one, averaged over B."""
    found = []
    for doubt in DOUBT:
        places = np.maximum(flying * doubt, 1.0)
        left = requests - places * np.floor(requests / places)
        found.append(_excess_s(served, lengths, left / places, places) * lengths.output_tokens)
    return np.where(requests <= flying, 0.0, np.mean(found, axis=0))


def _ending_s(
    served: ServedModel, lengths: Lengths, asked: LoadSpec, requests: Array, flying: Array
) -> Array:
    """The excess time if B sequences end one by one: after x of at most M tokens, (1 − x/M)^k of them are
    left.

    The exponent k is such that the mean remaining length is R: half of an answer for answers that are met at
    random, a whole one if all start together. Gauss–Legendre quadrature over x.
    """
    most = longest_output_tokens(served, lengths, flying, asked)
    whole = lengths.output_tokens
    rest = np.where(requests <= flying, whole, met_output_tokens(served, lengths) / 2.0)
    power = np.maximum(most / rest - 1.0, 0.0)
    parts = [
        share / 2.0 * _excess_s(served, lengths, ((1.0 - node) / 2.0) ** power, flying)
        for node, share in zip(NODES, SHARES, strict=True)
    ]
    found: Array = most * np.sum(parts, axis=0)
    return found


def _excess_s(served: ServedModel, lengths: Lengths, share: Array, flying: Array) -> Array:
    """The step with ``share`` of the sequences less the same share of a full step; 0 if
    no sequence is left."""
    context = mean_context(served, lengths)
    full = decode_step(served, flying, context).total
    part = decode_step(served, np.maximum(share * flying, 1.0), context).total
    return np.where(share > 0.0, np.maximum(part - share * full, 0.0), 0.0)


def longest_output_tokens(served: ServedModel, lengths: Lengths, count: Array, asked: LoadSpec) -> Array:
    """The expected longest of ``count`` answers: 1 + c·(ln n + γ − 1) times the mean, which is exact for
    exponential lengths (c = 1); at most ``asked.longest`` times the mean if the benchmark limits lengths."""
    above = np.maximum(np.log(np.maximum(count, 1.0)) + EULER - 1.0, 0.0)
    return lengths.output_tokens * np.minimum(1.0 + _output_cv(served, lengths) * above, asked.longest)


def _output_cv(served: ServedModel, lengths: Lengths) -> Array:
    cv = lengths.output_cv
    return as_array([served.calibration.queueing.output_cv]) if cv is None else cv
