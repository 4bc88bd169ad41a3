"""Training states that are unusual and sound: nothing is found in them that is worse than a remark."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Update = Callable[[dict[str, Any], torch.Tensor, torch.Tensor], None]

pytestmark = pytest.mark.torch

_WIDTH, _WORDS = 16, 40


class Network(nn.Module):
    """Have what real ones have: tied, frozen and unused weights, norms with and without buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        self.inner = nn.Linear(_WIDTH, _WIDTH)
        self.layer_norm = nn.LayerNorm(_WIDTH)
        self.batch_norm = nn.BatchNorm1d(_WIDTH)
        self.frozen = nn.Linear(_WIDTH, _WIDTH).requires_grad_(False)
        self.unused = nn.Linear(_WIDTH, 4)
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of a word."""
        hidden = self.frozen(self.words(words).mean(1))
        logits: torch.Tensor = self.head(self.batch_norm(self.layer_norm(torch.relu(self.inner(hidden)))))
        return logits


class HandMade(torch.optim.Optimizer):
    """Be an optimizer that torch does not have: `update` changes a parameter and what is kept of it."""

    def __init__(self, params: Any, update: Update, **options: Any) -> None:
        self._update = update
        super().__init__(params, {"lr": 1e-3, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update what has a gradient."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self._update(self.state[each], each, each.grad)


def _lion(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    mean = state.setdefault("exp_avg", torch.zeros_like(param))
    param.sub_((0.9 * mean + 0.1 * grad).sign(), alpha=1e-3)
    mean.lerp_(grad, 0.01)


def _shampoo(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    state["step"] = state.get("step", 0) + 1
    state.setdefault("momentum_buffer", torch.zeros_like(grad)).mul_(0.9).add_(grad)
    for number, size in enumerate(param.shape):
        flat = grad.transpose(0, number).reshape(size, -1)
        kept = state.setdefault(f"precond_{number}", 1e-4 * torch.eye(size)).add_(flat @ flat.t())
        values, vectors = torch.linalg.eigh(kept)
        state[f"inv_precond_{number}"] = (vectors * values.clamp_min(1e-6) ** -0.25) @ vectors.t()
    param.sub_(grad, alpha=1e-3)


def _soap(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    """Keep moments that stay zero in the first step, which only makes the bases they are kept in."""
    if "Q" not in state:
        zeros = [torch.zeros(size, size) for size in param.shape]
        state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param), GG=zeros, Q=None)
    if state["Q"] is not None:
        state["step"] += 1
        state["exp_avg"].lerp_(grad, 0.05)
        state["exp_avg_sq"].lerp_(grad**2, 0.05)
        param.sub_(grad, alpha=1e-3)
    for number, kept in enumerate(state["GG"]):
        flat = grad.transpose(0, number).reshape(len(kept), -1)
        kept.lerp_(flat @ flat.t(), 0.05)
    state["Q"] = [torch.linalg.qr(kept + 1e-12 * torch.eye(len(kept)))[0] for kept in state["GG"]]


def _eight_bits(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    state["step"] = state.get("step", 0) + 1
    for number in (1, 2):
        state[f"state{number}"] = torch.randint(0, 256, param.shape, dtype=torch.uint8)
        state[f"qmap{number}"] = torch.linspace(number - 2, 1, 256)
        state[f"absmax{number}"] = torch.rand(-(-param.numel() // 256))
    param.sub_(grad, alpha=1e-3)


def _schedule_free(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    state.setdefault("z", param.clone()).sub_(grad, alpha=1e-3)
    state.setdefault("exp_avg_sq", torch.zeros_like(param)).lerp_(grad**2, 0.001)
    param.lerp_(state["z"], 0.2)


def _novograd(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    """Keep one second moment of a whole tensor."""
    mean, square = state.setdefault("exp_avg", torch.zeros_like(param)), state.setdefault("exp_avg_sq", torch.zeros([]))
    square.mul_(0.98).add_(grad.square().sum(), alpha=0.02)
    param.sub_(mean.mul_(0.95).add_(grad / (square.sqrt() + 1e-8)), alpha=1e-3)


def _lamb(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    """Add gradients up in the first moment, and average only their squares."""
    mean, square = (state.setdefault(key, torch.zeros_like(param)) for key in ("exp_avg", "exp_avg_sq"))
    mean.mul_(0.9).add_(grad)
    square.mul_(0.999).addcmul_(grad, grad, value=1e-3)
    param.sub_(mean / (square.sqrt() + 1e-6), alpha=1e-3)


def _adan(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    keys = ("exp_avg", "exp_avg_sq", "exp_avg_diff")
    mean, square, change = (state.setdefault(key, torch.zeros_like(param)) for key in keys)
    before = state.get("neg_pre_grad", -grad)
    both = grad + 0.92 * (grad + before)
    mean.mul_(0.98).add_(grad, alpha=0.02)
    change.mul_(0.92).add_(grad + before, alpha=0.08)
    square.mul_(0.99).addcmul_(both, both, value=0.01)
    state["neg_pre_grad"] = -grad
    param.sub_(mean / (square.sqrt() + 1e-8), alpha=1e-3)


def _prodigy(state: dict[str, Any], param: torch.Tensor, grad: torch.Tensor) -> None:
    state.setdefault("p0", param.clone())
    state.setdefault("s", torch.zeros_like(param)).add_(grad, alpha=1e-6)
    state["step"] = state.get("step", 0) + 1
    param.sub_(grad, alpha=1e-3)


_HAND_MADE: dict[str, tuple[Update, dict[str, Any]]] = {
    "lion": (_lion, {"betas": (0.9, 0.99)}),
    "shampoo": (_shampoo, {"momentum": 0.9, "update_freq": 1}),
    "soap": (_soap, {"betas": (0.95, 0.95), "shampoo_beta": -1, "eps": 1e-8}),
    "eight bits": (_eight_bits, {"betas": (0.9, 0.999), "eps": 1e-8}),
    "schedule-free": (_schedule_free, {"k": 5, "weight_sum": 5.0, "lr_max": 1e-3, "train_mode": False, "r": 0.0}),
    "novograd": (_novograd, {"betas": (0.95, 0.98), "eps": 1e-8}),
    "lamb": (_lamb, {"betas": (0.9, 0.999), "eps": 1e-6, "grad_averaging": False}),
    "adan": (_adan, {"betas": (0.98, 0.92, 0.99), "eps": 1e-8}),
    "prodigy": (_prodigy, {"d": 1e-6, "growth_rate": math.inf, "beta3": None, "d_numerator": 0.0}),
}


def _train(network: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 5) -> None:
    for _ in range(steps):
        network.zero_grad()
        loss = nn.functional.cross_entropy(network(torch.randint(0, _WORDS, (8, 5))), torch.randint(0, _WORDS, (8,)))
        loss.backward()  # type: ignore[no-untyped-call]
        for each in optimizers:
            each.step()


def _state(network: nn.Module, *optimizers: torch.optim.Optimizer, **more: Any) -> dict[str, Any]:
    states = [each.state_dict() for each in optimizers]
    return {"model": network.state_dict(), "optimizer": states[0] if len(states) == 1 else states, **more}


def _assert_sound(state: object, tmp_path: Path) -> None:
    save(state, tmp_path / "checkpoint.pt")
    heard = audit(tmp_path)
    assert [each for each in heard.findings if each["severity"] != "info"] == []
    assert heard.emitted[0]["verdict"] == "ok"


_OF_TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": lambda params: torch.optim.Adagrad(params, initial_accumulator_value=0.1),
    "adam without momentum": lambda params: torch.optim.Adam(params, betas=(0.0, 0.99)),
    "adam at a rate of 0": lambda params: torch.optim.Adam(params, lr=0.0),
    "adamax": torch.optim.Adamax,
    "adamw amsgrad": lambda params: torch.optim.AdamW(params, amsgrad=True, maximize=True),
    "adamw foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "adamw fused": lambda params: torch.optim.AdamW(params, fused=True),
    "adamw with a rate that is a tensor": lambda params: torch.optim.AdamW(params, lr=torch.tensor(1e-3)),
    "asgd": torch.optim.ASGD,
    "muon": lambda params: torch.optim.Muon([each for each in params if each.dim() == 2]),
    "nadam": lambda params: torch.optim.NAdam(params, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": torch.optim.RAdam,
    "rmsprop": lambda params: torch.optim.RMSprop(params, centered=True, momentum=0.9),
    "rprop": torch.optim.Rprop,
    "sgd": lambda params: torch.optim.SGD(params, momentum=0.9, dampening=0.5),
}


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("name", _OF_TORCH)
def test_optimizers_of_torch(name: str, steps: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network()
    optimizer = _OF_TORCH[name](network.parameters())
    _train(network, optimizer, steps=steps)
    _assert_sound(_state(network, optimizer, step=steps), tmp_path)


def test_an_optimizer_that_looks_back(tmp_path: Path) -> None:
    """L-BFGS keeps all of its state at one parameter: lists of tensors, as long as the network is large."""
    torch.manual_seed(0)
    network = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=3)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = network(torch.ones(2, 8)).square().sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    _assert_sound(_state(network, optimizer, step=1), tmp_path)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("name", _HAND_MADE)
def test_optimizers_that_torch_does_not_have(name: str, steps: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    update, options = _HAND_MADE[name]
    network = Network()
    optimizer = HandMade(network.parameters(), update, **options)
    _train(network, optimizer, steps=steps)
    _assert_sound(_state(network, optimizer, step=steps), tmp_path)


def _frozen_later() -> dict[str, Any]:
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters())
    _train(network, optimizer)
    network.inner.requires_grad_(False)
    _train(network, optimizer)
    return _state(network, optimizer, step=10)


def _joined_later() -> dict[str, Any]:
    network = Network()
    optimizer = torch.optim.AdamW([network.inner.weight])
    _train(network, optimizer)
    optimizer.add_param_group({"params": [network.inner.bias, network.words.weight]})
    _train(network, optimizer)
    return _state(network, optimizer, step=10)


def _adversaries() -> dict[str, Any]:
    one, other = Network(), Network()
    optimizers = torch.optim.Adam(one.parameters(), betas=(0.0, 0.99)), torch.optim.Adam(other.parameters())
    _train(one, optimizers[0], steps=3)
    _train(other, optimizers[1], steps=15)
    nets = {"G": one.state_dict(), "D": other.state_dict()}
    return {**nets, "optG": optimizers[0].state_dict(), "optD": optimizers[1].state_dict(), "iter": 3}


def _averaged() -> dict[str, Any]:
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters())
    by_decay = get_ema_multi_avg_fn(0.99)  # type: ignore[no-untyped-call]
    ema = AveragedModel(network, multi_avg_fn=by_decay, use_buffers=True)
    swa = AveragedModel(network)
    for _ in range(3):
        _train(network, optimizer, steps=2)
        ema.update_parameters(network)
        swa.update_parameters(network)
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    averages = {"ema": ema.state_dict(), "swa_model": swa.state_dict()}
    return _state(network, optimizer, **averages, scaler={**scaler, "_growth_tracker": 6}, global_step=6)


def _micro_batches() -> dict[str, Any]:
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters())
    _train(network, optimizer, steps=4)
    return _state(network, optimizer, step=16, epoch=0)


def _records_of_failure() -> dict[str, Any]:
    """Keep numbers that are not finite on purpose, none of them a weight."""
    network = Network()
    metrics = {"val": torch.tensor(math.inf), "train": math.nan}
    best = {"best_metric": torch.tensor(-math.inf), "best_loss": torch.tensor(math.inf), "history": [1.0, math.nan]}
    return _state(network, torch.optim.SGD(network.parameters()), metrics=metrics, **best, step=0)


def _changed_layers() -> dict[str, Any]:
    pruned = nn.Linear(8, 8)
    prune.random_unstructured(pruned, "weight", 0.5)  # type: ignore[no-untyped-call]
    layers = pruned, parametrizations.weight_norm(nn.Linear(8, 8)), parametrizations.spectral_norm(nn.Linear(8, 8))
    return {"model": nn.Sequential(*layers).state_dict()}


def _begins_at_zero() -> dict[str, Any]:
    zeros = {"blocks.0.adaLN_modulation.1.weight": (24, 4), "final_layer.linear.weight": (8, 4)}
    model = {name: torch.zeros(shape) for name, shape in zeros.items()}
    return {"model": {**model, "embed.weight": torch.randn(4, 4)}, "step": 0}


def _critic_first() -> dict[str, Any]:
    """Train one network of two; the other one's turn comes later."""
    actor, critic = Network(), Network()
    optimizers = [torch.optim.AdamW(each.parameters()) for each in (actor, critic)]
    _train(critic, optimizers[1])
    states = {f"optimizer_{name}": each.state_dict() for name, each in zip(("a", "c"), optimizers, strict=True)}
    return {"actor": actor.state_dict(), "critic": critic.state_dict(), **states, "step": 5}


