"""`sightline doctor`: versions, devices, threads, and what is missing for which feature."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.data.corpora.catalogue import cache_folder
from sightline.registry import version

if TYPE_CHECKING:
    from rich.table import Table

State = Literal["ok", "note", "missing", "broken"]
_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "missing": "[yellow]○[/]", "broken": "[red]✗[/]"}
_OLDEST_TORCH, _NEWEST_TORCH = (2, 11), (2, 13)  # tested; newer ones are allowed
_PYTHONS = ((3, 11), (3, 12))  # tested; newer ones are allowed
_REQUIRED = (
    "numpy", "pydantic", "PyYAML", "pyarrow", "safetensors", "tokenizers", "sacrebleu", "jiwer", "rouge-score",
    "typer", "rich", "babel", "platformdirs", "pooch", "requests", "latex2mathml", "pillow", "filelock",
)  # fmt: skip
_OPTIONAL = (  # module, feature, installation
    ("matplotlib", "pictures", "pip install 'sightline[viz]'"),
    ("mido", "MIDI files (predict --midi)", "pip install 'sightline[viz]'"),
    ("tensorboard", "training.tensorboard: true", "pip install 'sightline[tensorboard]'"),
    ("ctranslate2", "the decoding benchmark", "pip install 'sightline[bench]'"),
    ("transformers", "the benchmarks", "pip install 'sightline[bench]'"),
)
_SCRIPTS = (  # script, sample, Debian package of a font
    ("Chinese and Japanese", "日本語", "fonts-noto-cjk"),
    ("Arabic", "عربي", "fonts-noto-core"),
    ("Hindi", "हिन्दी", "fonts-noto-core"),
    ("emoji", "🐕🎉", "fonts-symbola"),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report. `broken`: Sightline does not work; `missing`: the feature named in `remedy` does not."""

    name: str
    value: str
    state: State = "ok"
    remedy: str = ""
    group: str = ""


def doctor() -> None:
    """Check versions, devices and folders, and list what is missing.

    Examples:
      sightline doctor
    """
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
    group = findings[0].group
    for finding in findings:
        if finding.group != group:
            table.add_section()
            group = finding.group
        remedy = f"\n[dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(_MARKS[finding.state], f"[bold]{escape(finding.name)}[/]", escape(finding.value) + remedy)
    return table


