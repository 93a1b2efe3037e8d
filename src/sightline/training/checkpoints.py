"""Checkpoints: everything that a resumed training needs to continue exactly.

A checkpoint is a folder `checkpoints/step-00001200` with `model.safetensors`, `optimizer.safetensors` (with the
running average, if there is one), `progress.json` and `SHA256SUMS` (which `sha256sum -c` can check). It is written
under a temporary name, fsynced and renamed, so it is complete or absent; its checksums are verified before use.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from sightline.files import TEMPORARY, atomic_folder, checksum, make_folder, read_json, refuse_link, remove
from sightline.models.weights import load_parameters, load_weights, parameters_of

if TYPE_CHECKING:
    from sightline.training.averaging import RunningAverage

SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Progress:
    """The position of a training. Data order is a pure function of (seed, epoch), so two integers say where it is."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    layout: str = ""  # of these batches; another device may need another one
    tokens: int = 0  # target tokens trained on; of classifiers, taggers and masked words the input tokens
    flops: int = 0  # floating-point operations spent on them
    seconds: float = 0.0  # time spent training, over all processes
    best: float | None = None  # of the validation score that counts, lower is better
    best_step: int | None = None
    waited: int = 0  # validations since the best
    validated: int | None = None  # step of the last validation
    journal: int = 0  # bytes of metrics.jsonl that belong to the past
    recent: tuple[int, ...] = field(default_factory=tuple)  # steps of the newest scheduled checkpoints, for averaging
    skipped: int = 0  # steps without an update, because float16 gradients overflowed
    loss_scale: tuple[float, int] | None = None  # of float16, and the steps since it last changed
    unlogged: tuple[tuple[float, ...], ...] = ()  # loss, nll, gradient norm (and counts) of steps since the last record

    def after(self, **changes: Any) -> Progress:
        return replace(self, **changes)


def _of_kind(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors `name/kind` of a file, by name; the others are optimizer states."""
    return {name.removesuffix(f"/{kind}"): part for name, part in tensors.items() if name.endswith(f"/{kind}")}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep: int) -> None:
        self.run = run
        self.folder = run / "checkpoints"
        self.keep = keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first, complete or not."""
        matches = (re.fullmatch(r"step-(\d{8})", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: RunningAverage | None,
        progress: Progress,
        carried: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write a checkpoint, unless an identical one exists, then remove those no longer needed.

        `carried` is the state of a language model.
        """
        if self.whole(progress.step) and self.progress(progress.step).after(seconds=progress.seconds) == progress:
            return
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        tensors = {
            f"{names[id(parameter)]}/{key}": value.detach().cpu().contiguous()
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }
        tensors |= {f"{name}/carried": part.detach().cpu().contiguous() for name, part in (carried or {}).items()}
        if average is not None:
            tensors |= {f"{name}/average": weight.cpu() for name, weight in average.weights.items()}
        make_folder(self.folder)
        target = self.path(progress.step)
        try:
            with atomic_folder(target, replace=True) as folder:  # an existing one is damaged or older
                save_file(parameters_of(model), folder / "model.safetensors")
                save_file(tensors, folder / "optimizer.safetensors")
                (folder / "progress.json").write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
                lines = [f"{checksum(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
                (folder / SUMS).write_text("".join(lines), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"checkpoint {target} could not be written ({error}); earlier ones are kept. Make room, then "
                f"continue with --resume"
            ) from error
        self._prune(progress)

    def _prune(self, progress: Progress) -> None:
        refuse_link(self.folder)
        keep = {progress.best_step, *progress.recent, *self.steps()[-self.keep :]}
        for step in self.steps():
            if step not in keep:
                remove(self.path(step))

    def whole(self, step: int) -> bool:
        """True if the checksums of all files of a checkpoint match."""
        folder = self.path(step)
        try:
            lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
            sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
            needed = {"model.safetensors", "optimizer.safetensors", "progress.json"}
            return needed <= set(sums) and all(checksum(folder / name) == digest for name, digest in sums.items())
        except (OSError, ValueError):
            return False

    def newest(self) -> int | None:
        """The newest complete checkpoint; damaged ones are skipped with a warning."""
        steps = self.steps()
        while steps:
            step = steps.pop()
            if self.whole(step):
                return step
            instead = "using the one before it" if steps else "and there is none before it"
            warnings.warn(
                f"checkpoint {self.path(step)} is damaged (its checksum does not match); {instead}", stacklevel=2
            )
        return None

    def usable(self, step: int) -> bool:
        """True if a checkpoint is complete; else warn that the finished model does without it."""
        if self.whole(step):
            return True
        warnings.warn(
            f"checkpoint {self.path(step)} is damaged or gone (its checksum does not match); "
            f"the finished model is made without it",
            stacklevel=2,
        )
        return False

    def sweep(self) -> None:
        """Remove temporary files of a training that was killed while writing; no other process writes to the folder."""
        refuse_link(self.folder)
        for left in [*self.run.glob(f".*{TEMPORARY}"), *self.folder.glob(f".*{TEMPORARY}")]:
            remove(left)

    def weights(self, step: int) -> dict[str, Tensor]:
        """The model of a checkpoint."""
        return load_weights(self.path(step) / "model.safetensors")

    def averages(self, step: int) -> dict[str, Tensor]:
        """The running averages of a checkpoint, by parameter name; empty without any."""
        return _of_kind("average", load_weights(self.path(step) / "optimizer.safetensors"))

    def carried(self, step: int, device: torch.device) -> dict[str, Tensor]:
        """The carried state of a checkpoint, by name; empty without any."""
        carried = _of_kind("carried", load_weights(self.path(step) / "optimizer.safetensors"))
        return {name: part.to(device) for name, part in carried.items()}

    def restore(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, average: RunningAverage | None
    ) -> Progress:
        """Restore model, optimizer and average."""
        load_parameters(model, self.weights(step))
        tensors = load_weights(self.path(step) / "optimizer.safetensors")
        parameters = dict(model.named_parameters())
        for name, tensor in tensors.items():
            owner, key = name.rsplit("/", 1)
            if key not in ("average", "carried"):  # the fused kernel expects the step count on the device too
                optimizer.state[parameters[owner]][key] = tensor.to(parameters[owner].device).clone()
        if average is not None:
            average.load(_of_kind("average", tensors))
        return self.progress(step)

    def progress(self, step: int) -> Progress:
        """The position of the training at that step."""
        values = read_json(self.path(step) / "progress.json")
        unlogged = tuple(tuple(row) for row in values.get("unlogged", ()))
        scale = values.get("loss_scale")
        tuples = {"recent": tuple(values["recent"]), "unlogged": unlogged, "loss_scale": scale and tuple(scale)}
        return Progress(**{**values, **tuples})
