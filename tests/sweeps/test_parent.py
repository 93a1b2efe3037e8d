"""A child gets SIGTERM when its parent ends, even by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import signal, sys, time
from pathlib import Path
from sightline.sweeps.parent import watch_parent
def stop(number, frame):
    Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
watch_parent()
Path(sys.argv[1]).write_text("running")
time.sleep(60)
"""
PARENT = """
import sys, threading
from pathlib import Path
from types import SimpleNamespace
from sightline.sweeps.sweep import Job, Pool
board = SimpleNamespace(changed=lambda job: None, tick=lambda: None, note=lambda text: None)
folder = Path(sys.argv[2])
training = SimpleNamespace(threads=None)
run = SimpleNamespace(folder=folder, log=folder / "log", recipe=SimpleNamespace(training=training), state="waiting")
Job.__post_init__ = lambda self: None
command = lambda run: [sys.executable, "-c", sys.argv[1], str(folder / "state")]
Pool(1, command, board).work([Job(run)], threading.Event())
"""


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while not path.is_file() or path.read_text() != text:
        assert time.monotonic() < deadline, f"{path} never contained {text}"
        time.sleep(0.02)


def test_a_killed_sweep_leaves_no_training_running(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(tmp_path)])
    wait_for(tmp_path / "state", "running")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(tmp_path / "state", "SIGTERM")


def test_standard_input_is_untouched_without_the_variable() -> None:
    code = "import sys; from sightline.sweeps.parent import watch_parent; watch_parent(); print(sys.stdin.read())"
    done = subprocess.run([sys.executable, "-c", code], input="a line", capture_output=True, text=True, check=False)
    assert done.stdout == "a line\n"


def test_the_variable_is_not_inherited() -> None:
    code = "import os; from sightline.sweeps.parent import watch_parent; watch_parent(); print(sorted(os.environ))"
    environment = {**os.environ, "SIGHTLINE_WATCH_PARENT": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None and "SIGHTLINE_WATCH_PARENT" not in child.stdout.read()
