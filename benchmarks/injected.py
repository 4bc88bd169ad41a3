"""What check-ckpt finds of faults that were put in: `python -m benchmarks.injected [--into docs/check-ckpt.md]`.

Small networks are trained on made-up data and saved every so many steps, as they are and in bfloat16. Each fault is
made in the newest checkpoint, in memory, and saved anew: all checksums are right, as those of a fault that was there
before the save. What stands under "alone" was audited by itself, what stands under "in a series" as the last of six.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from remoterun.payloads.check_ckpt import run

_BEGIN, _END = "<!-- begin: written by benchmarks/injected.py -->", "<!-- end -->"
_SAVES, _APART = 6, 100
_LONG_AGO = 1_700_000_000
# What was changed a moment ago is not remembered from audit to audit.
_SETTLED_S = 4.0
_BITS = {torch.float32: (torch.int32, 32), torch.bfloat16: (torch.int16, 16)}
# Counted from the sign, which is 0; the exponent has 8 bits in both formats, the highest first.
_GROUPS_OF_BITS = {
    "the exponent's highest bit": (1,),
    "one of the exponent's next four bits": (2, 3, 4, 5),
    "one of the exponent's last three bits": (6, 7, 8),
    "the sign": (0,),
    "the fraction's highest bit": (9,),
}
_WORDS, _LENGTH = 64, 24
_FEWEST = 1024

_State = dict[str, Any]
_Break = Callable[[_State, list[_State], torch.Generator], None]


# --- networks that were trained ---------------------------------------------------------------------------------------


def _mlp() -> nn.Module:
    inner = [layer for before in (64, 256, 256) for layer in (nn.Linear(before, 256), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(256, 10))


def _cnn() -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 64), *block(64, 64), *block(64, 64), nn.Flatten(), nn.Linear(256, 10))


class _Transformer(nn.Module):
    """Be a small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, 96), nn.Embedding(_LENGTH, 96)
        layer = nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, _WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        hidden = self.words(words) + self.places.weight[: words.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.layers(hidden, mask, is_causal=True)))
        return logits


