"""Bytes per token of each model, learned from what engines report. Turns byte hits into token hits."""

DEFAULT_BYTES_PER_TOKEN = 4.0  # chat text in English is about 3.5 to 4.5
LEAST, MOST = 0.5, 16.0  # outside lies no text: pictures as base64, or a template around a one-word prompt
_SHARE = 0.1  # of a full-weight observation in the mean: about the last ten prompts count
_FULL_WEIGHT_TOKENS = 256  # shorter prompts are mostly template and weigh less
MAX_MODELS = 1024


class TokenRatio:
    """The learned bytes per token of one model: a moving mean, always within [LEAST, MOST]."""

    __slots__ = ("bytes_per_token", "num_observations")

    def __init__(self, bytes_per_token: float = DEFAULT_BYTES_PER_TOKEN) -> None:
        self.bytes_per_token = min(max(bytes_per_token, LEAST), MOST)
        self.num_observations = 0

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from one prompt's own size and the engine's count; a pair that cannot be text teaches nothing."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        seen = prompt_bytes / prompt_tokens
        if LEAST <= seen <= MOST:
            share = _SHARE * min(1.0, prompt_tokens / _FULL_WEIGHT_TOKENS)
            self.bytes_per_token += share * (seen - self.bytes_per_token)
            self.num_observations += 1

    def adopt(self, bytes_per_token: float, num_observations: int) -> None:
        """Take over what more observations made elsewhere; of as many the larger value. Else nothing."""
        bytes_per_token = min(max(bytes_per_token, LEAST), MOST)
        if (num_observations, bytes_per_token) > (self.num_observations, self.bytes_per_token):
            self.bytes_per_token, self.num_observations = bytes_per_token, num_observations

    def tokens(self, num_bytes: int) -> int:
        """About how many tokens `num_bytes` of prompt are, rounded to the nearest."""
        return round(num_bytes / self.bytes_per_token)

    def bytes(self, num_tokens: int) -> int:
        """About how many bytes of prompt `num_tokens` are, rounded to the nearest."""
        return round(num_tokens * self.bytes_per_token)


class TokenRatios:
    """The ratio of each model. Models are configured, so few; beyond `MAX_MODELS` new ones share one ratio."""

    def __init__(self) -> None:
        self._ratios: dict[str, TokenRatio] = {}
        self._others = TokenRatio()

    def __repr__(self) -> str:
        return f"<TokenRatios { ({model: round(r.bytes_per_token, 2) for model, r in self._ratios.items()}) }>"

    def of(self, model: str) -> TokenRatio:
        """The model's ratio; the same object every time."""
        ratio = self._ratios.get(model)
        if ratio is None:
            if len(self._ratios) >= MAX_MODELS:
                return self._others
            ratio = self._ratios[model] = TokenRatio()
        return ratio
