"""Where what was built and measured on this machine is kept."""

import os
from collections.abc import Mapping
from pathlib import Path


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`WARMLANE_HOME`, else `.warmlane` in the current folder; absolute."""
    return Path(environ.get("WARMLANE_HOME") or ".warmlane").expanduser().absolute()
