"""A worker in virtual time at the level of blocks: step cost, batch and KV memory, without a token in it.

It does what `engines.core`'s scheduler does with requests of one lane that share blocks of the trace: decodes first,
then prompts by order and budget, newcomers while there is budget, seats and blocks; a prefix that is being computed is
waited for; who does not fit in gives up its seat. Steps that are alike are taken in one stride, and nobody counts rows
in a step: that makes it some hundred times as fast. Held against the real scheduler by tests.
"""

from bisect import insort
from heapq import heappop, heappush
from operator import attrgetter

from gateway.simulation.block_cache import FRONT, BlockCache
from gateway.simulation.block_gaps import CountedGaps
from gateway.simulation.block_sequence import BlockSequence
from gateway.simulation.block_steps import StepRule, Stride
from gateway.simulation.replica import EngineSettings

_number = attrgetter("number")
Milestone = tuple[int, int, int, BlockSequence]  # (decoded steps, number, seating, sequence)


class BlockReplica:
    """Strides are begun and ended by the caller, who owns the time. `speed`: factor on every step's time.

    `settings.scheduler.block_size` must be the trace's. Sequences have their order by `number`.
    """

    def __init__(self, name: str, settings: EngineSettings, *, speed: float = 1.0) -> None:
        scheduler = settings.scheduler
        self.name = name
        self.cache = BlockCache(scheduler.num_blocks)
        self.gaps = CountedGaps()
        self.num_steps = self.preemptions = self.prompt_tokens = self.hit_tokens = 0
        self.busy_s = 0.0
        self._rule = StepRule(scheduler, settings.cost, speed)
        self._size = scheduler.block_size
        self._max_seqs = scheduler.max_seqs
        self._keep_free = int(scheduler.watermark_ratio * scheduler.num_blocks)
        self._stride: Stride | None = None
        self._chunks: list[tuple[BlockSequence, int]] = []
        self._waiting: list[BlockSequence] = []
        self._running: list[BlockSequence] = []
        self._reading: list[BlockSequence] = []  # of the running ones, those whose prompt is not read
        self._growing: list[BlockSequence] = []  # those that need a block before the next step
        self._milestones: list[Milestone] = []
        self._decoded = 0  # steps in which the decoding ones have decoded
        self._owners: dict[int, BlockSequence] = {}  # who computes a block that is not there yet

    def __repr__(self) -> str:
        return f"<BlockReplica {self.name} running={len(self._running)} waiting={len(self._waiting)} {self.cache!r}>"

    @property
    def num_open(self) -> int:
        """Sequences it has."""
        return len(self._running) + len(self._waiting)

    @property
    def stride(self) -> Stride | None:
        """What is being computed."""
        return self._stride

    def submit(self, sequence: BlockSequence, now: float) -> bool:
        """Take a sequence; whether what is computed ends earlier by that. Raises ValueError for one that never fits."""
        if -(-(sequence.prompt_tokens + sequence.wanted) // self._size) > self.cache.num_blocks:
            raise ValueError(
                f"{sequence.prompt_tokens} prompt tokens and {sequence.wanted} of output are more than the "
                f"{self.cache.num_blocks * self._size} that a replica's KV cache holds"
            )
        insort(self._waiting, sequence, key=_number)
        stride = self._stride
        if stride is None or not stride.is_open or stride.num_steps == 1:
            return False
        before = stride.num_steps
        stride.cut(now)
        return stride.num_steps != before

    def begin(self, now: float) -> Stride | None:
        """What is computed from now on; None when nothing is open."""
        if not self._running and not self._waiting:
            self._stride = None
            return None
        may_seat = self._make_room(now)
        num_rows = len(self._running) - len(self._reading)
        chunks, num_single, left = self._read_on(num_rows)
        if may_seat and self._waiting:
            num_single, left = self._seat(chunks, num_single, left)
        assert num_rows or chunks, "sequences are open, but none can go on"
        num_prefill = sum(num for _, num in chunks if num > 1)
        seconds = self._rule.cost.seconds(num_rows + num_single, num_prefill)
        stride = Stride(now, seconds, self._num_alike(may_seat, chunks, num_single, left), num_rows, not chunks)
        self._chunks, self._stride = chunks, stride
        return stride

    def end(self, now: float) -> tuple[list[BlockSequence], list[BlockSequence]]:
        """Book the stride: (those that got their first token, those that are finished)."""
        stride = self._stride
        firsts: list[BlockSequence] = []
        over: list[BlockSequence] = []
        assert stride is not None, "a stride ends that was not begun"
        self._stride = None
        self.num_steps += stride.num_steps
        self.busy_s += now - stride.started_at
        if stride.num_rows:
            self._decoded += stride.num_steps
            self.gaps.add(stride.step_s, stride.num_rows * stride.num_steps)
            self._pass_milestones(over)
        for sequence, num in self._chunks:
            sequence.computed += num * stride.num_steps
            self._publish(sequence)
            if sequence.computed == sequence.length:
                self._reading.remove(sequence)
                if sequence.num_output == 0:
                    firsts.append(sequence)
                self._has_read(sequence, over, now)
        return firsts, over

    def _make_room(self, now: float) -> bool:
        """A block for everyone who needs one; True if nobody had to give up a seat for it."""
        growing = self._growing
        if not growing:
            return True
        self._growing = []
        before = self.preemptions
        for sequence in sorted(growing, key=_number):
            while sequence.is_running and not self.cache.allocate(1):
                self._preempt(self._running[-1], now)
            if sequence.is_running:
                sequence.num_nameless += 1
                self._note_milestone(sequence)
        return self.preemptions == before

    def _read_on(self, num_rows: int) -> tuple[list[tuple[BlockSequence, int]], int, int]:
        """(chunks of those who read, how many of one token, prompt tokens left to others)."""
        chunks = [(sequence, 1) for sequence in self._reading if sequence.num_left == 1]
        num_single = len(chunks)
        left = self._rule.prompt_tokens(num_rows + num_single)
        for sequence in self._reading:
            wanted = sequence.num_left
            if wanted > 1 and left > 0:
                num = min(wanted, left)
                left -= num
                num_single += num == 1
                chunks.append((sequence, num))
        return chunks, num_single, left

    def _seat(self, chunks: list[tuple[BlockSequence, int]], num_single: int, left: int) -> tuple[int, int]:
        """Seat whom there is room for, in order. The first without room ends it."""
        seated = []
        for sequence in self._waiting:
            if left <= 0 or len(self._running) >= self._max_seqs:
                break
            placed = self._place(sequence)
            if placed is None:
                continue
            if not placed:
                break
            seated.append(sequence)
            num = min(sequence.num_left, left)
            left -= num
            num_single += num == 1
            chunks.append((sequence, num))
        for sequence in seated:
            self._waiting.remove(sequence)
        return num_single, left

    def _place(self, sequence: BlockSequence) -> bool | None:
        """Whether there was room; None: its next block is just being computed, it waits for that."""
        owners, names, cache, size = self._owners, sequence.names, self.cache, self._size
        if sequence.awaited is not None and sequence.awaited in owners:
            return None
        hittable = names[: (sequence.length - 1) // size]
        depth = cache.depth(hittable)
        sequence.awaited = hittable[depth] if depth < len(hittable) else None
        if sequence.awaited is not None and sequence.awaited in owners:
            return None
        path = hittable[:depth]
        num_new = -(-sequence.length // size) - depth
        keep_free = self._keep_free if self._running else 0
        if num_new > cache.num_free - cache.num_idle_in(path) - keep_free:
            return False
        cache.share(path)
        assert cache.allocate(num_new), "the blocks counted as free are not"
        for name in names[depth:]:
            owners.setdefault(name, sequence)
        sequence.held, sequence.num_nameless, sequence.computed = depth, num_new, depth * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.prompt_tokens += sequence.prompt_tokens
            self.hit_tokens += sequence.computed
        sequence.is_running = True
        sequence.seating += 1
        insort(self._running, sequence, key=_number)
        insort(self._reading, sequence, key=_number)
        return True

    def _num_alike(self, may_seat: bool, chunks: list[tuple[BlockSequence, int]], num_single: int, left: int) -> int:
        """How many steps will be like this one: until one decodes its last token or needs a block, or has read."""
        milestones = self._milestones
        while milestones and milestones[0][2] != milestones[0][3].seating:
            heappop(milestones)  # it has given up its seat
        until = milestones[0][0] - self._decoded if milestones else 1 << 30
        if not may_seat or num_single or len(chunks) > 1:
            return 1
        if not chunks:
            return max(1, until)
        sequence, num = chunks[0]
        return max(1, min(until, sequence.num_left // num)) if left == 0 else 1

    def _pass_milestones(self, over: list[BlockSequence]) -> None:
        milestones, decoded = self._milestones, self._decoded
        while milestones and milestones[0][0] <= decoded:
            _, _, seating, sequence = heappop(milestones)
            if seating != sequence.seating:
                continue
            self._catch_up(sequence)
            self._publish(sequence)
            if sequence.num_output == sequence.wanted:
                self._finish(sequence, over)
            else:
                self._note_milestone(sequence)

    def _catch_up(self, sequence: BlockSequence) -> None:
        """Count what it has decoded up to now."""
        since, output = sequence.decoded_from
        num_output = output + self._decoded - since
        sequence.length += num_output - sequence.num_output
        sequence.computed = sequence.length - 1
        sequence.num_output = num_output

    def _note_milestone(self, sequence: BlockSequence) -> None:
        """When it next needs something: a block before a step, or to be taken out after its last one."""
        since, output = sequence.decoded_from
        room = (sequence.held + sequence.num_nameless) * self._size - (sequence.prompt_tokens + output)
        if room < self._decoded - since:
            self._growing.append(sequence)
            return
        at = since + min(sequence.wanted - output, room + 1)
        heappush(self._milestones, (at, sequence.number, sequence.seating, sequence))

    def _has_read(self, sequence: BlockSequence, over: list[BlockSequence], now: float) -> None:
        """All it had is computed, so it has one token more."""
        sequence.num_output += 1
        sequence.length += 1
        if sequence.last_at is not None:
            self.gaps.add(now - sequence.last_at, 1)
            sequence.last_at = None
        if sequence.num_output == sequence.wanted:
            self._finish(sequence, over)
        else:
            sequence.is_decoding = True
            sequence.decoded_from = (self._decoded, sequence.num_output)
            self._note_milestone(sequence)

    def _publish(self, sequence: BlockSequence) -> None:
        """Let others hit its blocks that are full and computed."""
        num_full = sequence.computed // self._size
        if sequence.held == num_full or sequence.num_nameless == 0:
            return
        sequence.extend_names(num_full)
        names, owners, publish = sequence.names, self._owners, self.cache.publish
        for index in range(sequence.held, num_full):
            name = names[index]
            if not publish(name, names[index - 1] if index else FRONT):
                break  # computed twice, as the last block of a prompt can be: from here on it is nameless
            if owners.get(name) is sequence:
                del owners[name]
            sequence.held += 1
            sequence.num_nameless -= 1

    def _finish(self, sequence: BlockSequence, over: list[BlockSequence]) -> None:
        self._let_go(sequence)
        over.append(sequence)

    def _preempt(self, sequence: BlockSequence, now: float) -> None:
        """It gives up its seat, waits again at its place and reads anew what is not cached then."""
        if sequence.is_decoding:
            self._catch_up(sequence)
            sequence.last_at = now
        self._let_go(sequence)
        self.preemptions += 1
        sequence.computed = 0
        sequence.awaited = None
        sequence.extend_names(sequence.length // self._size)
        insort(self._waiting, sequence, key=_number)

    def _let_go(self, sequence: BlockSequence) -> None:
        self._running.remove(sequence)
        if sequence in self._reading:
            self._reading.remove(sequence)
        for name in sequence.names[sequence.held :]:
            if self._owners.get(name) is sequence:
                del self._owners[name]
        self.cache.release(sequence.names[: sequence.held], sequence.num_nameless)
        sequence.held = sequence.num_nameless = 0
        sequence.is_running = sequence.is_decoding = False
        sequence.seating += 1
