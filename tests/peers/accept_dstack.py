"""Prints what dstack makes of the configurations in a folder: its own model of each."""

import json
import sys
from pathlib import Path

import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration


def main(folder: str) -> None:
    found = {}
    for file in sorted(Path(folder).glob("*.dstack.yml")):
        found[file.name] = json.loads(parse_apply_configuration(yaml.safe_load(file.read_text())).json())
    print(json.dumps(found))


main(sys.argv[1])
