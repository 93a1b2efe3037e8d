"""`sightline doctor`: versions, devices, threads, and what is missing for which feature."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sightline.data.corpora.catalogue import cache_folder
from sightline.registry import version

_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "missing": "[yellow]○[/]", "broken": "[red]✗[/]"}


def doctor() -> None:
    """Check versions, devices and folders, and what is missing."""
    import typer

    findings = report()
    if sys.stdout.isatty():
        from sightline.terminal import console

        console().print(_table(findings))
    else:
        for finding in findings:
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            print(f"{finding.group}\t{finding.state}\t{finding.name}\t{finding.value}{remedy}")
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(code=1)


def _table(findings: list[Finding]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    group = ""
    for finding in findings:
        if finding.group != group:
            if group:
                table.add_section()
            group = finding.group
        remedy = f"\n[dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(_MARKS[finding.state], f"[bold]{escape(finding.name)}[/]", escape(finding.value) + remedy)
    return table


State = Literal["ok", "note", "missing", "broken"]
_OLDEST_TORCH, _NEWEST_TORCH = (2, 11), (2, 13)  # tested; newer ones are allowed
_PYTHONS = ((3, 11), (3, 12))  # tested; newer ones are allowed
_REQUIRED = (
    "numpy", "pydantic", "PyYAML", "pyarrow", "safetensors", "tokenizers", "sacrebleu", "jiwer", "rouge-score",
    "typer", "rich", "babel", "platformdirs", "pooch", "requests", "latex2mathml", "pillow", "filelock",
)  # fmt: skip
_OPTIONAL = (  # module, what it serves, how to get it
    ("matplotlib", "pictures", "pip install 'sightline[viz]'"),
    ("mido", "MIDI files (predict --midi)", "pip install 'sightline[viz]'"),
    ("tensorboard", "training.tensorboard: true", "pip install 'sightline[tensorboard]'"),
    ("ctranslate2", "the decoding benchmark", "pip install 'sightline[bench]'"),
    ("transformers", "the benchmarks", "pip install 'sightline[bench]'"),
)
_SCRIPTS = (
    ("Chinese and Japanese", "日本語", "fonts-noto-cjk"),
    ("Arabic", "عربي", "fonts-noto-core"),
    ("Hindi", "हिन्दी", "fonts-noto-core"),
    ("emoji", "🐕🎉", "fonts-symbola"),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report. `broken`: Sightline does not work; `missing`: the feature named in `remedy` does not."""

    group: str
    name: str
    value: str
    state: State = "ok"
    remedy: str = ""


