"""Which tests a change asks for."""

from __future__ import annotations

from tests.changed import MOST, chosen, importers_of

SOURCES = {
    "broker/money.py": "",
    "broker/bills.py": "from broker import money\n",
    "api/pages.py": "import broker.bills\n",
    "api/app.py": "from api.pages import show\n",
    "tests/domain/test_money.py": "from broker.money import usd\n",
    "tests/domain/test_bills.py": "from broker.bills import bill\n",
    "tests/api/test_app.py": "from api.app import app\n",
    "tests/bench/test_money.py": "import broker.money\n",
}


def test_the_nearest_tests_are_chosen_first_and_slow_rooms_never() -> None:
    assert chosen(["broker/money.py"], SOURCES) == [
        "tests/domain/test_money.py",
        "tests/domain/test_bills.py",
    ]
    assert chosen(["api/pages.py"], SOURCES) == ["tests/api/test_app.py"]
    assert chosen(["README.md"], SOURCES) == []


def test_a_changed_test_is_run_itself() -> None:
    assert chosen(["tests/api/test_app.py"], SOURCES) == ["tests/api/test_app.py"]


def test_imports_of_names_and_of_modules_count() -> None:
    found = importers_of(SOURCES)
    assert found["broker/money.py"] == {
        "broker/bills.py", "tests/domain/test_money.py", "tests/bench/test_money.py"
    }  # fmt: skip


def test_what_all_import_does_not_run_all() -> None:
    many = {f"tests/domain/test_{n:03}.py": "import broker.money\n" for n in range(100)}
    assert len(chosen(["broker/money.py"], SOURCES | many)) == MOST
