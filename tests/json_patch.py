"""JSON Patch (RFC 6902), as far as fixes use it, and as strict as the standard: parents must be there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from broker.domain.planning.patch import PatchOperation, PatchVerb


def patched(document: Any, patch: Iterable[PatchOperation]) -> Any:
    """A copy of the document after the operations; KeyError where one names what is not there."""
    found = copy.deepcopy(document)
    for operation in patch:
        *parents, member = operation.path.split("/")[1:]
        at = found
        for name in parents:
            at = at[int(name)] if isinstance(at, list) else at[name]
        assert isinstance(at, dict)
        if operation.op is PatchVerb.REMOVE:
            del at[member]
        else:
            assert operation.value_json is not None
            at[member] = json.loads(operation.value_json)
    return found
