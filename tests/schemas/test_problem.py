"""Problem documents: the client understands every code that the server answers with."""

from __future__ import annotations

import pytest

from api.http.errors import KINDS
from api.schemas.base.problem import BY_CODE, Problem, error_of
from broker.domain.basics.errors import BrokerError, Conflict, InputError, NotFound, ProviderError


def test_the_client_knows_every_code_of_the_server() -> None:
    served = {kind.code for error, kind in KINDS if error is not BrokerError}
    assert served <= set(BY_CODE)


@pytest.mark.parametrize(("served", "kind"), [(e, k) for e, k in KINDS if e is not BrokerError])
def test_an_error_keeps_its_meaning_over_http(served: type[BrokerError], kind: object) -> None:
    code = getattr(kind, "code", "")
    error = error_of(Problem(title="t", status=500, detail="what happened", code=code))
    assert issubclass(served, type(error)) or isinstance(error, served | ProviderError)
    assert "what happened" in str(error)


def test_bad_input_keeps_its_fields() -> None:
    document = {
        "title": "t", "status": 422, "code": "invalid-input",
        "errors": [{"pointer": "/team", "found": "nothing", "expected": "text", "line": 3, "column": 1}],
    }  # fmt: skip
    error = error_of(Problem.model_validate(document))
    assert isinstance(error, InputError)
    assert error.problems[0].line == 3


@pytest.mark.parametrize(("status", "meaning"), [(404, NotFound), (409, Conflict), (500, BrokerError)])
def test_a_problem_without_a_code_is_read_by_status(status: int, meaning: type[BrokerError]) -> None:
    assert isinstance(error_of(Problem(title="t", status=status)), meaning)
