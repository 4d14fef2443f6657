"""The memory of temporaries, which all compiled graphs share.

Takes sizes in bytes; gives blocks. Each running call has one of its own, so that there are as
many as calls ever ran at once, each as large as the largest graph that ran in it: not one per
graph and set of sizes. A graph is given the block that it had before where that is idle, as its
tables hold addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch

ALIGNMENT = 64
CPU = torch.device("cpu")


class Arenas:
    """Blocks that no call runs in, by address; gone when no graph is left to use them."""

    def __init__(self) -> None:
        self._idle: dict[int, torch.Tensor] = {}
        self._users = 0
        self._lock = threading.RLock()  # a collection inside may end another graph

    def join(self) -> None:
        """One user more."""
        with self._lock:
            self._users += 1

    def quit(self) -> None:
        """One user less; the last one takes the memory along."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._idle.clear()

    def take(self, before: int, size: int) -> torch.Tensor:
        """A block of at least `size` bytes, aligned; that at address `before` where it is idle."""
        block = self._idle.pop(before, None)
        if block is None:
            try:
                _, block = self._idle.popitem()
            except KeyError:
                return new_block(size)
        return block if block.numel() >= size else new_block(size)

    def idle_bytes(self) -> int:
        """How much memory waits for calls."""
        return sum(block.numel() for block in list(self._idle.values()))

    def give(self, block: torch.Tensor) -> None:
        """A block is idle again."""
        self._idle[block.data_ptr()] = block


def new_block(size: int, device: torch.device = CPU) -> torch.Tensor:
    """Aligned memory of `size` bytes, as u8[size]."""
    with torch.inference_mode(False):
        memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
        start = -memory.data_ptr() % ALIGNMENT
        return memory[start : start + size]


ARENAS = Arenas()


class Arena:
    """The temporaries of one instance on one device: `offsets` in a block of `size` bytes, which
    is held while a call runs. On a GPU torch's allocator hands blocks out, as it knows what
    still runs on which stream."""

    def __init__(self, device: torch.device, offsets: Mapping[str, int], size: int) -> None:
        self.device, self.offsets, self.size = device, offsets, size
        self.address = -1  # where it was last; that of no bytes is 0
        self.block: torch.Tensor | None = None

    def enter(self) -> bool:
        """Take memory; gives whether it lies elsewhere than before."""
        before = self.address
        if self.device == CPU:
            self.block = ARENAS.take(before, self.size)
        else:
            self.block = new_block(self.size, self.device)
        self.address = self.block.data_ptr()
        return self.address != before

    def leave(self) -> None:
        """Give the memory back."""
        if self.block is not None and self.device == CPU:
            ARENAS.give(self.block)
        self.block = None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        if self.block is None or tensor.device != self.device:
            return False
        return tensor.untyped_storage().data_ptr() == self.block.untyped_storage().data_ptr()