def report() -> list[Finding]:
    """Look at everything, in the order a reader wants it."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("software", _software),
        ("hardware", _hardware),
        ("torch", _torch),
        ("folders", _folders),
        ("features", _features),
    )
    return [finding for group, check in checks for finding in _guarded(group, check)]


def _guarded(group: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:
        yield Finding(
            group, "check", f"{type(error).__name__}: {error}", "note", "this check itself failed; please report it"
        )


def _software() -> Iterator[Finding]:
    yield Finding("software", "Sightline", version())
    python = platform.python_version()
    if sys.version_info[:2] in _PYTHONS:
        yield Finding("software", "Python", f"{python} ({sys.executable})")
    else:
        old = sys.version_info[:2] < _PYTHONS[0]
        remedy = "Sightline needs Python 3.11 or newer" if old else "newer than what was tested (3.11 and 3.12)"
        yield Finding("software", "Python", python, "broken" if old else "note", remedy)
    yield Finding("software", "platform", platform.platform())
    for name in _REQUIRED:
        try:
            yield Finding("software", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("software", name, "not installed", "broken", f"pip install {name}")


def _hardware() -> Iterator[Finding]:
    yield Finding("hardware", "CPU", f"{_cpu_model()}, {os.cpu_count()} cores, {_usable_cores():g} usable")
    total, limit = _memory()
    bounded = limit is not None and limit < total
    size = _size(total) if total else "unknown"
    yield Finding(
        "hardware", "memory", size + (f", of which this group may use {_size(limit or 0)}" if bounded else "")
    )


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", "torch", "not installed", "broken", "pip install 'torch>=2.11'")
        return
    try:
        import torch
    except Exception as error:  # a broken installation raises anything from ImportError to OSError
        why = f"does not import: {type(error).__name__}: {error}"
        yield Finding("torch", "torch", why, "broken", "reinstall it: pip install --force-reinstall torch")
        return
    yield _torch_version(torch.__version__)
    yield from _kernels(torch)
    yield from _devices(torch)
    yield from _precisions(torch)


def _kernels(torch: Any) -> Iterator[Finding]:
    threads = f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between"
    yield Finding("torch", "threads", threads)
    onednn, mkl = torch.backends.mkldnn.is_available(), torch.backends.mkl.is_available()
    capability = torch.backends.cpu.get_cpu_capability()
    from sightline.layers.kernels import cpu_multiplies_bfloat16

    bf16 = cpu_multiplies_bfloat16()
    told = f"{capability}, oneDNN {_yes(onednn)}, MKL {_yes(mkl)}, products of bfloat16 {_yes(bf16)}"
    yield Finding("torch", "CPU kernels", told)


def _torch_version(text: str) -> Finding:
    numbers = tuple(int(part) for part in text.split("+")[0].split(".")[:2] if part.isdecimal())
    if _OLDEST_TORCH <= numbers <= _NEWEST_TORCH:
        return Finding("torch", "torch", text)
    state: State = "broken" if numbers < _OLDEST_TORCH else "note"
    remedy = "pip install 'torch>=2.11'" if state == "broken" else "newer than what was tested (2.11 to 2.13)"
    return Finding("torch", "torch", text, state, remedy)


def _devices(torch: Any) -> Iterator[Finding]:
    if not torch.cuda.is_available():
        built = (
            f"PyTorch was built for CUDA {torch.version.cuda}"
            if torch.version.cuda
            else "PyTorch was built without CUDA"
        )
        yield Finding("torch", "CUDA", f"no device ({built})", "note", "training runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        half = torch.cuda.is_bf16_supported() if index == torch.cuda.current_device() else device.major >= 8
        value = f"{device.name}, {_size(device.total_memory)}, compute {device.major}.{device.minor}, bf16 {_yes(half)}"
        yield Finding("torch", f"cuda:{index}", value)
    yield _triton()


def _precisions(torch: Any) -> Iterator[Finding]:
    from sightline.layers.devices import best_precision

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
        yield Finding("torch", "MPS", "available", "note", "untested, so not chosen by default: training.device=mps")
    for name in devices:
        best, reason = best_precision(torch.device(name))
        yield Finding("torch", f"precision: auto on {name}", f"{best}: {reason}")


def _triton() -> Finding:
    from sightline.layers.kernels import TRITON

    if TRITON:
        return Finding("torch", "Triton", "our kernels for CUDA run")
    why = "our kernels for CUDA do not run, PyTorch's do, more slowly: Triton, a C compiler or Python.h is missing"
    return Finding("torch", "Triton", why, "missing", "apt install gcc python3-dev, pip install triton")


def _folders() -> Iterator[Finding]:
    corpora = os.environ.get("SIGHTLINE_CORPORA")
    if not corpora:
        yield Finding("folders", "corpora", "SIGHTLINE_CORPORA is not set", "note",
                      "set it to your corpus folder, or write data.folder in recipes")  # fmt: skip
    elif not Path(corpora).is_dir():
        yield Finding("folders", "corpora", f"{corpora} is not a folder", "missing", "SIGHTLINE_CORPORA must name one")
    else:
        yield Finding("folders", "corpora", corpora)
    cache = cache_folder()
    free = shutil.disk_usage(_existing(cache)).free
    low = free < 2 * 2**30
    remedy = "little space left for prepared corpora and checkpoints" if low else ""
    value = f"{cache} ({_size(_used(cache))} used, {_size(free)} free)"
    yield Finding("folders", "cache", value, "note" if low else "ok", remedy)


def _features() -> Iterator[Finding]:
    for module, feature, remedy in _OPTIONAL:
        if importlib.util.find_spec(module) is None:
            yield Finding("features", module, "not installed", "missing", f"{feature}: {remedy}")
        else:
            yield Finding("features", module, f"{metadata.version(module)} → {feature}")
    compiler = next(
        (found for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and (found := shutil.which(name))),
        None,
    )
    if compiler:
        yield Finding("features", "C++ compiler", f"{compiler} → torch.compile on the CPU")
    else:
        yield Finding("features", "C++ compiler", "not found", "missing", "torch.compile on the CPU: apt install g++")
    if importlib.util.find_spec("matplotlib") is not None:
        yield from _fonts()


def _fonts() -> Iterator[Finding]:
    from sightline.plots.figures import font_for

    for script, sample, package in _SCRIPTS:
        if font := font_for(sample):
            yield Finding("features", f"{script} font", f"{font} → labels in pictures")
        else:
            remedy = f"{script} labels in pictures: apt install {package}"
            yield Finding("features", f"{script} font", "not found", "missing", remedy)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cores() -> float:
    """Cores this process may run on, bounded by what its control group is given (containers)."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else min(cores, round(int(quota) / int(period), 2))
    except (OSError, ValueError):
        return cores


def _memory() -> tuple[int, int | None]:
    """Memory of the machine, and the most this control group may use (None: no bound known)."""
    if not hasattr(os, "sysconf"):  # Windows
        return 0, None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return total, None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
