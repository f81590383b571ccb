"""Slack's own SDK reads the blocks of messages (a JSON list in the first argument): the kinds of each."""

from __future__ import annotations

import json
import sys

from slack_sdk.models.blocks import Block

kinds = []
for message in json.loads(sys.argv[1]):
    blocks = [Block.parse(one) for one in message["blocks"]]
    for block, given in zip(blocks, message["blocks"], strict=True):
        assert block is not None, given
        block.validate_json()
        assert block.to_dict() == given, (block.to_dict(), given)
    kinds.append([block.type for block in blocks if block is not None])
print(json.dumps(kinds))
