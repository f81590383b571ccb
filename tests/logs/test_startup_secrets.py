"""A secret for the start of a machine is in no log, whatever its name, also inside a script in Base64."""

from __future__ import annotations

import base64

from broker.domain.workloads.startup import SecretName, Startup, startup_script
from broker.redaction import redacted, register_environment


def test_a_startup_secret_is_redacted_as_text_and_inside_user_data() -> None:
    value = "swordfish-of-the-dataset-4711"
    register_environment({"BROKER_SECRET_DATASET": value})
    script = startup_script(
        Startup(script="python train.py", env={"D": SecretName("DATASET")}), {"DATASET": value}
    )
    assert value in script
    assert value not in redacted(f"refused: {script}")
    told = redacted(f"refused: user_data {base64.b64encode(script.encode()).decode()}")
    shown = told.split()[-1]
    assert base64.b64encode(value.encode()).decode()[:20] not in shown
    assert value.encode() not in base64.b64decode(shown + "==", validate=False)
