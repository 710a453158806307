"""Where Anthropic's surfaces lie."""

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