def report() -> list[Finding]:
    """Run all checks. A check that fails is reported as a finding."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "software": _software,
        "hardware": _hardware,
        "torch": _torch,
        "folders": _folders,
        "features": _features,
    }
    findings: list[Finding] = []
    for group, check in checks.items():
        try:
            findings += [replace(finding, group=group) for finding in check()]
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
            findings.append(Finding("check", value, "note", "this check itself failed; please report it", group))
    return findings


# --- checks -------------------------------------------------------------------------------------------------------


def _software() -> Iterator[Finding]:
    yield Finding("Sightline", version())
    python = platform.python_version()
    if sys.version_info[:2] in _PYTHONS:
        yield Finding("Python", f"{python} ({sys.executable})")
    elif sys.version_info[:2] < _PYTHONS[0]:
        yield Finding("Python", python, "broken", "Sightline needs Python 3.11 or newer")
    else:
        yield Finding("Python", python, "note", "newer than the tested versions (3.11 and 3.12)")
    yield Finding("platform", platform.platform())
    for name in _REQUIRED:
        try:
            yield Finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "broken", f"pip install {name}")


def _hardware() -> Iterator[Finding]:
    yield Finding("CPU", f"{_cpu_model()}, {os.cpu_count()} cores, {_usable_cores():g} usable")
    total, limit = _memory()
    limited = f", of which this control group may use {_size(limit)}" if limit is not None and limit < total else ""
    yield Finding("memory", (_size(total) if total else "unknown") + limited)


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", "not installed", "broken", "pip install 'torch>=2.11'")
        return
    try:
        import torch
    except Exception as error:  # a broken installation raises anything from ImportError to OSError
        why = f"does not import: {type(error).__name__}: {error}"
        yield Finding("torch", why, "broken", "reinstall it: pip install --force-reinstall torch")
        return
    from sightline.layers.kernels import cpu_multiplies_bfloat16

    yield _torch_version(torch.__version__)
    threads = f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between operations"
    yield Finding("threads", threads)
    features = {
        "oneDNN": torch.backends.mkldnn.is_available(),
        "MKL": torch.backends.mkl.is_available(),
        "bfloat16 products": cpu_multiplies_bfloat16(),
    }
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("CPU kernels", ", ".join([capability, *(f"{name} {_yes(has)}" for name, has in features.items())]))
    yield from _devices(torch)
    yield from _precisions(torch)


def _torch_version(text: str) -> Finding:
    numbers = tuple(int(part) for part in text.split("+")[0].split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST_TORCH:
        return Finding("torch", text, "broken", "pip install 'torch>=2.11'")
    if numbers > _NEWEST_TORCH:
        return Finding("torch", text, "note", "newer than the tested versions (2.11 to 2.13)")
    return Finding("torch", text)


def _devices(torch: Any) -> Iterator[Finding]:
    if not torch.cuda.is_available():
        cuda = torch.version.cuda
        built = f"PyTorch was built for CUDA {cuda}" if cuda else "PyTorch was built without CUDA"
        yield Finding("CUDA", f"no device ({built})", "note", "training runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        bf16 = torch.cuda.is_bf16_supported() if index == torch.cuda.current_device() else device.major >= 8
        value = f"{device.name}, {_size(device.total_memory)}, compute {device.major}.{device.minor}, bf16 {_yes(bf16)}"
        yield Finding(f"cuda:{index}", value)
    yield _triton()


def _triton() -> Finding:
    from sightline.layers.kernels import TRITON

    if TRITON:
        return Finding("Triton", "Sightline's CUDA kernels are used")
    why = "Sightline's CUDA kernels are replaced by slower ones of PyTorch: Triton, a C compiler or Python.h is missing"
    return Finding("Triton", why, "missing", "apt install gcc python3-dev, pip install triton")


def _precisions(torch: Any) -> Iterator[Finding]:
    from sightline.layers.devices import best_precision

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
        yield Finding("MPS", "available", "note", "untested, so not chosen by default: training.device=mps")
    for name in devices:
        best, reason = best_precision(torch.device(name))
        yield Finding(f"precision: auto on {name}", f"{best}: {reason}")


def _folders() -> Iterator[Finding]:
    corpora = os.environ.get("SIGHTLINE_CORPORA")
    if not corpora:
        remedy = "set it to your corpus folder, or write data.folder in recipes"
        yield Finding("corpora", "SIGHTLINE_CORPORA is not set", "note", remedy)
    elif not Path(corpora).is_dir():
        yield Finding("corpora", f"{corpora} is not a folder", "missing", "set SIGHTLINE_CORPORA to a folder")
    else:
        yield Finding("corpora", corpora)
    cache = cache_folder()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    used = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0
    value = f"{cache} ({_size(used)} used, {_size(free)} free)"
    if free < 2 * 2**30:
        yield Finding("cache", value, "note", "little space left for prepared corpora and checkpoints")
    else:
        yield Finding("cache", value)


def _features() -> Iterator[Finding]:
    for module, feature, remedy in _OPTIONAL:
        if importlib.util.find_spec(module) is None:
            yield Finding(module, "not installed", "missing", f"{feature}: {remedy}")
        else:
            yield Finding(module, f"{metadata.version(module)} → {feature}")
    names = filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))
    if compiler := next(filter(None, map(shutil.which, names)), None):
        yield Finding("C++ compiler", f"{compiler} → torch.compile on the CPU")
    else:
        yield Finding("C++ compiler", "not found", "missing", "torch.compile on the CPU: apt install g++")
    if importlib.util.find_spec("matplotlib") is not None:
        yield from _fonts()


def _fonts() -> Iterator[Finding]:
    from sightline.plots.figures import font_for

    for script, sample, package in _SCRIPTS:
        if font := font_for(sample):
            yield Finding(f"{script} font", f"{font} → labels in pictures")
        else:
            remedy = f"{script} labels in pictures: apt install {package}"
            yield Finding(f"{script} font", "not found", "missing", remedy)


# --- the machine --------------------------------------------------------------------------------------------------


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cores() -> float:
    """Cores this process may run on, limited by its control group (containers)."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else min(cores, round(int(quota) / int(period), 2))
    except (OSError, ValueError):
        return cores


def _memory() -> tuple[int, int | None]:
    """Memory of the machine (0: unknown), and the limit of this control group (None: none known)."""
    if not hasattr(os, "sysconf"):  # Windows
        return 0, None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return total, None


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
