"""Stands for the SDK in child processes that a test starts: its import takes a second or two.

The same call, `Anthropic().messages.create(...)`, over plain HTTP to ANTHROPIC_BASE_URL.
"""

import json
import os
import urllib.error
import urllib.request
from types import SimpleNamespace

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class APIStatusError(Exception):
    def __init__(self, status, body):
        super().__init__(f"Error code: {status} - {body}")
        self.status_code = status


class Anthropic:
    def __init__(self, **_):
        self.messages = self

    def create(self, **request):
        key = os.environ.get("ANTHROPIC_API_KEY") or "none"
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"
        post = urllib.request.Request(url, json.dumps(request).encode(), headers)
        try:
            with direct.open(post) as response:
                message = json.load(response)
        except urllib.error.HTTPError as error:
            raise APIStatusError(error.code, error.read().decode()) from error
        message["usage"] = SimpleNamespace(**message["usage"] or {})
        return SimpleNamespace(**message)