def _labelled(shape: tuple[int, ...]) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    """Make inputs whose class a fixed random projection tells."""
    teacher = torch.randn(math.prod(shape), 10, generator=torch.Generator().manual_seed(99))

    def batch(chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(64, *shape, generator=chance)
        return inputs, (inputs.flatten(1) @ teacher).argmax(1)

    return batch


def _text(chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Make text in which each word follows from the one before it, nearly always."""
    follows = torch.randperm(_WORDS, generator=torch.Generator().manual_seed(99))
    words = [torch.randint(0, _WORDS, (16,), generator=chance)]
    for _ in range(_LENGTH):
        other = torch.randint(0, _WORDS, (16,), generator=chance)
        words.append(torch.where(torch.rand(16, generator=chance) < 0.1, other, follows[words[-1]]))
    text = torch.stack(words, 1)
    return text[:, :-1], text[:, 1:].flatten()


_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]]] = {
    "mlp": (_mlp, _labelled((64,))),
    "cnn": (_cnn, _labelled((1, 16, 16))),
    "transformer": (_Transformer, _text),
}


def _train(name: str, seed: int = 0) -> list[_State]:
    """Train one network with AdamW and a schedule, and return what a script would save, time after time."""
    torch.manual_seed(seed)
    make, batch = _NETWORKS[name]
    model, chance = make(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * _SAVES * _APART)
    saved = []
    for step in range(1, _SAVES * _APART + 2):
        inputs, wanted = batch(chance)
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(inputs).flatten(0, -2), wanted)
        loss.backward()
        optimizer.step()
        schedule.step()
        # The one after the last is for what is torn between two steps.
        if step % _APART == 0 or step > _SAVES * _APART:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            saved.append(deepcopy({**state, "scheduler": schedule.state_dict(), "epoch": 0}))
    return saved


def _rounded(state: _State, dtype: torch.dtype) -> _State:
    """Return what would have been saved in another format: weights and moments, but not counters."""
    moments = {
        number: {key: value if key == "step" else value.to(dtype) for key, value in kept.items()}
        for number, kept in state["optimizer"]["state"].items()
    }
    weights = {name: each.to(dtype) if each.is_floating_point() else each for name, each in state["model"].items()}
    return {**state, "model": weights, "optimizer": {**state["optimizer"], "state": moments}}


# --- faults -----------------------------------------------------------------------------------------------------------


def _matrices(state: _State, part: str) -> list[torch.Tensor]:
    """Return what is large enough to be a target: weights, or moments of one kind."""
    if part == "weights":
        tensors = [each for name, each in state["model"].items() if name.endswith("weight")]
    else:
        tensors = [kept[part] for kept in state["optimizer"]["state"].values()]
    return [each for each in tensors if each.numel() >= _FEWEST and each.dim() > 1]


def _pick(many: list[Any], chance: torch.Generator) -> Any:
    return many[int(torch.randint(0, len(many), (), generator=chance))]


def _flip(part: str, bit: int) -> _Break:
    """Flip a bit of one element."""

    def apply(state: _State, _: list[_State], chance: torch.Generator) -> None:
        tensor = _pick(_matrices(state, part), chance)
        whole, width = _BITS[tensor.dtype]
        view, at = tensor.view(whole).view(-1), int(torch.randint(0, tensor.numel(), (), generator=chance))
        mask = 1 << (width - 1 - bit)
        view[at] ^= mask - (1 << width) if mask >> (width - 1) else mask

    return apply


def _block(part: str, size: int, how: str) -> _Break:
    """Put zeros, the bytes just before it, or bytes from another tensor in the place of an aligned block."""

    def apply(state: _State, _: list[_State], chance: torch.Generator) -> None:
        many = [each for each in _matrices(state, part) if each.numel() * each.element_size() >= 2 * size]
        if not many:
            raise LookupError
        tensor, length = _pick(many, chance), size // many[0].element_size()
        flat = tensor.view(-1)
        at = int(torch.randint(1, len(flat) // length, (), generator=chance)) * length
        source = _pick(many, chance).view(-1)
        there = int(torch.randint(0, len(source) // length, (), generator=chance)) * length
        if source.data_ptr() == flat.data_ptr() and there == at:
            there = 0
        news = {"zeroed": torch.zeros(length), "repeated": flat[at - length : at], "elsewhere": source[there:][:length]}
        flat[at : at + length] = news[how].clone()

    return apply


def _swap(part: str) -> _Break:
    def apply(state: _State, _: list[_State], chance: torch.Generator) -> None:
        shapes: dict[torch.Size, list[torch.Tensor]] = {}
        for each in _matrices(state, part):
            shapes.setdefault(each.shape, []).append(each)
        one, *others = _pick([each for each in shapes.values() if len(each) > 1], chance)
        kept, other = one.clone(), _pick(others, chance)
        one.copy_(other)
        other.copy_(kept)

    return apply


def _shuffle(state: _State, _: list[_State], chance: torch.Generator) -> None:
    tensor = _pick(_matrices(state, "weights"), chance)
    tensor.copy_(tensor[torch.randperm(len(tensor), generator=chance)].clone())


def _old(part: str, back: int) -> _Break:
    """Put one tensor of an older checkpoint in the place of the newest."""

    def apply(state: _State, saved: list[_State], chance: torch.Generator) -> None:
        new, old = (_matrices(each, part) for each in (state, saved[_SAVES - 1 - back]))
        number = _pick(list(range(len(new))), chance)
        new[number].copy_(old[number])

    return apply


def _ahead(*, moments: bool) -> _Break:
    """Take the weights of some parameters from one step later, and their moments as where that runs during the save."""

    def apply(state: _State, saved: list[_State], chance: torch.Generator) -> None:
        names = [name for name in state["model"] if "running" not in name and "num" not in name]
        share = int(torch.randint(1, len(names), (), generator=chance))
        for name in names[share:]:
            state["model"][name].copy_(saved[-1]["model"][name])
        for key, kept in list(state["optimizer"]["state"].items())[share:] if moments else ():
            kept.update(saved[-1]["optimizer"]["state"][key])

    return apply


def _part_of(part: str) -> _Break:
    """Take all weights, all moments, or the weights of the second half from the checkpoint before."""

    def apply(state: _State, saved: list[_State], _: torch.Generator) -> None:
        if part == "optimizer":
            state["optimizer"] = deepcopy(saved[_SAVES - 2]["optimizer"])
            return
        names = [*state["model"]]
        for name in names[len(names) // 2 if part == "half" else 0 :]:
            state["model"][name].copy_(saved[_SAVES - 2]["model"][name])

    return apply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    what: str
    where: str
    apply: _Break
    times: int


def _faults() -> Iterator[_Fault]:
    parts = {"weights": "weights", "exp_avg": "first moments", "exp_avg_sq": "second moments"}
    for part, where in parts.items():
        for what, bits in _GROUPS_OF_BITS.items():
            for bit in bits:
                yield _Fault(what=f"one element: {what} flipped", where=where, apply=_flip(part, bit), times=2)
        for size, name in ((512, "512 bytes"), (4096, "4 KiB"), (65536, "64 KiB")):
            for how in ("zeroed", "repeated", "elsewhere"):
                words = {"zeroed": "zeroed", "repeated": "that repeat those before", "elsewhere": "from elsewhere"}[how]
                yield _Fault(what=f"{name} {words}", where=where, apply=_block(part, size, how), times=2)
        yield _Fault(what="two tensors of one shape swapped", where=where, apply=_swap(part), times=3)
        for back, name in ((1, "the checkpoint before"), (2, "the one before that")):
            yield _Fault(what=f"one tensor of {name}", where=where, apply=_old(part, back), times=3)
    yield _Fault(what="rows of one tensor shuffled", where="weights", apply=_shuffle, times=3)
    yield _Fault(what="half of all tensors of the checkpoint before", where="weights", apply=_part_of("half"), times=1)
    yield _Fault(what="all of the checkpoint before", where="weights", apply=_part_of("weights"), times=1)
    yield _Fault(what="all of the checkpoint before", where="optimizer", apply=_part_of("optimizer"), times=1)
    yield _Fault(what="some parameters one step ahead", where="both", apply=_ahead(moments=True), times=3)
    yield _Fault(what="some parameters one step ahead", where="weights alone", apply=_ahead(moments=False), times=3)


# --- audits -----------------------------------------------------------------------------------------------------------


class _Heard:
    """Take what a payload says, and keep the records."""

    def __init__(self, root: Path, *, cache: bool) -> None:
        self.params = {"root": str(root), "depth": 2, "engine": "auto", "cache": cache}
        self.records: list[dict[str, Any]] = []

    def emit(self, record: dict[str, Any]) -> None:
        """Take a record."""
        self.records.append(record)

    def finding(self, *_: object, **__: object) -> None:
        """Take a finding, which the records name, too."""

    def progress(self, *_: object) -> None:
        """Take a step."""

    def log(self, text: str) -> None:
        """Show what is for people."""
        print(text, file=sys.stderr)

    def nothing(self, message: str, hint: str | None = None) -> None:
        """End an audit that found no checkpoint."""
        raise RuntimeError(message)

    fail = nothing


def _audit(root: Path, name: str, *, cache: bool = False) -> tuple[str, list[str]]:
    """Return the verdict of one checkpoint, and the rules that it broke."""
    heard = _Heard(root, cache=cache)
    run(cast("Any", heard))
    (record,) = [each for each in heard.records if each.get("name") == name]
    return record["verdict"], record["findings"]


def _save(state: _State, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    time_of = _LONG_AGO + 600 * state["step"]
    os.utime(path, (time_of, time_of))


@dataclass(slots=True)
class _Score:
    tries: int = 0
    found: list[int] = field(default_factory=lambda: [0, 0])
    rules: set[str] = field(default_factory=set)


class _Series:
    """Hold one training, its six checkpoints, and what an audit before the last one came has left in the cache."""

    def __init__(self, saved: list[_State], folder: Path) -> None:
        self._saved = saved
        self._whole, self._alone = folder / "whole", folder / "alone"
        self._last = f"step_{_SAVES * _APART}.pt"
        for state in self._saved[:_SAVES]:
            _save(state, self._whole / f"step_{state['step']}.pt")

    def remember(self) -> None:
        """Audit all, so that what comes last is held against what is remembered.

        Raises:
            RuntimeError: when anything is found in what is sound.
        """
        heard = _Heard(self._whole, cache=True)
        run(cast("Any", heard))
        verdicts = {each["name"]: each["findings"] for each in heard.records if each.get("verdict", "ok") != "ok"}
        if verdicts:
            raise RuntimeError(f"false alarm: {verdicts}")

    def judge(self, fault: _Fault, chance: torch.Generator, score: _Score) -> None:
        """Make one fault, and note whether it is found."""
        state = deepcopy(self._saved[_SAVES - 1])
        fault.apply(state, self._saved, chance)
        score.tries += 1
        for index, folder in enumerate((self._alone, self._whole)):
            _save(state, folder / self._last)
            verdict, rules = _audit(folder, self._last, cache=folder == self._whole)
            if verdict != "ok":
                score.found[index] += 1
                score.rules.update(rules)


@contextmanager
def _place() -> Iterator[Path]:
    """Lend a folder, with a home of its own in it, which the cache is kept in."""
    before = os.environ.get("HOME", "")
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        os.environ["HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ["HOME"] = before


def measure(only: str = "") -> dict[tuple[str, str], _Score]:
    """Make every fault in every network, as often as it says, and count what is found."""
    faults = [each for each in _faults() if re.search(only, f"{each.where}: {each.what}")]
    scores = {(each.where, each.what): _Score() for each in faults}
    with _place() as folder:
        series = []
        for name in _NETWORKS:
            trained = _train(name)
            for dtype in _BITS:
                saved = [_rounded(state, dtype) for state in trained]
                series.append(_Series(saved, folder / f"{name}-{dtype}"))
        time.sleep(_SETTLED_S)
        for number, each in enumerate(series):
            each.remember()
            chance = torch.Generator().manual_seed(number)
            for fault in faults:
                for _ in range(fault.times):
                    try:
                        each.judge(fault, chance, scores[fault.where, fault.what])
                    except LookupError:
                        break
    return scores


def table(scores: dict[tuple[str, str], _Score]) -> list[str]:
    """Return the lines of the page."""
    lines = [
        f"Run on {datetime.datetime.now(datetime.UTC).date()}, torch {torch.__version__.partition('+')[0]}.",
        "",
        "| where | fault | found alone | found in a series | by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (where, what), score in scores.items():
        cells = [f"{found} of {score.tries}" for found in score.found]
        lines.append(f"| {where} | {what} | {cells[0]} | {cells[1]} | {' '.join(sorted(score.rules - _SAID_ALWAYS))} |")
    return lines


_SAID_ALWAYS = {"CK028", "CK054", "CK120"}


def main() -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, metavar="PAGE")
    parser.add_argument("--only", default="", metavar="PATTERN", help="faults to try, as a regular expression")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = table(measure(options.only))
    if options.into is None:
        print("\n".join(lines))
        return
    before, begin, rest = options.into.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{options.into} has no place for it: {_BEGIN} and {_END}")
    options.into.write_text(before + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + after, "utf-8")


if __name__ == "__main__":
    main()
