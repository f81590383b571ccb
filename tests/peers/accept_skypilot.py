"""Prints what SkyPilot makes of the task files in a folder: its own task, written back, of each."""

import json
import sys
from pathlib import Path

import sky


def main(folder: str) -> None:
    found = {}
    for file in sorted(Path(folder).glob("*.sky.yaml")):
        found[file.name] = sky.Task.from_yaml(str(file)).to_yaml_config()
    print(json.dumps(found))


main(sys.argv[1])
