"""Hosted OpenAI-compatible providers: outside the house, so they get an allow-list and nothing that names a tenant."""

from engines.adapters.plain import PlainAdapter
from engines.adapters.steering import HOSTED_FIELDS
from engines.adapters.surfaces import HOSTED_PATHS, STANDARD_FIELDS, STANDARD_FORM_FIELDS
from engines.contract import Capabilities


class OpenAIAdapter(PlainAdapter):
    """No salt, no priority, no id or trace of ours, no load. It has no health route: its model list stands in.

    OpenAI itself ranks nothing; others of its language do, where the operator says so (`tasks`).
    """

    kind = "openai"
    capabilities = Capabilities(reports_cached_tokens=True, forbids_unknown_fields=True)
    paths = HOSTED_PATHS
    form_fields = STANDARD_FORM_FIELDS
    usual_tasks: frozenset[str] | None = frozenset({"generate", "embed"})

    def forwards(self, name: str) -> bool:
        """Whether a client's field is passed on."""
        return name in HOSTED_FIELDS

    def takes(self, surface: str) -> frozenset[str]:
        """The standard's fields alone."""
        return STANDARD_FIELDS[surface]
