"""Bytes per token of each tenant's own prompts, so that nobody's odd texts change what another is believed to ask for.

The ratio that routing learns of a model is everybody's: a tenant that sends texts of half a byte a token for a while
would make the prompts of all others look eight times as long, and their limits refuse them.
"""

from cache_affinity.ratio import TokenRatio, TokenRatios

MAX_FLOWS = 16_384  # the oldest are forgotten: they begin again, which is cheaper than to know who was used last
FIRST_LEAST, FIRST_MOST = 2.0, 8.0  # chosen: within these the model's ratio is believed for a tenant's first prompt


class TenantRatios:
    """The learned ratio of each (project, model). Bounded by `MAX_FLOWS`."""

    def __init__(self, max_flows: int = MAX_FLOWS) -> None:
        self._ratios: dict[tuple[str, str], TokenRatio] = {}  # the oldest first
        self._max_flows = max_flows

    def of(self, project_id: str, model: str, everybodys: TokenRatios) -> TokenRatio:
        """The project's own ratio of this model. `everybodys`: of all models, which a newcomer begins with."""
        flow = (project_id, model)
        ratio = self._ratios.get(flow)
        if ratio is not None:
            return ratio
        ratio = TokenRatio(min(max(everybodys.of(model).bytes_per_token, FIRST_LEAST), FIRST_MOST))
        self._ratios[flow] = ratio
        if len(self._ratios) > self._max_flows:
            del self._ratios[next(iter(self._ratios))]
        return ratio

    def __len__(self) -> int:
        return len(self._ratios)

    def __repr__(self) -> str:
        return f"<TenantRatios flows={len(self)}>"
