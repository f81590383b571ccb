"""Where the product's data stand: within this package once installed, else in the repository."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "data"


def data_folder(*names: str) -> Path:
    """A folder or file of ``config``, ``docs`` or ``fixtures``.

    A wheel has them in ``broker/data`` (``sources`` in pyproject.toml): at the top level they would stand
    beside everybody's modules.
    """
    return (INSTALLED if INSTALLED.is_dir() else PACKAGE.parent).joinpath(*names)
