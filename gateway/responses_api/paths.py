"""Where OpenAI's responses lie."""

RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
