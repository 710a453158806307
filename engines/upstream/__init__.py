"""The raw HTTP/1.1 client pool: the connections to one replica."""

from engines.upstream.fetch import Answer
from engines.upstream.pool import Upstream, UpstreamLimits, UpstreamStatistics

__all__ = ["Answer", "Upstream", "UpstreamLimits", "UpstreamStatistics"]
