"""Which language a path's answers are in, whatever became of the request: also of those that were never read."""

from gateway.anthropic_api.errors import ANTHROPIC
from gateway.anthropic_api.paths import COUNT_TOKENS, MESSAGES
from gateway.language import OPENAI, Language
from gateway.responses_api.errors import RESPONSES_LANGUAGE
from gateway.responses_api.paths import RESPONSES

_LANGUAGES: dict[str, Language] = {MESSAGES: ANTHROPIC, COUNT_TOKENS: ANTHROPIC, RESPONSES: RESPONSES_LANGUAGE}


def language_of(path: str) -> Language:
    """Of a path that requests are served on."""
    return _LANGUAGES.get(path, OPENAI)


def language_near(path: str) -> Language:
    """Of any path: below a surface nothing may be served, but whoever asks there speaks its language."""
    is_near = path == MESSAGES or path.startswith(MESSAGES + "/")
    return ANTHROPIC if is_near else OPENAI
