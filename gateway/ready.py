"""What Warmlane says when it is ready: one line for scripts, demo.json for programs, a few lines for people."""

import json
from dataclasses import dataclass
from pathlib import Path

from engines.launch.ready_line import ReadyLine, ready_line
from gateway.home import write_private


@dataclass(frozen=True, slots=True)
class Readiness:
    """How to reach a ready Warmlane. `url` ends in /v1; `model`: one to try, empty when none is known yet."""

    url: str
    key: str
    model: str
    admin: str
    admin_token: str

    def line(self) -> ReadyLine:
        """The line for stdout; without a model there is no `model=`."""
        return ready_line(**{name: value for name, value in self._fields().items() if value})

    def write(self, path: Path) -> None:
        """demo.json, mode 0600. Raises `HomeError`."""
        write_private(path, json.dumps(self._fields(), indent=2) + "\n")

    def greeting(self, workers: int) -> str:
        """For a person at a terminal: where it is, a first request, how to stop."""
        question = [{"role": "user", "content": "What is a cat?"}]
        body = {"model": self.model, "stream": True, "temperature": 0, "max_tokens": 48, "messages": question}
        started = f" with {workers} worker{'s' if workers > 1 else ''}" if workers else ""
        return (
            f"\nWarmlane is ready at {self.url}{started}. Ctrl-C stops it.\n\n"
            f"  curl -N {self.url}/chat/completions \\\n"
            f"    -H 'authorization: Bearer {self.key}' \\\n"
            "    -H 'content-type: application/json' \\\n"
            f"    -d '{json.dumps(body)}'\n\n"
        )

    def _fields(self) -> dict[str, str]:
        return {
            "url": self.url,
            "key": self.key,
            "model": self.model,
            "admin": self.admin,
            "admin_token": self.admin_token,
        }
