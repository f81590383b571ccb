"""The kinds of Kubernetes's own objects in the files of a folder, or what its schemas say is wrong with them.

Custom resources are passed over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kubernetes_validate
import yaml

OWN = {"v1", "batch/v1", "apps/v1", "policy/v1"}
found: dict[str, list[str]] = {}
for file in sorted(Path(sys.argv[1]).glob("*.yaml")):
    said = []
    for one in yaml.safe_load_all(file.read_text()):
        if one["apiVersion"] in OWN:
            try:
                kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
                said.append(one["kind"])
            except kubernetes_validate.ValidationError as error:
                said.append(error.message)
    found[file.name] = said
print(json.dumps(found))
