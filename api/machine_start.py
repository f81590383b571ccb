"""Runs a script on a machine over SSH, once, however often and by however many processes it is asked to."""

from __future__ import annotations

import asyncio
import shlex

import asyncssh

from broker.domain.holding.starting import StartReport, Unreached
from broker.ports.holding import Start

PATIENCE_S = 20.0
FOLDER = ".gpu-capacity-broker"
"""In the home folder of the user who logs in: a folder for each start, with its output in ``log``."""
TAIL_BYTES, TAIL_LINES = 20_000, 20
CODE, RUNS, GONE = "code", "runs", "gone"
_PROGRAM = f"""\
trap '' HUP
umask 077
all=$HOME/{FOLDER}; mine=$all/$1; new=$mine.$$
if [ -d "$mine" ]; then
  cat > /dev/null
else
  mkdir -p "$all" && cat > "$new" || exit 74
  if [ "$(wc -c < "$new")" -ne "$2" ]; then rm -f "$new"; exit 75; fi
  if mkdir "$mine" 2> /dev/null; then
    mv "$new" "$mine/script" && chmod 700 "$mine/script"
    nohup sh -c '
      umask 022
      if [ "$(id -u)" != 0 ] && sudo -n true 2> /dev/null; then
        sudo -n env HOME="$HOME" "$1/script"
      else
        "$1/script"
      fi > "$1/log" 2>&1 < /dev/null
      code=$?
      : > "$1/script"
      echo $code > "$1/code.new" && mv "$1/code.new" "$1/code"
    ' sh "$mine" > /dev/null 2>&1 < /dev/null &
    echo $! > "$mine/pid"
  else
    rm -f "$new"
  fi
fi
ended() {{
  [ -s "$mine/code" ] && echo "{CODE} $(cat "$mine/code")" &&
    tail -c {TAIL_BYTES} "$mine/log" | tail -n {TAIL_LINES}
}}
runs() {{ grep -qsF "$1" "/proc/$(cat "$mine/pid")/cmdline"; }}
if ended; then
  :
elif [ -s "$mine/pid" ]; then
  if runs "$1" || {{ sleep 1; runs "$1"; }}; then echo {RUNS}; else ended || echo {GONE}; fi
elif [ -n "$(find "$mine" -maxdepth 0 -mmin +5)" ]; then
  echo {GONE}
else
  echo {RUNS}
fi
"""
"""Takes the name of the start and the size of its script in bytes, and reads the script from its input.

The folder of the start is made once, after the whole script has arrived; who makes it runs the script, as
root where the user may use sudo without a password. The script is emptied at its end, as it has secrets.
"""


class MachineStarter:
    """Connects from this process. ``patience_s``: how long a connection and an answer may take."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s

    @staticmethod
    def command(name: str, size_bytes: int) -> str:
        """The command that reads a script of ``size_bytes`` and runs it once under ``name``."""
        return shlex.join(["sh", "-c", _PROGRAM, "sh", name, str(size_bytes)])

    async def start(self, start: Start) -> StartReport | Unreached:
        """Begins the script unless the machine has begun it before, and says how it stands."""
        script = start.script.encode()
        access = start.access
        try:
            known = [asyncssh.import_public_key(start.host_key)]
        except asyncssh.KeyImportError as error:
            return Unreached(f"the host key that its seller says cannot be read: {error}", is_final=True)
        try:
            async with (
                asyncio.timeout(self._patience_s),
                asyncssh.connect(
                    access.host,
                    access.port,
                    username=access.user,
                    client_keys=[asyncssh.import_private_key(start.private_key)],
                    known_hosts=(known, [], []),
                    config=None,
                    agent_path=None,
                ) as machine,
            ):
                told = await machine.run(self.command(start.name, len(script)), input=script, encoding=None)
        except asyncssh.HostKeyNotVerifiable:
            why = "the machine showed another host key than before, so nothing was sent to it"
            return Unreached(why, is_final=True)
        except TimeoutError:
            return Unreached(f"no answer over SSH within {self._patience_s:g} s")
        except (OSError, asyncssh.Error) as error:
            return Unreached(f"no connection over SSH: {error}")
        said, errors = _text(told.stdout), _text(told.stderr)
        word, _, rest = said.partition("\n")
        match word.split():
            case [code, number] if code == CODE:
                return StartReport(True, int(number), rest.strip())
            case [runs] if runs == RUNS:
                return StartReport(False)
            case [gone] if gone == GONE:
                return StartReport(True)
        return Unreached(f"the start could not be put on the machine: {errors or said or told.exit_status}")


def _text(told: bytes | str | None) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else told or ""
