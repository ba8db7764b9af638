"""Installs this checkout into ``.venv``, and runs it or its tests: the README's two commands.

What keeps a machine from that is told in one line before anything takes long; so this file runs on
older versions of Python, too.
"""

import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(ROOT, ".venv", "bin")
NEEDED_GB = {"run": 2, "tests": 4}
"""Room for the environments, with torch for the CPU."""


def obstacle(what: str, version: tuple = sys.version_info) -> str:
    """Why nothing can be installed here; an empty text if nothing is known."""
    if version < (3, 11):
        number = ".".join(map(str, version[:2]))
        return f"attnbench needs Python 3.11 or later, and this is {number}: name a newer python3."
    if not os.access(ROOT, os.W_OK):
        return f"{ROOT} cannot be written to: copy the checkout to a folder of your own."
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB[what]:
        return f"{ROOT} has {free:.1f} GB left, and {NEEDED_GB[what]} are needed."
    return ""


def first_package() -> str:
    """Install a small package, which the others are built with; why pip cannot, or an empty text.

    Where pip finds it in a folder, it goes on without an index, and would wait for each other one.
    """
    command = [f"{BIN}/pip", "install", "-q", "--retries", "1", "setuptools>=77"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    broken = re.search(r"connection broken by '(.*)': /", done.stderr)
    if broken:
        return (
            f"pip reaches no package index: {re.sub('<[^>]*>: ', '', broken.group(1))}. Look at "
            "the settings of the proxy, or set PIP_NO_INDEX=1 where all packages are local."
        )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def main(words: list) -> None:
    """Install what one of the two needs, and run it in place of this."""
    if words not in ([], ["tests"]):
        sys.exit("usage: python3 bootstrap.py [tests]")
    what = words[0] if words else "run"
    failed = obstacle(what)
    if not failed and subprocess.call([sys.executable, "-m", "venv", f"{ROOT}/.venv"]):
        sys.exit(1)  # it has said why
    failed = failed or first_package()
    if failed:
        sys.exit(failed)
    print(f"installing into {ROOT}/.venv", flush=True)
    own = [".", *(f"./plugins/attnbench-{name}" for name in ("kernels", "mend"))]
    options = ["--no-compile", "--no-build-isolation", "-c", "constraints.txt"]
    what_for = ["tox"] if words else [*options, *own]
    if subprocess.call([f"{BIN}/pip", "install", "-q", *what_for], cwd=ROOT):
        sys.exit(1)
    os.chdir(ROOT)
    command = ["tox"] if words else ["attnbench", "run"]
    os.execv(f"{BIN}/{command[0]}", command)


if __name__ == "__main__":
    main(sys.argv[1:])
