"""Where OpenAI's responses lie."""

RESPONSES = "/v1/responses"
