"""What the doctor looks at, and what it says of each thing."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engines.hardware import Hardware
from gateway.home import Home
from gateway.settings import Settings


class Health(Enum):
    """How a finding stands: `BROKEN` would stop a start, `NOTE` is worth knowing."""

    OK = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at, with a sentence about it."""

    check: str
    health: Health
    detail: str


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined: this machine's `hardware`, a home folder and a configuration that could be read or not."""

    hardware: Hardware
    home: Home
    settings: Settings
    config_error: str = ""
    model: Path | None = None
