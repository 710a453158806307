"""The models as Anthropic lists them, for whoever names its version (as each of its clients does). Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gateway.models import ServedModel

VERSION_HEADER = "anthropic-version"


def told_model(model: ServedModel, created: int) -> dict[str, object]:
    """One of them. `created`: Unix seconds."""
    entry: dict[str, object] = {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }
    if model.context_tokens is not None:
        entry["max_input_tokens"] = model.context_tokens
    return entry


def told_models(models: Sequence[ServedModel], created: int) -> dict[str, object]:
    """All of them, on one page."""
    return {
        "data": [told_model(model, created) for model in models],
        "has_more": False,
        "first_id": models[0].name if models else None,
        "last_id": models[-1].name if models else None,
    }
