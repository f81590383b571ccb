"""The entry point of the ``broker`` script, which completes a word before anything else is imported."""

from __future__ import annotations

import importlib
import os
import sys

from api.cli.completion import ASKED_BY, complete_word

APPLICATION = "api.cli.application"


def main() -> None:
    """Answers a shell that completes a word, or runs the command."""
    if os.environ.get(ASKED_BY) and (words := complete_word()) is not None:
        if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":  # fish is told by the exit code
            sys.exit(0 if words else 1)
        sys.stdout.write(f"{words}\n")
        return
    importlib.import_module(APPLICATION).run()
