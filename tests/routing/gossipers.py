"""Gateways that gossip, for the routing tests: each with its own fleet, and a network that does what the test says."""

from cache_affinity.gossip_wire import encode
from routing.gossip_digests import ReplicaDigests
from routing.gossip_hearing import Hearing
from routing.gossip_telling import GossipBounds, Telling
from tests.routing.fleet import Fleet


class Gateway(Fleet):
    """One gateway. What it tells is returned, what others tell is given to `hear`."""

    def __init__(self, number, num_replicas=3, *, bounds=None, pool=None, **changes):
        super().__init__(num_replicas, pool, **changes)
        digests = ReplicaDigests("here")
        self.telling = Telling(self.pool, self.router.ratios, digests, number, bounds or GossipBounds())
        self.hearing = Hearing(self.router, digests, number)
        self.open = []

    def pass_time(self, seconds):
        """Later."""
        self.now += seconds
        self.hearing.expire(self.now)

    def tell(self):
        """The next message, once it may be told."""
        self.now += 0.02
        return self.telling.message(self.now)

    def hear(self, *contents):
        """What others told."""
        for content in contents:
            self.hearing.hear(content if isinstance(content, bytes) else encode(content), self.now)

    def settle(self, lease, decision, *, cached=0, ttft_s=0.5):
        """The answer of a request came."""
        lease.prefilled()
        self.router.settled(
            decision, lease, now=self.now, prompt_tokens=decision.prompt_tokens, cached_tokens=cached, ttft_s=ttft_s
        )
        lease.end()

    def ask(self, *segments, read=False):
        """Route a request and send it; (lease, decision)."""
        decision = self.route(*segments)
        lease = self.pool.lease(decision, self.now)
        if read:
            lease.prefilled()
        return lease, decision

    def load_of(self, name):
        """(requests, tokens, work, hidden requests, hidden tokens, hidden work) as it feels them."""
        one = self.pool.get(name)
        return (
            one.num_flying, one.outstanding_tokens, one.work_tokens,
            one.hidden_in_flight, one.hidden_tokens, one.hidden_work,
        )  # fmt: skip

    def learned(self):
        """All that it has learned."""
        found = {}
        for one in self.pool:
            factor, ratio = one.shadow.factor, self.router.ratios.of(one.spec.model)
            found[one.name] = (
                one.ttft.ms_per_token, one.ttft.base_ms, one.ttft.unlearned, *one.ttft.weights, one.confidence.value,
                one.confidence.num_observations, factor.logarithm, factor.num_observations, ratio.bytes_per_token,
                ratio.num_observations,
            )  # fmt: skip
        return found


def in_order(*gateways):
    """Everybody tells what there is to tell, and all others hear it."""
    for _ in range(3):
        for gateway in gateways:
            content = gateway.tell()
            if content is not None:
                for other in gateways:
                    other.hear(content)
