"""Choose the device to compute on, describe it, and draw from a seed of one's own."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_FAST: dict[str, str] = {}
_BF16_FLAGS = re.compile(r"\b(amx_bf16|avx512_bf16|bf16)\b")  # Intel, Intel and AMD, ARM


def usable_device(name: str) -> torch.device:
    """Return a device after trying it.

    Args:
        name: Name of the device in torch; "auto" is the GPU if there is one. Under torchrun both
            "auto" and "cuda" are the rank's own GPU.

    Raises:
        ValueError: If the device cannot be used.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        return torch.empty(0, device=named_device(name)).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).partition(":")[0]
        if reason.startswith("Expected one of"):  # and torch lists every kind that it knows
            reason = "there is no such device"
        raise ValueError(
            f"Expected `--device` to be auto, cpu, cuda or cuda:N, and to work here, got {name!r}: "
            f"{reason}. Use auto; rl-infonce doctor lists what is there."
        ) from error


def named_device(name: str) -> torch.device:
    """Return a device without trying it.

    Raises:
        RuntimeError: If torch knows no such device, or it computes nothing.
    """
    device = torch.device(name)
    if device.type == "meta":
        raise RuntimeError("meta computes nothing")
    return device


@contextmanager
def seeded_on_cpu(seed: int) -> Iterator[None]:
    """Let torch draw on the CPU from a seed, and leave its own random stream as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs as well
        yield


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 in hardware.

    A processor that does not is several times slower with bfloat16 than with float32.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _BF16_FLAGS.search(_cpuinfo()) is not None


def is_slow_at_bf16(device: torch.device) -> bool:
    """Return whether a device is known not to multiply bfloat16 in hardware."""
    is_known = device.type == "cuda" or (device.type == "cpu" and bool(_cpuinfo()))
    return is_known and not has_fast_bf16(device)


def arithmetic(precision: str, device: torch.device) -> str:
    """Return "fp32" or "bf16": what is asked for, or what a device is fast at.

    Args:
        precision: "fp32", "bf16", or "auto", which is bf16 where the device multiplies it in
            hardware.
        device: Where the encoder runs.
    """
    if precision == "auto":
        precision = _fast_arithmetic(device)
    return precision


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _fast_arithmetic(device: torch.device) -> str:
    name = str(device)
    if name not in _FAST:  # asked in every forward; torch.compile would look through a cache
        _FAST[name] = "bf16" if has_fast_bf16(device) else "fp32"
    return _FAST[name]


def hardware_name(device: torch.device) -> str:
    """Return the model name of a GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name() if device.type == "cpu" else str(device)


def processor_name() -> str:
    """Return the processor's model name where Linux tells it, else its architecture."""
    lines = _cpuinfo().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
