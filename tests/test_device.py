"""Hardware has the name under which people know it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_infonce.device import (
    _FAST,
    arithmetic,
    hardware_name,
    has_fast_bf16,
    processor_name,
    usable_device,
)


@pytest.mark.parametrize(
    ("name", "reason"), [("meta", "meta computes nothing"), ("cuda:99", ".+"), ("gpu", ".+")]
)
def test_a_device_that_does_not_work_here_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"cuda:N, .* got '{name}': {reason}. Use auto"):
        usable_device(name)
    assert usable_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: A: fast one\nprocessor\t: 1\nmodel name\t: A",
            "A: fast one",
        ),
        ("CPU part\t: 0xd0c\n", "aarch64"),  # Arm names no model
    ],
)
def test_a_processor_is_named_as_linux_names_it(
    monkeypatch: pytest.MonkeyPatch, lines: str, expected: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_kwargs: lines)
    assert processor_name() == expected == hardware_name(torch.device("cpu"))


@pytest.mark.parametrize(
    ("processor", "expected"), [("i386 of a Mac", "i386 of a Mac"), ("", "arm64")]
)
def test_elsewhere_a_processor_is_named_as_python_names_it(
    monkeypatch: pytest.MonkeyPatch, processor: str, expected: str
) -> None:
    def no_such_file(*_args: Any, **_kwargs: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("platform.processor", lambda: processor)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(Path, "read_text", no_such_file)
    assert processor_name() == expected


def test_a_gpu_is_named_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {1: "NVIDIA H200"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index])
    assert hardware_name(torch.device("cuda:1")) == "NVIDIA H200"
    assert hardware_name(torch.device("meta")) == "meta"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("model name : Intel\nflags : fpu avx512f amx_bf16 avx512_bf16\n", True),
        ("model name : AMD EPYC\nflags : fpu avx avx2 f16c\n", False),
        ("Features : fp asimd bf16 i8mm\n", True),
        ("", False),
    ],
)
def test_bf16_is_fast_where_the_processor_says_so(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: cpuinfo)
    assert has_fast_bf16(torch.device("cpu")) == expected


@pytest.mark.parametrize(
    ("precision", "is_fast", "expected"),
    [
        ("auto", True, "bf16"),
        ("auto", False, "fp32"),
        ("bf16", False, "bf16"),
        ("fp32", True, "fp32"),
    ],
)
def test_arithmetic_is_what_is_asked_for_or_what_the_device_is_fast_at(
    precision: str, is_fast: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _FAST.clear()
    monkeypatch.setattr("rl_infonce.device.has_fast_bf16", lambda _: is_fast)
    assert arithmetic(precision, torch.device("cpu")) == expected
    _FAST.clear()