def _observers() -> dict[str, Any]:
    """Have what the observers of quantisation keep before they have seen anything."""
    seen = {"min_val": torch.tensor(math.inf), "max_val": torch.tensor(-math.inf), "histogram": torch.zeros(2048)}
    observers = {f"inner.activation_post_process.{key}": value for key, value in seen.items()}
    return {"model": {**Network().state_dict(), **observers}, "epoch": 0}


def _bounds() -> dict[str, Any]:
    """Have the bounds of a constraint, as every model of GPyTorch has them."""
    bounds = {
        "raw_noise_constraint.lower_bound": torch.tensor(1e-4),
        "raw_noise_constraint.upper_bound": torch.tensor(math.inf),
    }
    return {"model": {**Network().state_dict(), **bounds}, "step": 5}


def _no_gradients() -> dict[str, Any]:
    """Have gradients whose squares are too small for any number, and experts to which nothing was sent."""
    network, experts = Network(), nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
    network.inner.weight.register_hook(lambda grad: grad * torch.logspace(-30, 0, _WIDTH)[:, None])  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW([*network.parameters(), *experts.parameters()])
    for each in experts.parameters():
        each.grad = torch.zeros_like(each)
    _train(network, optimizer)
    model = {**network.state_dict(), **{f"experts.{name}": value for name, value in experts.state_dict().items()}}
    return {"model": model, "optimizer": optimizer.state_dict(), "step": 5}


