"""Prints what SkyPilot makes of the task files in a folder: its own task, written back, of each."""

import json
import sys
from pathlib import Path

import sky
import yaml
from jsonschema import Draft202012Validator
from sky.utils import schemas


def main(folder: str) -> None:
    found = {}
    for file in sorted(Path(folder).glob("*.sky.yaml")):
        Draft202012Validator(schemas.get_task_schema()).validate(yaml.safe_load(file.read_text()))
        task = sky.Task.from_yaml(str(file))
        found[file.name] = task.to_yaml_config()
    print(json.dumps(found))


main(sys.argv[1])
