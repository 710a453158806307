"""Where tests keep the demo model: fetched once, used by all."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def models_folder() -> Path:
    """`WARMLANE_TEST_MODELS`, or the repository's own models folder."""
    return Path(os.environ.get("WARMLANE_TEST_MODELS", REPOSITORY / ".warmlane" / "models"))