def _rare_words() -> dict[str, Any]:
    """Train a few rows of a large embedding, and have others that were never filled in."""
    network = nn.Embedding(20_000, 8)
    with torch.no_grad():
        network.weight[15_000:] = 0
    optimizer = torch.optim.AdamW(network.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randint(0, 300, (40,))).square().sum().backward()
        optimizer.step()
    return _state(network, optimizer, step=3)


def _forms() -> dict[str, Any]:
    whole = torch.randn(10, 10)
    return {
        "model": {
            "fp8.weight": whole.to(torch.float8_e4m3fn),
            "fp8.scale_inv": torch.rand(1, 1),
            "scales": torch.ones(4).to(torch.float8_e8m0fnu),
            "complex.weight": torch.randn(4, 4, dtype=torch.complex64),
            "sparse": torch.eye(5).to_sparse(),
            "rows": torch.eye(5).to_sparse_csr(),
            "empty.weight": torch.zeros(0, 7),
            "temperature": torch.tensor(3.5),
            "view.weight": torch.randn(100)[10:40].view(5, 6),
            "steps": whole[::2, 1::3],
            "conv.weight": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
            "expanded": torch.randn(1, 4).expand(6, 4),
            "turned": torch.randn(2, 3, 4).permute(2, 0, 1),
            "codes.qweight": torch.randint(-(2**31), 2**31 - 1, (4, 4), dtype=torch.int32),
            "attn.mask": torch.full((4, 4), -math.inf).triu(1),
            "short": torch.ones(3, dtype=torch.uint16),
            "half.weight": torch.randn(6, 6).half(),
        }
    }


