"""Text of a workloads document → PlanRequest.

All problems of a document are reported together, each with its field and its line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

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
from api.schemas.base.validation import further_of, problems_of
from api.schemas.workloads.mended_document import mend
from api.schemas.workloads.policy_words import PolicyWords, provider_expected
from api.schemas.workloads.workload_forms import (
    FORMS_BY_FIELD,
    BatchForm,
    DatasetForm,
    FleetForm,
    MeasuredForm,
    PolicyForm,
    ProvidersForm,
    ReoptimizeForm,
    ServingForm,
    SpeculationForm,
    TrafficForm,
    TrainingForm,
    WorkloadForm,
    WorkloadsForm,
)
from broker.catalogue import load_gpus, load_models, named_format, resolve_gpu, resolve_model
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Window
from broker.domain.planning.model_shape import ModelShape
from broker.domain.planning.reoptimize_policy import ReoptimizePolicy
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    Dataset,
    FleetLimits,
    Measurement,
    PlanRequest,
    Policy,
    Precision,
    Redundancy,
    RequestSize,
    Serving,
    Slo,
    SpeculativeDecoding,
    Traffic,
    TrafficShape,
    Training,
    Workload,
    mean_tokens,
)
from broker.models.weight_formats import PLANNED
from broker.provider_facts import load_provider_names

SHARES_TOLERANCE = 1e-6
OWN_STORAGE = "own"
"""The location of data that no provider stores; the cost of its egress is unknown."""
HOURS_PER_WEEK = 168
SECONDS_PER_DAY = 86_400
TERA = 1e12
LEAST_FLOP_PER_PARAM = 4
"""The least FLOP of training per active parameter and token: forward pass and gradients of the activations
(frozen weights have no gradients)."""
SHORTEST_HORIZON = timedelta(hours=1)


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
    try:
        form = WorkloadsForm.model_validate(document.data)
    except ValidationError as error:
        problems = list(problems_of(error, document, {"": WorkloadsForm, **FORMS_BY_FIELD}))
        if len(problems) < MAX_SHOWN:
            mended = mend(document, error)
            if mended is not None:
                reader = _Reader(document, base, now, stored=stored)
                with suppress(_TooManyProblems):
                    reader.read(mended.form)
                problems += [problem for problem in reader.problems if mended.is_sound(problem)]
        raise input_error(document.source, problems, further_of(error)) from None
    return _Reader(document, base, now, stored=stored).request(form)


class _TooManyProblems(Exception):
    """More problems than are shown: the rest of the document is not read."""


class _Reader:
    """Reads the fields of a document together, and collects its problems, one more than is shown at most."""

    def __init__(self, document: Document, base: Path | None, now: datetime, *, stored: bool) -> None:
        self.document = document
        self.base = base
        self.now = now
        self.stored = stored
        self.problems: list[FieldProblem] = []

    def request(self, form: WorkloadsForm) -> PlanRequest:
        """The whole request. Raises InputError with all problems, or with the first ones of very many."""
        try:
            request = self.read(form)
        except _TooManyProblems:
            raise input_error(self.document.source, self.problems, stopped=True) from None
        if self.problems:
            raise input_error(self.document.source, self.problems)
        return request

    def read(self, form: WorkloadsForm) -> PlanRequest:
        """The whole request, which holds only if there are no ``problems``."""
        horizon = self._horizon(form)
        self._check_names(form)
        policy = self._policy(form.policy, "/policy")
        workloads: list[Workload] = []
        for index, row in enumerate(form.workloads):
            workloads.append(self._workload(row, pointer_of("workloads", index), form, horizon))
        return PlanRequest(
            team=form.team,
            horizon=horizon,
            workloads=tuple(workloads),
            budget_usd=form.budget.usd if form.budget is not None else None,
            policy=policy,
        )

    def _wrong(self, pointer: str, expected: str, found: str | None = None) -> None:
        shown = describe(self.document.value_at(pointer)) if found is None else found
        self.problems.append(self.document.problem(pointer, shown, expected))
        if len(self.problems) > MAX_SHOWN:
            raise _TooManyProblems

    def _horizon(self, form: WorkloadsForm) -> Window:
        start = self.now
        try:
            start = parse_start(form.horizon.start, self.now)
        except ValueError as error:
            self._wrong("/horizon/start", str(error))
        duration = timedelta(seconds=round(form.horizon.days * SECONDS_PER_DAY))
        if duration < SHORTEST_HORIZON:
            self._wrong("/horizon/days", "at least 0.0417 (an hour), because demand is given by the hour")
            duration = SHORTEST_HORIZON
        end = start + duration
        if end <= self.now and not self.stored:
            found = f"a horizon that ended at {format_time(end)}"
            self._wrong("/horizon", f"a horizon that ends after {format_time(self.now)}", found)
        return Window(start, end)

    def _check_names(self, form: WorkloadsForm) -> None:
        times = Counter(row.name for row in form.workloads)
        seen: set[str] = set()
        for index, row in enumerate(form.workloads):
            if times[row.name] > 1 and row.name in seen:
                self._wrong(pointer_of("workloads", index, "name"), "a name that no other workload has")
            seen.add(row.name)

    def _policy(self, form: PolicyForm | None, at: str) -> Policy:
        if form is None:
            return Policy()
        words = PolicyWords(self._wrong)
        quotas = words.quotas(form.quotas, f"{at}/quotas")
        providers = form.providers or ProvidersForm()
        countries = words.countries(form.countries, f"{at}/countries")
        geography = words.geographies(form.geography, f"{at}/geography")
        words.check_inside(countries, geography, f"{at}/countries")
        return Policy(
            regions=tuple(form.regions) if form.regions is not None else None,
            countries=countries,
            geography=geography,
            providers_only=words.providers(providers.only, f"{at}/providers/only") or None,
            providers_exclude=words.providers(providers.exclude, f"{at}/providers/exclude"),
            tiers=tuple(dict.fromkeys(form.tiers)) if form.tiers is not None else None,
            compliance=words.tags(form.compliance, f"{at}/compliance"),
            quotas=quotas,
            reoptimize=_reoptimize(form.reoptimize),
            hosts=tuple(dict.fromkeys(form.hosts)) if form.hosts is not None else None,
            min_reliability=form.min_reliability,
            assumed_nodes=form.assumed_nodes,
            premium=form.premium,
            fleet=_fleet(form.fleet),
        )

    def _workload(self, row: WorkloadForm, at: str, form: WorkloadsForm, horizon: Window) -> Workload:
        base: dict[str, Any] = {
            "name": row.name,
            "team": row.team or form.team,
            "model": self._model(row.model, f"{at}/model"),
            "policy": self._policy(row.policy, f"{at}/policy"),
            "unplaced_usd": row.unplaced_usd,
            "measured": self._measurements(row.measured, f"{at}/measured"),
        }
        if isinstance(row, TrainingForm):
            return self._training(row, at, base, horizon)
        if isinstance(row, BatchForm):
            return self._batch(row, at, base, horizon)
        assert isinstance(row, ServingForm)
        return self._serving(row, at, base, form, horizon)

    def _model(self, name: str, at: str) -> ModelShape:
        try:
            if self.base is None and name.endswith(".json"):
                self._wrong(at, "a named model (files are read by the command line alone)")
            else:
                return resolve_model(name, self.base or Path(), at, self.document.source)
        except InputError as error:
            for problem in error.problems:
                self._wrong(at, problem.expected, problem.found)
        return replace(next(iter(load_models().values())), context=0)

    def _precisions(self, row: ServingForm | BatchForm, model: ModelShape, at: str) -> tuple[Precision, ...]:
        """The allowed number formats; by default the one that the model's name states, or is published in."""
        if row.precisions is not None:
            return tuple(dict.fromkeys(row.precisions))
        named = self._named_format(row.model)
        if named is not None and named not in PLANNED:
            expected = f"precisions beside it, of {', '.join(PLANNED)}"
            self._wrong(f"{at}/model", expected, f"weights in {named}, which no plan has")
        return (Precision(named if named in PLANNED else model.published_precision),)

    def _named_format(self, name: str) -> str | None:
        is_exact = name in load_models() or name.endswith(".json") or self.stored
        return None if is_exact else named_format(name)

    def _measurements(self, rows: Sequence[MeasuredForm], at: str) -> tuple[Measurement, ...]:
        found: list[Measurement] = []
        for index, row in enumerate(rows):
            told = self._measurement(row, f"{at}/{index}")
            for field in ("tokens_per_s", "requests_per_s"):
                same = (m for m in found if (m.gpu, m.gpus) == (told.gpu, told.gpus))
                if getattr(told, field) is not None and any(getattr(m, field) is not None for m in same):
                    self._wrong(
                        f"{at}/{index}/{field}", f"only one such measurement of {told.gpus} × {told.gpu}"
                    )
            found.append(told)
        return tuple(found)

    def _measurement(self, row: MeasuredForm, at: str) -> Measurement:
        gpu = row.gpu
        try:
            gpu = resolve_gpu(row.gpu, f"{at}/gpu", self.document.source)
        except InputError as error:
            for problem in error.problems:
                self._wrong(f"{at}/gpu", problem.expected, problem.found)
        if row.tokens_per_s is None and row.requests_per_s is None:
            self._wrong(at, "tokens_per_s or requests_per_s")
        return Measurement(gpu, row.gpus, row.tokens_per_s, row.requests_per_s)

    def _time(self, text: str | None, at: str, horizon: Window) -> datetime:
        if text is None:
            return horizon.start
        try:
            return parse_relative(text, horizon.start)
        except ValueError as error:
            self._wrong(at, str(error))
            return horizon.start

    def _times(self, row: TrainingForm | BatchForm, at: str, horizon: Window) -> tuple[datetime, datetime]:
        known = len(self.problems)
        start = self._time(row.earliest_start, f"{at}/earliest_start", horizon)
        deadline = self._time(row.deadline, f"{at}/deadline", horizon)
        if len(self.problems) > known:
            return start, deadline
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
        return start, deadline

    def _training(self, row: TrainingForm, at: str, base: dict[str, Any], horizon: Window) -> Training:
        start, deadline = self._times(row, at, horizon)
        if self._named_format(row.model) not in (None, "bf16", "fp16"):
            expected = "a model in 16 bits: fewer bits are trained by adapters alone, which no plan has yet"
            self._wrong(f"{at}/model", expected)
        if row.gpus.max is not None and row.gpus.max < row.gpus.min:
            self._wrong(f"{at}/gpus/max", f"at least gpus.min, {row.gpus.min}")
        if row.global_batch_tokens < row.sequence_length:
            self._wrong(f"{at}/global_batch_tokens", f"at least one sequence of {row.sequence_length} tokens")
        if row.tokens < row.global_batch_tokens:
            self._wrong(f"{at}/tokens", f"at least one step of {row.global_batch_tokens:g} tokens")
        for index, told in enumerate(base["measured"]):
            self._check_training_rate(told, base["model"], f"{at}/measured/{index}")
        return Training(
            **base,
            tokens=row.tokens,
            sequence_length=row.sequence_length,
            global_batch_tokens=row.global_batch_tokens,
            precision=Precision(row.precision),
            earliest_start=start,
            deadline=deadline,
            gpus_min=row.gpus.min,
            gpus_max=row.gpus.max,
            late_usd_per_hour=row.late_usd_per_hour,
            headroom=row.headroom,
            checkpoint_every_minutes=row.checkpoint.every_minutes if row.checkpoint is not None else None,
            interruptible=row.interruptible,
            dataset=self._data(row.dataset, f"{at}/dataset"),
            software=row.software,
        )

    def _data(self, form: DatasetForm | None, at: str) -> Dataset | None:
        if form is None:
            return None
        key = form.provider.strip().lower()
        is_known = key == OWN_STORAGE or key in load_provider_names()
        if not is_known and not self.stored:
            expected = f"{provider_expected(form.provider)}, or {OWN_STORAGE} for storage of your own"
            self._wrong(f"{at}/provider", expected)
        return Dataset(form.gb, key if is_known else form.provider, form.region)

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

    def _batch(self, row: BatchForm, at: str, base: dict[str, Any], horizon: Window) -> Batch:
        start, deadline = self._times(row, at, horizon)
        self._check_context(base["model"], row.input_tokens, row.output_tokens, at)
        return Batch(
            **base,
            requests=row.requests,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            earliest_start=start,
            deadline=deadline,
            precisions=self._precisions(row, base["model"], at),
            engine=row.engine,
            prefix_cache_hit_share=row.prefix_cache_hit_share,
            speculation=_speculation(row.speculation),
            interruptible=row.interruptible,
            chunk_minutes=row.chunk_minutes,
            parts=row.parts,
        )

    def _serving(
        self, row: ServingForm, at: str, base: dict[str, Any], form: WorkloadsForm, horizon: Window
    ) -> Serving:
        starts_at, starts_after = self._starts(row, at, form, horizon)
        traffic = self._traffic(row.traffic, f"{at}/traffic", horizon)
        for size, place in _sizes(traffic, f"{at}/traffic"):
            self._check_context(base["model"], *size, place)
        return Serving(
            **base,
            traffic=traffic,
            slo=Slo(row.slo.ttft_p95_ms, row.slo.itl_p95_ms),
            precisions=self._precisions(row, base["model"], at),
            redundancy=Redundancy(**row.redundancy.model_dump()),
            starts_at=starts_at,
            starts_after=starts_after,
            delay_usd_per_hour=row.starts.delay_usd_per_hour if row.starts is not None else None,
            fleet=_fleet(row.fleet),
            weights=self._data(row.weights, f"{at}/weights"),
            engine=row.engine,
            prefix_cache_hit_share=row.prefix_cache_hit_share,
            speculation=_speculation(row.speculation),
        )

    def _starts(
        self, row: ServingForm, at: str, form: WorkloadsForm, horizon: Window
    ) -> tuple[datetime | None, str | None]:
        starts = row.starts
        if starts is None:
            return None, None
        pointer = f"{at}/starts"
        if (starts.after is None) == (starts.at is None):
            self._wrong(pointer, "either a time, or after with the name of a training workload")
        if starts.after is None and starts.delay_usd_per_hour is not None:
            self._wrong(
                f"{pointer}/delay_usd_per_hour",
                "the field after, because only a service that waits for a run has a delay",
            )
        if starts.after is not None:
            runs = [other.name for other in form.workloads if other.kind == "training"]
            if starts.after not in runs:
                known = ", ".join(runs) or "there is none"
                self._wrong(f"{pointer}/after", f"the name of a training workload ({known})")
            return None, starts.after
        instant = self._time(starts.at, pointer, horizon)
        if instant >= horizon.end:
            self._wrong(pointer, f"a time before the horizon ends, {format_time(horizon.end)}")
        return instant, None

    def _traffic(self, form: TrafficForm, at: str, horizon: Window) -> Traffic:
        shape = form.shape or (TrafficShape.HOURLY if form.hourly is not None else TrafficShape.FLAT)
        hourly = tuple(form.hourly or ())
        if shape is TrafficShape.HOURLY:
            self._check_hourly(hourly, f"{at}/hourly", horizon)
        elif form.hourly is not None:
            self._wrong(f"{at}/shape", "hourly or no shape, because hourly is given")
        elif form.peak_requests_per_s is None:
            self._wrong(f"{at}/peak_requests_per_s", f"requests per second at the peak (shape {shape})")
        peak = max(hourly, default=0.0) if shape is TrafficShape.HOURLY else form.peak_requests_per_s or 0.0
        mix = self._mix(form, at)
        tokens_in, tokens_out = mean_tokens(mix)
        return Traffic(
            input_tokens=form.input_tokens or tokens_in,
            output_tokens=form.output_tokens or tokens_out,
            mix=mix,
            shape=shape,
            peak_requests_per_s=peak,
            trough_share=form.trough_share,
            peak_hour_utc=form.peak_hour_utc,
            hourly_requests_per_s=hourly if shape is TrafficShape.HOURLY else (),
        )

    def _mix(self, form: TrafficForm, at: str) -> tuple[RequestSize, ...]:
        """The sizes of requests; a document has either these or one input and output length for all."""
        single = {"input_tokens": form.input_tokens, "output_tokens": form.output_tokens}
        if form.mix is None:
            for name in (name for name, tokens in single.items() if tokens is None):
                self._wrong(f"{at}/{name}", "tokens of a request, or a mix of sizes", "nothing")
            return ()
        for name in (name for name, tokens in single.items() if tokens is not None):
            self._wrong(f"{at}/{name}", "no length, because the sizes of the mix have their own")
        shares = math.fsum(size.share for size in form.mix)
        if not math.isclose(shares, 1.0, abs_tol=SHARES_TOLERANCE):
            self._wrong(f"{at}/mix", "shares that sum to 1", f"shares that sum to {shares:g}")
        sizes = (RequestSize(s.share / shares, s.input_tokens, s.output_tokens) for s in form.mix)
        return tuple(sizes)

    def _check_hourly(self, hourly: tuple[float, ...], at: str, horizon: Window) -> None:
        hours = -(-horizon.duration // timedelta(hours=1))
        lengths = sorted({HOURS_PER_WEEK, hours})
        if len(hourly) not in lengths:
            wanted = " or ".join(str(length) for length in lengths)
            self._wrong(at, f"{wanted} figures, one per hour of a week or of the whole horizon")
        elif max(hourly) <= 0:
            self._wrong(at, "at least one hour with requests", "an hourly list without requests")


def _days_until(instant: datetime, start: datetime) -> float:
    return math.ceil((instant - start) / timedelta(days=1) * 10_000) / 10_000


def _sizes(traffic: Traffic, at: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Input and output tokens of each size of request, with its pointer."""
    if not traffic.mix:
        yield (traffic.input_tokens, traffic.output_tokens), at
    for index, size in enumerate(traffic.mix):
        yield (size.input_tokens, size.output_tokens), f"{at}/mix/{index}"


def _speculation(form: SpeculationForm | None) -> SpeculativeDecoding | None:
    if form is None:
        return None
    return SpeculativeDecoding(form.drafted_tokens, form.acceptance, form.draft_cost)


def _fleet(form: FleetForm | None) -> FleetLimits:
    """The limits that are given: ``null`` is no limit; a missing field sets nothing."""
    if form is None:
        return FleetLimits()
    said = {name: getattr(form, name) for name in form.model_fields_set}
    return FleetLimits(**{name: NO_LIMIT if most is None else most for name, most in said.items()})


def _reoptimize(form: ReoptimizeForm | None) -> ReoptimizePolicy:
    return ReoptimizePolicy() if form is None else ReoptimizePolicy(**form.model_dump())
