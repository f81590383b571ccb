"""The CSV file of contract prices, one per line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from api.schemas.base.csv_reader import read_table
from api.schemas.base.document import MAX_SHOWN, input_error
from api.schemas.base.validation import expected_of
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import plain_digits
from broker.domain.market.contract_prices import ContractPrice
from broker.domain.market.offer import Tier

COLUMNS = (
    "contract",
    "provider",
    "sku",
    "region",
    "tier",
    "from",
    "to",
    "discount_percent",
    "price_usd_per_node_hour",
)
Word = Annotated[str, Field(min_length=1)]
BEYOND = "beyond the header"
"""What is told of as the column of cells without one, such as the rest of an unquoted ``1,250.00``."""


class _Line(BaseModel):
    """One line. A blank ``sku``, ``region`` or ``tier`` means any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contract: Word
    provider: Word
    sku: Word = "*"
    region: Word = "*"
    tier: Tier | None = None
    since: date = Field(alias="from")
    until: date = Field(alias="to")
    discount_percent: Annotated[Decimal, BeforeValidator(plain_digits), Field(gt=0, lt=100)] | None = None
    price_usd_per_node_hour: Annotated[Decimal, BeforeValidator(plain_digits), Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _is_one_price(self) -> _Line:
        if (self.discount_percent is None) == (self.price_usd_per_node_hour is None):
            raise ValueError("either discount_percent or price_usd_per_node_hour")
        if self.until < self.since:
            raise ValueError(f"'to' on or after 'from' ({self.since})")
        return self

    def to_contract_price(self) -> ContractPrice:
        """The domain object."""
        percent = self.discount_percent
        return ContractPrice(
            contract=self.contract,
            provider=self.provider,
            sku=self.sku,
            region=self.region,
            tier=self.tier,
            since=self.since,
            until=self.until,
            discount_share=None if percent is None else percent / 100,
            usd_per_node_hour=self.price_usd_per_node_hour,
        )


def read_contract_prices(text: str, source: str) -> tuple[ContractPrice, ...]:
    """The contract prices of a CSV text. Raises InputError that names every wrong line and column."""
    columns, rows = read_table(text, source)
    missing = [name for name in COLUMNS[:2] + COLUMNS[5:7] if name not in columns]
    if missing:
        found = ", ".join(columns) or "nothing"
        problem = FieldProblem("", found, f"a header with {', '.join(COLUMNS)}", 1)
        raise InputError(source, (problem,))
    prices: list[ContractPrice] = []
    problems: list[FieldProblem] = []
    for line, row in rows:
        try:
            prices.append(_Line.model_validate(_filled(row)).to_contract_price())
        except ValidationError as error:
            problems.extend(_problems(line, columns, row, error))
            if len(problems) > MAX_SHOWN:
                break
    if problems:
        raise input_error(source, problems, stopped=len(problems) > MAX_SHOWN)
    return tuple(prices)


def _filled(row: Mapping[str | None, str | list[str] | None]) -> dict[str, str]:
    """The cells that are not blank. Cells beyond the header are kept, so that they are refused."""
    filled = {str(name): text.strip() for name, text in row.items() if isinstance(text, str) and text.strip()}
    beyond = row.get(None)
    return {**filled, BEYOND: ", ".join(beyond)} if isinstance(beyond, list) else filled


def _problems(
    line: int,
    columns: Sequence[str],
    row: Mapping[str | None, str | list[str] | None],
    error: ValidationError,
) -> list[FieldProblem]:
    found = []
    for detail in error.errors(include_url=False):
        column = str(detail["loc"][0]) if detail["loc"] else ""
        expected = "a column of the form" if detail["type"] == "extra_forbidden" else expected_of(detail)
        cell = repr(row.get(None if column == BEYOND else column) or "") if column else "this line"
        place = columns.index(column) + 1 if column in columns else None
        found.append(FieldProblem(f"/{line}/{column}".rstrip("/"), cell, expected, line, place))
    return found
