"""Installs what the tests need beside Python packages: a browser, an SSH client and a load balancer.

PostgreSQL comes as a wheel. Does nothing when all are there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = {"chromium": BROWSERS, "openssh-client": ("ssh",), "nginx-light": ("nginx",)}
"""Debian's packages, with programs of which one is enough."""


def main() -> int:
    """0 when everything stands ready, else the installer's exit code."""
    missing = [package for package, names in PACKAGES.items() if not any(map(shutil.which, names))]
    if not missing:
        return 0
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.stderr.write(f"the tests need these packages: {', '.join(missing)}\n")
        return 1
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *missing]):
        code = subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
