"""Compiled kernels in a program of their own: of another kind of processor, in an emulator (qemu), or watched."""

from __future__ import annotations

import ctypes
import gc
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.kernels import few_rows
from heedful.kernels.few_rows import Call, KeyValues, Operation

DRIVER = Path(__file__).with_suffix(".cpp")


class Emulated:
    """Stands for the library that ``few_rows.library`` returns: each call runs in a process of its own.

    Args:
        command: of the compiler, with its flags; without those that name the source and the program.
        folder: for the program, and the memory of a call.
        emulator: the command that runs the program.

    What is no call of a program, such as rounding weights, is left to this processor's library. Weights are interleaved
    as there, without an emulator.
    """

    def __init__(self, command: Sequence[str], folder: Path, emulator: Sequence[str] = ()) -> None:
        self.program, self.file, self.emulator = folder / "emulated", folder / "memory", emulator
        self.library, self.calls = few_rows.library(), 0
        objects = folder / "emulated.o"
        included = ("-include", str(few_rows.SOURCE), "-c", str(DRIVER), "-o", str(objects))
        subprocess.run([*command, *included], check=True)
        # without GCC's OpenMP where the program has threads of its own
        link = [word for word in command if word != "-fopenmp" or "-DOWN_THREADS" not in command]
        subprocess.run([*link, str(objects), "-o", str(self.program)], check=True)

    def interleaved(self) -> int:
        """As in the source."""
        return 0 if self.emulator else int(self.library.interleaved())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def run_sequences(self, operations: Any, count: int, call: Any) -> None:
        """Computes ``few_rows.run_sequences``."""
        self.run(operations, count, call, 0)

    def run(self, operations: Any, count: int, call: Any, steps: int) -> int:
        """Computes ``few_rows.run``; memory is what it is afterwards there."""
        told = call._obj
        memory = regions(operations, told)
        with self.file.open("wb") as out:
            head = (len(memory), ctypes.addressof(operations), count, ctypes.addressof(told), steps)
            out.write(struct.pack("=5q", *head))
            for address, size in memory:
                out.write(struct.pack("=2q", address, size) + ctypes.string_at(address, size))
        subprocess.run([*self.emulator, str(self.program), str(self.file)], check=True)
        content = self.file.read_bytes()
        place = 5 * 8
        for address, size in memory:
            place += 2 * 8
            if address not in (head[1], head[3], ctypes.addressof(told.keys.contents) if told.keys else None):
                ctypes.memmove(address, content[place : place + size], size)
            place += size
        self.calls += 1
        done: int = struct.unpack("=q", content[:8])[0]
        return done


def regions(operations: Any, call: Call) -> list[tuple[int, int]]:
    """Addresses and sizes of all memory that a call reads and writes: its structures, and the tensors they point to."""
    found = [(ctypes.addressof(each), ctypes.sizeof(each)) for each in (operations, call)]
    pointed = pointers(call).union(*map(pointers, operations))
    if call.keys:
        layers = 1 + max(each.layer for each in operations)
        keys = ctypes.cast(call.keys, ctypes.POINTER(KeyValues * (2 * layers))).contents
        found.append((ctypes.addressof(keys), ctypes.sizeof(keys)))
        pointed.update(*map(pointers, keys))
    tensors = (each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter))
    dense = (each for each in tensors if each.device.type == "cpu" and each.layout is torch.strided)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in dense)}
    found += [
        (address, size)
        for address, size in storages.items()
        if any(address <= pointer < address + size for pointer in pointed)
    ]
    return found


def pointers(structure: Operation | KeyValues | Call) -> set[int]:
    """The addresses that a structure holds."""
    names = (name for name, kind, *_ in structure._fields_ if kind is ctypes.c_void_p)
    return {value for name in names if (value := getattr(structure, name))}
