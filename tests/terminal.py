"""The program as a child process: in a pipe, or at a real terminal with a person's keys.

    person = Terminal(folder, "--offline")
    person.wait("s06 >> ")
    person.type("hello\\n")
    person.wait("ctx")
    assert person.leave() == 0

Nothing here sleeps for a fixed time: `wait` reads until a pattern appears, or fails.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
AGENTS = TESTS.parent / "agents"
PROGRAM = AGENTS / "s06_context_compact.py"
PATIENCE = 30  # seconds: a busy machine, never the normal case
CTRL_C, CTRL_D, BACKSPACE = "\x03", "\x04", "\x7f"
PASTE = "\x1b[200~{}\x1b[201~"  # what a terminal sends around a pasted text


def environment(folder, api=None, real_sdk=False, **extra):
    """A clean environment: no keys, no proxies, nothing of the developer's own."""
    path = [AGENTS] if real_sdk else [TESTS / "plain_sdk", AGENTS]
    clean = {
        "PATH": os.environ["PATH"],
        "HOME": os.fsdecode(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    clean |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    clean |= {"INPUTRC": os.devnull}
    if api:
        clean |= {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "sk-test"}
    return clean | extra


def command(*argv, code=""):
    """The command line of the program; `code` runs before main and may turn knobs of s06."""
    if not code:
        return [sys.executable, str(PROGRAM), *argv]
    lines = f"import sys, s06_context_compact as s06\n{code}\nsys.exit(s06.main())"
    return [sys.executable, "-c", lines, *argv]


def run(folder, *argv, typed="", code="", **env):
    """Run the program to its end in a pipe; its CompletedProcess, output as bytes."""
    typed = typed if isinstance(typed, bytes) else typed.encode()
    return subprocess.run(
        command(*argv, code=code),
        **{"cwd": folder, "env": environment(folder, **env), "input": typed, "timeout": PATIENCE},
        capture_output=True,
    )


class Terminal:
    """The program in a pseudo terminal of its own, and what it has shown there."""

    def __init__(self, folder, *argv, code="", columns=80, **env):
        self.screen, tty = pty.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.shown, self.read_to = b"", 0
        shell = ["/bin/sh", "-c", 'exec <"$0" >"$0" 2>&1; exec "$@"', os.ttyname(tty)]
        self.child = subprocess.Popen(
            shell + command(*argv, code=code),
            **{"cwd": folder, "env": environment(folder, **env), "start_new_session": True},
        )
        self.tty = tty  # held open, or the first read could see an end

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.screen)
        os.close(self.tty)

    def read(self, seconds):
        """Take what the program has shown; whether anything came within `seconds`."""
        if not select.select([self.screen], [], [], seconds)[0]:
            return False
        self.shown += os.read(self.screen, 1 << 16)
        return True

    def sees(self, pattern, seconds):
        """Read until `pattern` appears behind what was seen before: the text up to there, or ""."""
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern.encode(), self.shown[self.read_to :])
            if found:
                text = self.shown[self.read_to : self.read_to + found.end()]
                self.read_to += found.end()
                return text.decode("utf-8", "replace")
            gone = self.child.poll() is not None
            if not self.read(0.05) and (gone or time.monotonic() > end):
                return ""

    def wait(self, pattern):
        """The same for what must appear; it fails with what was shown instead."""
        text = self.sees(pattern, PATIENCE)
        state = f"status {self.child.poll()}, {self.shown[self.read_to :][-2000:]!r}"
        assert text, f"{pattern!r} did not appear: {state}"
        return text

    def type(self, keys):
        """Press `keys`; a long text goes in as fast as the program takes it."""
        data = keys if isinstance(keys, bytes) else keys.encode()
        while data:
            readable, writable, _ = select.select([self.screen], [self.screen], [], PATIENCE)
            if readable:
                self.read(0)
            if writable:
                data = data[os.write(self.screen, data[:1024]) :]

    def leave(self, keys=CTRL_D):
        """Press Ctrl-D and read to the end; the exit status."""
        self.type(keys)
        end = time.monotonic() + PATIENCE
        while self.child.poll() is None and time.monotonic() < end:
            self.read(0.02)
        while self.read(0):
            pass
        return self.child.wait(0)
