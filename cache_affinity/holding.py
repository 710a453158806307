"""One replica's blocks as the exact index keeps them."""


class Holding:
    """One replica's blocks. `device`, `host`: the engine's hash to our name, the oldest first."""

    __slots__ = ("bit", "block_size", "device", "host", "is_known", "is_partial", "name")

    def __init__(self, name: str, bit: int) -> None:
        self.name = name
        self.bit = bit
        self.device: dict[int, int] = {}
        self.host: dict[int, int] = {}
        self.block_size = 0
        self.is_known = False
        self.is_partial = False

    def __len__(self) -> int:
        return len(self.device) + len(self.host)
