"""How long a tenant's answers are: a moving mean for each flow and model, to charge a request before it has ended."""

from collections import OrderedDict

from policies.lane import Lane

FIRST_GUESS_TOKENS = 128  # chosen: before a flow has ended any request
_SHARE = 0.1  # of one answer's length in the mean: about the last ten count
MAX_FLOWS = 16_384  # the least recently used are forgotten


class OutputEstimates:
    """Expected output tokens by (tenant, lane, model). Bounded by `MAX_FLOWS`."""

    def __init__(self, max_flows: int = MAX_FLOWS) -> None:
        self._means: OrderedDict[tuple[str, Lane, str], float] = OrderedDict()
        self._max_flows = max_flows

    def expected(self, tenant: str, lane: Lane, most: int = 0, model: str = "") -> int:
        """Output tokens of the tenant's next request in the lane; `most`: the request's own bound, 0 for none."""
        mean = int(self._means.get((tenant, lane, model), FIRST_GUESS_TOKENS) + 0.5)
        return min(mean, most) if most else mean

    def observe(self, tenant: str, lane: Lane, output_tokens: int, model: str = "") -> None:
        """One of its answers was this long."""
        flow = (tenant, lane, model)
        mean = self._means.pop(flow, float(FIRST_GUESS_TOKENS))
        self._means[flow] = mean + _SHARE * (output_tokens - mean)
        if len(self._means) > self._max_flows:
            self._means.popitem(last=False)

    def __len__(self) -> int:
        return len(self._means)
