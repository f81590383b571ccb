"""Text of a workloads document → PlanRequest.

All problems of a document are reported together, each with its field and its line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from api.schemas.base.document import (
    MAX_SHOWN,
    Document,
    describe,
    input_error,
    pointer_of,
    read_document,
)
from api.schemas.base.given_text import require_seen
from api.schemas.base.times import format_time, parse_relative, parse_start
from api.schemas.base.validation import THIS_FIELD, further_of, problems_of
from api.schemas.workloads.document_form import HorizonForm, WorkloadsForm
from api.schemas.workloads.document_walk import Walk
from api.schemas.workloads.mended_document import MOST_ROUNDS, is_sound, mend, unknown_model
from api.schemas.workloads.policy_words import Unknown, outside, provider_expected, word_of
from api.schemas.workloads.training_methods import method_problems, stacks_of
from broker.catalogue import load_gpus, load_models, named_format, resolve_gpu, resolve_gpus, resolve_model
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Window
from broker.domain.planning.workload import (
    Batch,
    Measurement,
    PlanRequest,
    Policy,
    Precision,
    Serving,
    Training,
    Workload,
)
from broker.domain.workloads.document_fields import LONG_AGO, LONGEST_NAME, MOST_DAYS, MOST_TIMES, Told
from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.repeats import Repeat, is_repeated, name_of_time, series_of
from broker.domain.workloads.traffic import HOURS_PER_WEEK, RequestSize, Traffic, TrafficShape, mean_tokens
from broker.domain.workloads.training_method import BaseFormat
from broker.models.weight_formats import PLANNED
from broker.provider_facts import load_provider_names

SHARES_TOLERANCE = 1e-6
OWN_STORAGE = "own"
"""The location of data that no provider stores; the cost of its egress is unknown."""
SECONDS_PER_DAY = 86_400
TERA = 1e12
LEAST_FLOP_PER_PARAM = 4
"""The least FLOP of training per active parameter and token: forward pass and gradients of the activations
(frozen weights have no gradients)."""
SHORTEST_HORIZON = timedelta(hours=1)
Timed = TypeVar("Timed", Training, Batch)
Served = TypeVar("Served", Serving, Batch)


def read_workloads(
    text: str, *, source: str, base: Path | None, now: datetime, stored: bool = False
) -> PlanRequest:
    """The request that a YAML or JSON text describes.

    ``source`` names the text in messages. Model paths are relative to ``base``; None: only named models.
    Words such as ``tomorrow`` are resolved against ``now``. ``stored``: the text was accepted before, so that
    a horizon that is over, and characters and dataset providers which newer rules refuse, are kept. Raises
    InputError.
    """
    document = read_document(text, source)
    if not stored:
        require_seen(document)
    return _Reader(document, base, now, stored=stored).request()


class _TooManyProblems(Exception):
    """More problems than are shown: the rest of the document is not read."""


class _Reader:
    """Reads a document, and collects its problems, one more than is shown at most.

    ``wrong`` are the pointers of fields whose value is a stand-in, or that were left out.
    """

    def __init__(self, document: Document, base: Path | None, now: datetime, *, stored: bool) -> None:
        self.document = document
        self.base = base
        self.now = now
        self.stored = stored
        self.problems: list[FieldProblem] = []
        self.wrong: set[str] = set()
        self.further = 0
        self.horizon = Window(now, now + timedelta(days=MOST_DAYS))

    def request(self) -> PlanRequest:
        """The whole request. Raises InputError with all problems, or with the first ones of very many."""
        request, is_stopped = None, False
        try:
            request = self._request()
        except _TooManyProblems:
            is_stopped = True
        if request is None or self.problems:
            # A missing field has the place of its object; what is written wrong comes first.
            self.problems.sort(key=lambda one: (one.expected == THIS_FIELD, one.line or 0, one.column or 0))
            raise input_error(self.document.source, self.problems, self.further, stopped=is_stopped)
        return request

    def _request(self) -> PlanRequest | None:
        if isinstance(self.document.data, dict):
            self._read_horizon(self.document.data.get("horizon"))
        data = Walk(self._named, self._report).part(WorkloadsForm, self.document.data, "")
        form = self._form(data)
        if form is None:
            return None
        self._check_names(form)
        self._check_policy(form.policy, "/policy")
        return PlanRequest(
            team=form.team,
            horizon=self.horizon,
            workloads=tuple(
                each
                for index, row in enumerate(form.workloads)
                for each in self._each_time(row, pointer_of("workloads", index), form)
            ),
            budget_usd=form.budget.usd if form.budget is not None else None,
            policy=form.policy,
            budget_confidence=form.budget.confidence if form.budget is not None else None,
        )

    def _form(self, data: Any) -> WorkloadsForm | None:
        """The document, without what is wrong in it; None where that is no document, or too much is wrong."""
        for number in range(MOST_ROUNDS + 1):
            try:
                return WorkloadsForm.model_validate(data)
            except ValidationError as error:
                if number == 0:
                    self.problems += problems_of(error, self.document)
                    self.further = further_of(error)
                if not error.errors(include_url=False)[0]["loc"] or len(self.problems) >= MAX_SHOWN:
                    return None
                self.wrong |= mend(data, error)
        return None

    def _report(self, pointer: str, expected: str, found: str | None = None) -> None:
        """Adds a problem of a field that is then left out, or has a stand-in."""
        self.wrong.add(pointer)
        self._add(pointer, expected, found)

    def _wrong(self, pointer: str, expected: str, found: str | None = None) -> None:
        """Adds a problem of a value, unless it follows from another problem."""
        self._add(pointer, expected, found, is_derived=True)

    def _add(
        self, pointer: str, expected: str, found: str | None = None, *, is_derived: bool = False
    ) -> None:
        shown = describe(self.document.value_at(pointer)) if found is None else found
        problem = self.document.problem(pointer, shown, expected)
        if is_derived and not is_sound(problem, self.wrong):
            return
        self.problems.append(problem)
        if len(self.problems) > MAX_SHOWN:
            raise _TooManyProblems

    def _named(self, told: Told, value: Any) -> Any:
        """What a text of the document names. Raises Unknown."""
        is_text = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME
        if told is Told.TIME:
            return self._time(value)
        if told is Told.MODEL:
            return self._model(value)
        if not is_text:
            return value  # its type says what is expected
        if told is Told.STORAGE:
            return self._storage(value)
        if told not in (Told.GPU, Told.GPUS):
            return word_of(told, value)
        try:
            return (resolve_gpu if told is Told.GPU else resolve_gpus)(value, "", self.document.source)
        except InputError as error:
            raise Unknown(*_said(error), stand_in=value) from None

    def _time(self, text: Any) -> datetime:
        start = self.horizon.start
        try:
            return parse_relative(text, start) if isinstance(text, str) else _no_text()
        except ValueError as error:
            raise Unknown((str(error), None), stand_in=start) from None

    def _model(self, name: Any) -> ModelShape:
        if not isinstance(name, str):
            raise Unknown(("text", None), stand_in=unknown_model())
        if not 0 < len(name) <= LONGEST_NAME:
            length = f"of at most {LONGEST_NAME} characters" if name else "that is not empty"
            raise Unknown((f"text {length}", None), stand_in=unknown_model())
        if self.base is None and name.endswith(".json"):
            expected = "a named model (files are read by the command line alone)"
            raise Unknown((expected, None), stand_in=unknown_model())
        try:
            return resolve_model(name, self.base or Path(), "", self.document.source)
        except InputError as error:
            raise Unknown(*_said(error), stand_in=unknown_model()) from None

    def _storage(self, name: str) -> str:
        key = name.strip().lower()
        if key == OWN_STORAGE or key in load_provider_names():
            return key
        if self.stored:
            return name
        expected = f"{provider_expected(name)}, or {OWN_STORAGE} for storage of your own"
        raise Unknown((expected, None), stand_in=name)

    def _read_horizon(self, data: Any) -> None:
        try:
            form = HorizonForm.model_validate(data)
        except ValidationError:  # the whole document tells it
            return
        start = self.now
        try:
            start = parse_start(form.start, self.now)
        except ValueError as error:
            self._report("/horizon/start", str(error))
        duration = timedelta(seconds=round(form.days * SECONDS_PER_DAY))
        if duration < SHORTEST_HORIZON:
            self._report("/horizon/days", "at least 0.0417 (an hour), because demand is given by the hour")
            duration = SHORTEST_HORIZON
        end = start + duration
        self.horizon = Window(start, end)
        if end <= self.now and not self.stored:
            found = f"a horizon that ended at {format_time(end)}"
            self._report("/horizon", f"a horizon that ends after {format_time(self.now)}", found)

    def _check_names(self, form: WorkloadsForm) -> None:
        times = Counter(row.name for row in form.workloads)
        seen: set[str] = set()
        repeated = {row.name for row in form.workloads if not isinstance(row, Serving) and row.repeat}
        for index, row in enumerate(form.workloads):
            is_one_of_series = is_repeated(row.name) and series_of(row.name) in repeated
            if (times[row.name] > 1 and row.name in seen) or is_one_of_series:
                self._wrong(pointer_of("workloads", index, "name"), "a name that no other workload has")
            seen.add(row.name)

    def _check_policy(self, policy: Policy, at: str) -> None:
        countries = f"{at}/countries"
        if not any(one.startswith(f"{at}/") for one in self.wrong):  # else a word is on no list
            expected = outside(policy)
            if expected is not None:
                self._wrong(countries, expected)

    def _each_time(self, row: Workload, at: str, form: WorkloadsForm) -> Iterator[Workload]:
        """The workload, or each time of one that is repeated."""
        read = self._workload(row, at, form)
        if isinstance(read, Serving) or read.repeat is None:
            yield read
            return
        for number in range(self._times(read, read.repeat, at)):
            later = number * read.repeat.every
            yield replace(
                read,
                name=name_of_time(read.name, number + 1),
                earliest_start=read.earliest_start + later,
                deadline=read.deadline + later,
                repeat=None,
            )

    def _times(self, row: Training | Batch, repeat: Repeat, at: str) -> int:
        """How many times a workload is planned."""
        most, end = repeat.fitting(self.horizon.end - row.deadline), format_time(self.horizon.end)
        if repeat.times is not None and repeat.times > most:
            expected = f"at most {most}, whose deadlines are before the horizon's end, {end}"
            self._wrong(f"{at}/repeat/times", expected)
        elif repeat.times is None and not 2 <= most <= MOST_TIMES:
            expected = f"2 to {MOST_TIMES} times until the horizon's end, {end}; or `times`"
            self._wrong(f"{at}/repeat/every", expected, f"{most} times")
        if is_repeated(row.name):
            self._wrong(f"{at}/name", "a name without #, to which the number of each time is added")
        return min(most, repeat.times or most, MOST_TIMES)

    def _workload(self, row: Workload, at: str, form: WorkloadsForm) -> Workload:
        self._check_policy(row.policy, f"{at}/policy")
        if row.policy.mix_sandbox:
            self._wrong(f"{at}/policy/mix_sandbox", "it in the document's policy: it is of the whole plan")
        self._check_measured(row.measured, f"{at}/measured")
        if row.startup is not None and row.startup.engine and not isinstance(row, Serving):
            self._wrong(
                f"{at}/startup/engine", "it of a service: a script or an image starts other workloads"
            )
        own = form.confidence if row.confidence is None else row.confidence
        row = replace(row, team=row.team or form.team, confidence=own)
        if isinstance(row, Training):
            return self._training(row, at)
        return self._batch(row, at) if isinstance(row, Batch) else self._serving(row, at, form)

    def _with_precisions(self, row: Served, at: str) -> Served:
        """The workload with the number format that its model's name states, or is published in, where the
        document allows none.
        """
        if self.document.value_at(f"{at}/precisions") is not None:
            return row
        named = self._named_format(at)
        if named is not None and named not in PLANNED:
            expected = f"precisions beside it, of {', '.join(PLANNED)}"
            self._wrong(f"{at}/model", expected, f"weights in {named}, which no plan has")
        chosen = Precision(named if named in PLANNED else row.model.published_precision)
        return replace(row, precisions=(chosen,))

    def _named_format(self, at: str) -> str | None:
        name = str(self.document.value_at(f"{at}/model"))
        is_exact = name in load_models() or name.endswith(".json") or self.stored
        return None if is_exact else named_format(name)

    def _check_measured(self, rows: tuple[Measurement, ...], at: str) -> None:
        for index, told in enumerate(rows):
            if told.tokens_per_s is None and told.requests_per_s is None:
                self._wrong(f"{at}/{index}", "tokens_per_s or requests_per_s")
            for field in ("tokens_per_s", "requests_per_s"):
                same = (m for m in rows[:index] if (m.gpu, m.gpus) == (told.gpu, told.gpus))
                if getattr(told, field) is not None and any(getattr(m, field) is not None for m in same):
                    self._wrong(
                        f"{at}/{index}/{field}", f"only one such measurement of {told.gpus} × {told.gpu}"
                    )

    def _timed(self, row: Timed, at: str) -> Timed:
        """The workload with its earliest start."""
        horizon = self.horizon
        start = horizon.start if row.earliest_start == LONG_AGO else row.earliest_start
        deadline = self._deadline(row, start, at)
        if deadline <= max(start, horizon.start):
            later = "earliest start" if start >= horizon.start else "horizon's start"
            expected = f"a time after the {later}, {format_time(max(start, horizon.start))}"
            self._wrong(f"{at}/deadline", expected)
        elif deadline > horizon.end:
            expected = (
                f"a time by the horizon's end, {format_time(horizon.end)}; nothing is planned after it, "
                f"but horizon.days of {_days_until(deadline, horizon.start):g} would include it"
            )
            self._wrong(f"{at}/deadline", expected)
        return replace(row, earliest_start=start, deadline=deadline)

    def _deadline(self, row: Timed, start: datetime, at: str) -> datetime:
        """The deadline, or that of the first time."""
        within = None if row.repeat is None else row.repeat.within
        is_written = self.document.value_at(f"{at}/deadline") is not None
        if within is None and not is_written:
            stands_in = f"{at}/kind" in self.wrong or any(
                f"{at}/".startswith(f"{one}/") for one in self.wrong
            )
            if not stands_in:
                self._report(f"{at}/deadline", THIS_FIELD, "nothing")
            return self.horizon.end
        if within is None:
            return row.deadline
        if is_written:
            self._wrong(f"{at}/repeat/within", "either within, or the deadline of the first time")
        return max(start, self.horizon.start) + within

    def _training(self, run: Training, at: str) -> Training:
        run = self._method(run, at)
        if run.gpus.max is not None and run.gpus.max < run.gpus.min:
            self._wrong(f"{at}/gpus/max", f"at least gpus.min, {run.gpus.min}")
        if run.global_batch_tokens < run.sequence_length:
            self._wrong(f"{at}/global_batch_tokens", f"at least one sequence of {run.sequence_length} tokens")
        if run.tokens < run.global_batch_tokens:
            self._wrong(f"{at}/tokens", f"at least one step of {run.global_batch_tokens:g} tokens")
        for index, told in enumerate(run.measured):
            self._check_training_rate(told, run.model, f"{at}/measured/{index}")
        return self._timed(run, at)

    def _method(self, run: Training, at: str) -> Training:
        """The run with the base that its model's name states, and with a stack that can train it so."""
        named = self._named_format(at)
        if named not in (None, "bf16", "fp16"):
            if run.adapter is None or named not in set(BaseFormat):
                expected = f"a model in 16 bits; or an adapter, whose base is one of {', '.join(BaseFormat)}"
                self._wrong(f"{at}/model", expected, f"weights in {named}, which no product trains")
            elif run.adapter.base is None:
                run = replace(run, adapter=replace(run.adapter, base=BaseFormat(named)))
        for pointer, expected, found in method_problems(run):
            self._wrong(f"{at}/{pointer}", expected, found)
        needed, stacks = stacks_of(run)
        if self.document.value_at(f"{at}/software") is None:
            return replace(run, software=stacks[0])
        if run.software not in stacks:
            self._wrong(f"{at}/software", f"one that trains with {needed}: {' or '.join(stacks)}")
        return run

    def _check_training_rate(self, told: Measurement, model: ModelShape, at: str) -> None:
        """Refuses rates above the peak FLOP/s of the GPUs, because they would make the run almost free."""
        if told.tokens_per_s is None:
            self._wrong(at, "tokens_per_s, the measure of a training run")
            return
        gpu = load_gpus().get(told.gpu)
        if gpu is None:
            return
        rates = (gpu.bf16_tflops, gpu.fp16_tflops, gpu.fp8_tflops, gpu.fp4_tflops)
        peak = max(filter(None, rates), default=math.inf)
        most = peak * TERA * told.gpus / (LEAST_FLOP_PER_PARAM * model.active_params)
        if told.tokens_per_s > most:
            expected = f"at most {most:,.0f}, the peak FLOP/s of {told.gpus} × {told.gpu}"
            self._wrong(f"{at}/tokens_per_s", expected)

    def _check_context(self, model: ModelShape, tokens_in: int, tokens_out: int, at: str) -> None:
        """Refuses requests longer than the context of the model, as every engine does."""
        if 0 < model.context < tokens_in + tokens_out:
            found = f"{tokens_in + tokens_out:,} tokens of input and output"
            expected = (
                f"at most {model.context:,}, the context of {model.name}; "
                "or the path of a config.json whose rope_scaling extends it"
            )
            self._wrong(f"{at}/input_tokens", expected, found)

    def _batch(self, batch: Batch, at: str) -> Batch:
        self._check_context(batch.model, batch.input_tokens, batch.output_tokens, at)
        return self._with_precisions(self._timed(batch, at), at)

    def _serving(self, row: Serving, at: str, form: WorkloadsForm) -> Serving:
        self._check_starts(row, at, form)
        self._check_end(row, at)
        service = replace(row, traffic=self._traffic(row.traffic, f"{at}/traffic"))
        for size, place in _sizes(service.traffic, f"{at}/traffic"):
            self._check_context(row.model, *size, place)
        return self._with_precisions(service, at)

    def _check_starts(self, row: Serving, at: str, form: WorkloadsForm) -> None:
        starts, pointer = row.starts, f"{at}/starts"
        if self.document.value_at(pointer) is None:
            return
        if starts.after is None and starts.at is None:
            self._wrong(pointer, "a time, or after with the name of a training workload, or both")
        if starts.after is None and starts.delay_usd_per_hour is not None:
            self._wrong(
                f"{pointer}/delay_usd_per_hour",
                "the field after, because only a service that waits for a run has a delay",
            )
        runs = [one.name for one in form.workloads if isinstance(one, Training) and one.repeat is None]
        if starts.after is not None and starts.after not in runs:
            known = ", ".join(runs) or "there is none"
            self._wrong(f"{pointer}/after", f"the name of a training workload ({known})")
        if starts.at is not None and starts.at >= self.horizon.end:
            self._wrong(pointer, f"a time before the horizon ends, {format_time(self.horizon.end)}")

    def _check_end(self, row: Serving, at: str) -> None:
        start = max(row.starts.at or self.horizon.start, self.horizon.start)
        if row.ends is not None and row.ends <= start:
            self._wrong(f"{at}/ends", f"a time after it starts, {format_time(start)}")

    def _traffic(self, traffic: Traffic, at: str) -> Traffic:
        """The traffic with what follows from its hours and from the sizes of its requests."""
        shape, hourly = traffic.shape, traffic.hourly
        if self.document.value_at(f"{at}/shape") is None and hourly:
            shape = TrafficShape.HOURLY
        if shape is TrafficShape.HOURLY:
            self._check_hourly(hourly, f"{at}/hourly", may_be_empty=bool(traffic.bursts))
        elif hourly:
            self._wrong(f"{at}/shape", "hourly or no shape, because hourly is given")
        elif not traffic.peak_requests_per_s and (shape is TrafficShape.DIURNAL or not traffic.bursts):
            self._wrong(f"{at}/peak_requests_per_s", f"requests per second at the peak (shape {shape})")
        self._check_clock(traffic, shape, at)
        is_hourly = shape is TrafficShape.HOURLY
        mix = self._mix(traffic, at)
        tokens_in, tokens_out = mean_tokens(mix)
        return replace(
            traffic,
            input_tokens=traffic.input_tokens or tokens_in,
            output_tokens=traffic.output_tokens or tokens_out,
            mix=mix,
            shape=shape,
            peak_requests_per_s=max(hourly, default=0.0) if is_hourly else traffic.peak_requests_per_s,
            hourly=hourly if is_hourly else (),
        )

    def _mix(self, traffic: Traffic, at: str) -> tuple[RequestSize, ...]:
        """The sizes of requests; a document has either these or one input and output length for all."""
        single = {"input_tokens": traffic.input_tokens, "output_tokens": traffic.output_tokens}
        if not traffic.mix:
            for name in (name for name, tokens in single.items() if not tokens):
                self._wrong(f"{at}/{name}", "tokens of a request, or a mix of sizes", "nothing")
            return ()
        for name in (name for name, tokens in single.items() if tokens):
            self._wrong(f"{at}/{name}", "no length, because the sizes of the mix have their own")
        shares = math.fsum(size.share for size in traffic.mix)
        if not math.isclose(shares, 1.0, abs_tol=SHARES_TOLERANCE):
            self._wrong(f"{at}/mix", "shares that sum to 1", f"shares that sum to {shares:g}")
        return tuple(replace(size, share=size.share / shares) for size in traffic.mix)

    def _check_clock(self, traffic: Traffic, shape: TrafficShape, at: str) -> None:
        """Refuses an hour or a zone that nothing is read in."""
        if traffic.peak_hour is not None and shape is not TrafficShape.DIURNAL:
            self._wrong(
                f"{at}/peak_hour", f"no such field, because traffic of shape {shape} has no peak hour"
            )
        elif traffic.peak_hour is not None and self.document.value_at(f"{at}/peak_hour_utc") is not None:
            self._wrong(f"{at}/peak_hour", "either peak_hour, in the time zone, or peak_hour_utc")
        is_week = shape is TrafficShape.HOURLY and len(traffic.hourly) == HOURS_PER_WEEK
        is_read = traffic.peak_hour is not None or bool(traffic.bursts) or is_week
        if traffic.time_zone is not None and not is_read:
            expected = "peak_hour, bursts or a week of hourly rates beside it, which are read in it"
            self._wrong(f"{at}/time_zone", expected)

    def _check_hourly(self, hourly: tuple[float, ...], at: str, *, may_be_empty: bool) -> None:
        hours = -(-self.horizon.duration // timedelta(hours=1))
        lengths = sorted({HOURS_PER_WEEK, hours})
        if len(hourly) not in lengths:
            wanted = " or ".join(str(length) for length in lengths)
            self._wrong(at, f"{wanted} figures, one per hour of a week or of the whole horizon")
        elif max(hourly) <= 0 and not may_be_empty:
            self._wrong(at, "at least one hour with requests", "an hourly list without requests")


def _days_until(instant: datetime, start: datetime) -> float:
    return math.ceil((instant - start) / timedelta(days=1) * 10_000) / 10_000


def _sizes(traffic: Traffic, at: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Input and output tokens of each size of request, with its pointer."""
    if not traffic.mix:
        yield (traffic.input_tokens, traffic.output_tokens), at
    for index, size in enumerate(traffic.mix):
        yield (size.input_tokens, size.output_tokens), f"{at}/mix/{index}"


def _said(error: InputError) -> Iterator[tuple[str, str]]:
    return ((problem.expected, problem.found) for problem in error.problems)


def _no_text() -> datetime:
    raise ValueError("text")
