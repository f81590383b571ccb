"""What a machine of the sandbox does with the script and keys of its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.domain.basics.machines import PublicKey, with_keys
from providers.sandbox.machines import Machine, key_lines, script_in

ANN = PublicKey("ann", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICApaeQoxoir3DDcvTFSsiNd0+6fKaZrTd1Hgr8r9n3M")


@pytest.mark.parametrize("home", ["/root", "/home/ubuntu", '"$HOME"'])
async def test_a_key_that_a_script_lets_in_stays_in_the_folder_of_the_machine(
    home: str, tmp_path: Path
) -> None:
    script = with_keys("#!/bin/bash\necho begun\n", [ANN], home)
    machine = Machine("127.0.0.1", tmp_path, key_lines({"user_data": script}, {}))
    assert machine.keys == {ANN.line}
    machine.boot(script_in({"user_data": script}))
    assert machine.processes[0].wait(30) == 0
    assert (tmp_path / ".ssh" / "authorized_keys").read_text() == f"{ANN.line}\n"
    assert (tmp_path / "startup.log").read_text() == "begun\n"
    await machine.stop()
