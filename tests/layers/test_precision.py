"""`precision: auto`: the fastest precision that the hardware supports, by capability."""

from __future__ import annotations

import pytest
import torch

from sightline.layers.devices import autocast, best_precision, precision_note, resolve_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("has", "best"), [(True, "bf16"), (False, "float32")])
def test_a_cpu_takes_bfloat16_where_it_multiplies_it(has: bool, best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.layers.devices.cpu_multiplies_bfloat16", lambda: has)
    assert best_precision(CPU)[0] == best == resolve_precision("auto", CPU) == resolve_precision("bf16", CPU)
    assert resolve_precision("fp16", CPU) == "fp16" and resolve_precision("float32", CPU) == "float32"


@pytest.mark.parametrize(
    ("capability", "best"),
    [((9, 0), "bf16"), ((8, 9), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "float32")],
)
def test_auto_precision_follows_the_compute_capability(
    capability: tuple[int, int], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    result, reason = best_precision(CUDA)
    assert result == best == resolve_precision("auto", CUDA)
    assert reason.startswith(f"compute capability {capability[0]}.{capability[1]}")
    assert resolve_precision("bf16", CUDA) == "bf16"  # asked for by name it is used, even where it is emulated
    slow = precision_note("bf16", CUDA)
    if best == "bf16":
        assert slow is None
    else:
        assert slow == f"training.precision: bf16 is slow on cuda: {reason}; precision: auto takes {best} here"


def test_other_devices_take_float32() -> None:
    assert best_precision(torch.device("mps")) == ("float32", "mixed precision on mps is untested")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_taken_in_the_precision_of_that_name(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.layers.devices.cpu_multiplies_bfloat16", lambda: True)
    one = torch.ones(2, 2)
    with autocast(name, CPU):
        assert (one @ one).dtype == dtype
    with autocast("float32", CPU):
        assert (one @ one).dtype == torch.float32


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision 'half' is not known; use auto, float32, bf16 or fp16"):
        resolve_precision("half", CPU)
