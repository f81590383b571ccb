"""Installs what the tests need beside Python packages: a browser for the pages.

PostgreSQL comes as a wheel. Does nothing when a browser is there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """0 when a browser stands ready, else the installer's exit code."""
    if any(shutil.which(name) for name in BROWSERS):
        return 0
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.stderr.write("tests/pages need a Chromium: install the package `chromium`\n")
        return 1
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        code = subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
