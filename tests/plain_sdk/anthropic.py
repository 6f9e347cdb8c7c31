"""Stands for the SDK in child processes that a test starts: its import takes a second or two.

The same call, `Anthropic().messages.create(...)`, over plain HTTP to ANTHROPIC_BASE_URL, and no
module for it: importing urllib.request would take a fifth of a child's time.
"""

import json
import os
import socket
from types import SimpleNamespace


class APIStatusError(Exception):
    def __init__(self, status, body):
        super().__init__(f"Error code: {status} - {body}")
        self.status_code = status


class Anthropic:
    def __init__(self, **_):
        self.messages = self

    def create(self, **request):
        data = json.dumps(request).encode()
        key = os.environ.get("ANTHROPIC_API_KEY") or "none"
        head = f"POST /v1/messages HTTP/1.0\nx-api-key: {key}\nanthropic-version: 2023-06-01\n"
        head += f"content-length: {len(data)}\n\n"
        host, _, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").partition(":")
        with socket.create_connection((host, port)) as wire:
            wire.sendall(head.replace("\n", "\r\n").encode() + data)
            head, _, body = wire.makefile("rb").read().partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            raise APIStatusError(status, body.decode())
        message = json.loads(body)
        message["usage"] = SimpleNamespace(**message["usage"] or {})
        return SimpleNamespace(**message)
