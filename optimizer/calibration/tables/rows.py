"""Rows of published tables → predictions: the columns of ``broker perf predict`` (contract, section 5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.domain.basics.left_out import LeftOut
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.tables import serving_reading, serving_rows, training_rows
from optimizer.calibration.tables.cells import Prediction, Unreadable
from optimizer.calibration.tables.unread import left_out_of
from optimizer.performance.constants.calibrated import Calibration

METRICS = training_rows.METRICS + serving_rows.METRICS
COLUMNS = ("id", *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")), "fits", "note")


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows that were read, by their place in the table; ``unreadable`` has the reasons for the others, and
    ``left_out`` what of a row is not used.
    """

    count: int
    training: Mapping[int, training_rows.TrainingRow]
    serving: Mapping[int, serving_reading.ServingRow]
    unreadable: Mapping[int, str]
    left_out: Mapping[int, tuple[LeftOut, ...]] = field(default_factory=dict)

    def at(self, places: Collection[int]) -> ReadRows:
        """The same table with only these rows readable; the others stay blank."""
        wanted = frozenset(places)
        return ReadRows(
            self.count,
            {place: row for place, row in self.training.items() if place in wanted},
            {place: row for place, row in self.serving.items() if place in wanted},
            self.unreadable,
            self.left_out,
        )


def read_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> ReadRows:
    """All readable rows; names of software and engines become classes of ``calibration``."""
    training: dict[int, training_rows.TrainingRow] = {}
    serving: dict[int, serving_reading.ServingRow] = {}
    unreadable: dict[int, str] = {}
    left_out: dict[int, tuple[LeftOut, ...]] = {}
    for index, row in enumerate(rows):
        try:
            if is_serving(row):
                serving[index] = serving_reading.read_row(row, calibration, gpus, models)
            else:
                training[index] = training_rows.read_row(row, calibration, gpus, models)
        except Unreadable as reason:
            unreadable[index] = str(reason)
        unused = tuple(left_out_of(row, serving=is_serving(row)))
        if unused:
            left_out[index] = unused
    return ReadRows(len(rows), training, serving, unreadable, left_out)


def predictions(read: ReadRows, calibration: Calibration, gpus: Mapping[str, GpuSpec]) -> list[Prediction]:
    """One prediction per row, in order; unreadable rows only have a note."""
    found = [Prediction(note=read.unreadable.get(place, "")) for place in range(read.count)]
    trained = training_rows.predict_training(list(read.training.values()), calibration, gpus)
    served = serving_rows.predict_serving(list(read.serving.values()), calibration, gpus)
    for place, prediction in (
        *zip(read.training, trained, strict=True),
        *zip(read.serving, served, strict=True),
    ):
        found[place] = prediction
    for place, unused in read.left_out.items():
        parts = (found[place].note, "not used: " + ", ".join(f"{one.what} ({one.why})" for one in unused))
        found[place] = replace(found[place], note="; ".join(part for part in parts if part))
    return found


def is_serving(row: Mapping[str, str]) -> bool:
    """Whether it is a serving row, by ``kind``; grid rows have no kind and are training rows."""
    return row.get("kind", "") == "serving" or (not row.get("kind") and bool(row.get("regime")))
