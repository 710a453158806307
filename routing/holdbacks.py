"""Replicas that are ready and yet not given all that they could take: ejected outliers, and those that start slowly.

Empty in a healthy pool, so that a request costs one look. Everything happens when it is noticed: an ejection ends, and
a start grows, by the clock of whoever asks next.
"""

from collections.abc import Sequence

from routing.outliers import Because, Ejections, OutlierSettings, outlier
from routing.replica import Replica, ReplicaState
from routing.slow_start import Came, SlowStartSettings, Start
from routing.tally import Tally

JUDGE_EVERY_S = 1.0  # chosen: a model's replicas are compared no more often, however many attempts fail


class Holdbacks:
    """Who of a pool is held back, by name. All times are monotonic seconds. False while nobody is."""

    def __init__(self, outliers: OutlierSettings, slow_start: SlowStartSettings) -> None:
        self.num_ejected: dict[tuple[str, Because], int] = {}  # (model, for what), since the gateway began
        self._outliers = outliers
        self._slow_start = slow_start
        self._ejected: dict[str, Replica] = {}
        self._starting: dict[str, tuple[Replica, Start]] = {}
        self._history: dict[str, Ejections] = {}  # also of those that are back
        self._judge_at: dict[str, float] = {}  # by model

    def __bool__(self) -> bool:
        return bool(self._ejected or self._starting)

    def __repr__(self) -> str:
        return f"<Holdbacks ejected={list(self._ejected)} starting={list(self._starting)}>"

    def configure(self, outliers: OutlierSettings, slow_start: SlowStartSettings) -> None:
        """Other settings from now on; with ejection switched off nobody stays ejected."""
        self._outliers, self._slow_start = outliers, slow_start
        if not outliers.max_share:
            self._ejected.clear()
            self._history.clear()

    def forget(self, name: str) -> None:
        """The replica is gone, or another process."""
        self._ejected.pop(name, None)
        self._starting.pop(name, None)
        self._history.pop(name, None)

    def start(self, replica: Replica, came: Came, now: float) -> None:
        """It is ready again, or for the first time: it gets its share slowly."""
        if self._slow_start.window_s > 0.0:
            self._starting[replica.name] = (replica, Start(came, now))

    def joined(self, replica: Replica, came: Came, pool: Sequence[Replica], now: float) -> None:
        """It became ready. Where no other of its model has worked yet, the gateway itself is new: nobody waits."""
        if any(one is not replica and not one.breaker.tally.is_blank for one in pool):
            self.start(replica, came, now)

    def refresh(self, now: float) -> None:
        """Let go whoever's time is over. To be called before the others are asked, while anybody is held back."""
        for name, replica in list(self._ejected.items()):
            if now >= self._history[name].until:
                del self._ejected[name]
                replica.breaker.tally = Tally()
                replica.breaker.tally.move_on(now)  # it has worked: not blank
                self.start(replica, Came.EJECTED, now)
        for name, (_, start) in list(self._starting.items()):
            if start.share(self._slow_start, now) >= 1.0:
                del self._starting[name]

    def is_ejected(self, name: str) -> bool:
        """Whether it is left out."""
        return name in self._ejected

    def is_at_bound(self, replica: Replica, now: float) -> bool:
        """Whether it starts slowly and holds all that it may have by now, of all gateways' as far as they are known."""
        held = self._starting.get(replica.name)
        if held is None:
            return False
        num_seats = replica.spec.seats + (replica.spec.bulk_seats or 0)
        return replica.num_flying >= held[1].seats(num_seats, self._slow_start, now)

    def share(self, name: str, now: float) -> float:
        """What a replica may have of its seats, 0 to 1."""
        self.refresh(now)
        if name in self._ejected:
            return 0.0
        held = self._starting.get(name)
        return 1.0 if held is None else held[1].share(self._slow_start, now)

    def judge(self, pool: Sequence[Replica], now: float) -> Replica | None:
        """Whoever stands out among a model's replicas is ejected, one at a time; who was. Cheap when asked too soon."""
        model = pool[0].spec.model if pool else ""
        if len(pool) <= 1 or not self._outliers.max_share or now < self._judge_at.get(model, 0.0):
            return None
        self._judge_at[model] = now + JUDGE_EVERY_S
        self.refresh(now)
        able = [one for one in pool if self._is_able(one)]
        if len(pool) - len(able) >= self._outliers.most_out(len(pool)):
            return None
        for one in able:
            one.breaker.tally.move_on(now)
        found = outlier([one.breaker.tally for one in able])
        if found is None:
            return None
        replica, because = able[found[0]], found[1]
        self._eject(replica, because, now)
        return replica

    def told(self, replica: Replica, now: float) -> dict[str, object] | None:
        """How it is held back, for the admin plane; None if it is not."""
        self.refresh(now)
        if replica.name in self._ejected:
            history = self._history[replica.name]
            left = round(max(0.0, history.until - now), 1)
            return {"kind": "ejected", "because": history.because.value, "share": 0.0, "left_s": left}
        held = self._starting.get(replica.name)
        if held is None:
            return None
        share, left = held[1].share(self._slow_start, now), held[1].since + self._slow_start.window_s - now
        because = held[1].came.value
        return {"kind": "slow_start", "because": because, "share": round(share, 2), "left_s": round(left, 1)}

    def _eject(self, replica: Replica, because: Because, now: float) -> None:
        history = self._history.setdefault(replica.name, Ejections())
        history.eject(because, self._outliers, now)
        self._starting.pop(replica.name, None)
        self._ejected[replica.name] = replica
        key = (replica.spec.model, because)
        self.num_ejected[key] = self.num_ejected.get(key, 0) + 1

    def _is_able(self, replica: Replica) -> bool:
        is_ready = replica.state is ReplicaState.READY and not replica.breaker.is_open
        return is_ready and replica.name not in self._ejected