@pytest.mark.filterwarnings("ignore:.*nested")
def test_tensors_of_many_lengths(tmp_path: Path) -> None:
    """Torch keeps them as one of its subclasses, which it rebuilds with a function of its own."""
    rows = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    _assert_sound({"rows": rows, "weight": torch.randn(3, 3)}, tmp_path)
    rows.values()[5, 1] = math.nan
    save({"rows": rows, "weight": torch.randn(3, 3)}, tmp_path / "checkpoint.pt")
    assert audit(tmp_path).emitted[0]["verdict"] == "bad"


@pytest.mark.filterwarnings("ignore:.*[Ss]parse")
@pytest.mark.parametrize(
    "make",
    [
        _frozen_later,
        _joined_later,
        _adversaries,
        _averaged,
        _micro_batches,
        _records_of_failure,
        _changed_layers,
        _begins_at_zero,
        _critic_first,
        _observers,
        _bounds,
        _no_gradients,
        _rare_words,
        _forms,
    ],
)
def test_unusual_states(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    _assert_sound(make(), tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("observer.min_val", [math.nan]),
        ("observer.max_vals", [-math.inf, 1.0]),
        ("layers.maximum.weight", [math.inf]),
    ],
)
def test_what_is_no_empty_observer_is_damage(name: str, values: list[float], tmp_path: Path) -> None:
    save({"model": {**Network().state_dict(), name: torch.tensor(values)}}, tmp_path / "checkpoint.pt")
    assert audit(tmp_path).of("CK001")["severity"] == "bad"


@pytest.mark.parametrize("shape", [(_WORDS,), (_WIDTH, _WORDS), (_WORDS, 2)])
def test_a_second_moment_of_another_shape_is_told(shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters())
    _train(network, optimizer)
    state = _state(network, optimizer, step=5)
    assert state["optimizer"]["state"][0]["exp_avg"].shape == (_WORDS, _WIDTH)
    state["optimizer"]["state"][0]["exp_avg_sq"] = torch.ones(shape)
    save(state, tmp_path / "checkpoint.pt")
    assert audit(tmp_path).of("CK052")["severity"] == "suspect"


_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "restarts": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "cyclic": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1),
    "several": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)],
        [2],
    ),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
@pytest.mark.parametrize("name", _SCHEDULES)
def test_schedules(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    schedule = _SCHEDULES[name](optimizer)
    for _ in range(9):
        _train(network, optimizer, steps=1)
        schedule.step(*([1.0] if name == "plateau" else []))
    _assert_sound(_state(network, optimizer, scheduler=schedule.state_dict(), epoch=8, iteration=9), tmp_path)
