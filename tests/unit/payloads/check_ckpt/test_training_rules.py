"""The state of training: what real optimizers leave after many steps is sound, what none can leave is told."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.unit.payloads.check_ckpt.layouts import trainer
from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    Heard,
    audit,
    network,
    overwrite,
    place_of,
    save,
    training_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

NAN = float("nan")
Parameters = list[torch.nn.Parameter]


def heard_of(state: object, tmp_path: Path, name: str = "step_2000/c.pt", **params: Any) -> Heard:
    save(state, tmp_path / "run" / name)
    return audit(tmp_path / "run", **params)


def told_severity(heard: Heard, rule: str) -> str | None:
    return heard.of(rule)["severity"] if rule in heard.rules() else None


# --- what is sound --------------------------------------------------------------------------------------------------

ROWS, WIDTH = 300, 32


class Net(torch.nn.Module):
    """Have what networks have: words, a matrix, a normalisation, a table that is no parameter, tied weights."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(ROWS, WIDTH, padding_idx=0, dtype=dtype)
        self.norm = torch.nn.LayerNorm(WIDTH, dtype=dtype)
        self.inner = torch.nn.Linear(WIDTH, 64, dtype=dtype)
        self.register_buffer("running_mean", torch.zeros(64, dtype=dtype))
        self.register_buffer("causal_mask", torch.full((64, 64), float("-inf"), dtype=dtype).triu(1))
        self.outer = torch.nn.Linear(64, WIDTH, dtype=dtype)
        self.head = torch.nn.Linear(WIDTH, ROWS, bias=False, dtype=dtype)
        self.head.weight = self.words.weight


NOISE = torch.randn(7, ROWS * WIDTH + 64, generator=torch.Generator().manual_seed(0))
SPIKES = torch.exp(4 * torch.randn(ROWS * WIDTH, generator=torch.Generator().manual_seed(1)))


def nasty(parameter: torch.Tensor, kind: int, step: int) -> torch.Tensor:
    """Return a gradient of the kinds that training has on bad days."""
    count = parameter.numel()
    noise = NOISE[step % 7, step % 64 :][:count].view(parameter.shape)
    gradients = (
        lambda: noise * SPIKES[:count].view(parameter.shape),
        lambda: noise * (noise > 2) * 1e3,
        lambda: torch.full(parameter.shape, 1e-2 * (0.999 / 0.9) ** min(step, 50)),
        lambda: noise * 1e-21,
        lambda: noise * 10.0 ** (step * 17 % 30 - 24),
        lambda: torch.full(parameter.shape, 1e-3 if step == 0 else 0.0),
    )
    return gradients[kind]()


def trained(
    make: Callable[[Parameters], torch.optim.Optimizer],
    *,
    kind: int = 0,
    steps: int = 60,
    dtype: torch.dtype = torch.float32,
    change: Callable[[torch.optim.Optimizer, int], None] | None = None,
) -> dict[str, Any]:
    """Step a real optimizer many times with nasty gradients; most words never occur."""
    torch.manual_seed(kind)
    model = Net(dtype)
    optimizer = make(list(model.parameters()))
    for step in range(steps):
        for parameter in model.parameters():
            gradient = nasty(parameter, kind, step).clamp(-1e4, 1e4)
            if parameter is model.words.weight:
                used = torch.zeros(ROWS, 1)
                used[1 + step % 3 : ROWS // 6 : 1 + step % 4] = 1
                gradient *= used
            parameter.grad = gradient.to(dtype)
        if change is not None:
            change(optimizer, step)
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": steps}


OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adam with decay": lambda params: torch.optim.Adam(params, weight_decay=0.1),
    "adamw": torch.optim.AdamW,
    "adamw of language models": lambda params: torch.optim.AdamW(params, betas=(0.9, 0.95)),
    "adamw one by one": lambda params: torch.optim.AdamW(params, foreach=False),
    "adamw fused": lambda params: torch.optim.AdamW(params, fused=True),
    "adamw capturable": lambda params: torch.optim.AdamW(params, capturable=False, maximize=True),
    "amsgrad": lambda params: torch.optim.AdamW(params, amsgrad=True),
    "adam of adversaries": lambda params: torch.optim.Adam(params, betas=(0.0, 0.99)),
    "adam of slow averages": lambda params: torch.optim.Adam(params, betas=(0.5, 0.9999)),
    "adam beyond the bound": lambda params: torch.optim.Adam(params, betas=(0.99, 0.9)),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": lambda params: torch.optim.RMSprop(params, momentum=0.9, centered=True),
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-3),
    "sgd with momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("name", ["adamw", "adamw of language models", "adam of adversaries", "amsgrad"])
def test_the_bound_of_adam_holds_whatever_the_gradients(tmp_path: Path, name: str, kind: int) -> None:
    heard = heard_of(trained(OPTIMIZERS[name], kind=kind), tmp_path, "step_60/c.pt")
    assert heard.rules(above_info=True) == set()
    assert heard.record["verdict"] == "ok"
    assert "CK045" not in heard.rules()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_real_optimizers_leave_nothing_suspect(tmp_path: Path, name: str) -> None:
    heard = heard_of(trained(OPTIMIZERS[name], kind=1, steps=40), tmp_path, "step_40/c.pt")
    assert heard.rules(above_info=True) == set()


def test_optimizers_of_other_shapes_leave_nothing_suspect(tmp_path: Path) -> None:
    """Matrices and the rest apart, gradients of few rows, and directions of many steps in nested lists."""
    torch.manual_seed(0)
    words = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    layer = torch.nn.Linear(WIDTH, 64)
    optimizers = [
        torch.optim.SparseAdam(list(words.parameters())),
        torch.optim.Muon([layer.weight], lr=1e-3),
        torch.optim.AdamW([layer.bias]),
        torch.optim.LBFGS(layer.parameters(), max_iter=3),
    ]

    def loss() -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        value: torch.Tensor = layer(words(torch.arange(9))).pow(2).mean()
        torch.autograd.backward(value)
        return value

    for _ in range(20):
        loss()
        for optimizer in optimizers[:3]:
            optimizer.step()
    optimizers[3].step(loss)  # type: ignore[arg-type]
    model = {**words.state_dict(prefix="words."), **layer.state_dict(prefix="layer.")}
    state = {"model": model, "optimizers": [each.state_dict() for each in optimizers], "step": 20}
    assert heard_of(state, tmp_path, "step_20/c.pt").rules(above_info=True) == set()


@pytest.mark.parametrize("kind", range(4))
def test_adam_in_bfloat16_leaves_nothing_suspect(tmp_path: Path, kind: int) -> None:
    heard = heard_of(trained(OPTIMIZERS["adamw"], kind=kind, dtype=torch.bfloat16), tmp_path, "step_60/c.pt")
    assert heard.rules(above_info=True) == set()


def test_a_fresh_optimizer_leaves_nothing_suspect(tmp_path: Path) -> None:
    for steps in (0, 1, 2):
        heard = heard_of(
            trained(OPTIMIZERS["adamw"], steps=steps), tmp_path, f"step_{steps}/c.pt", match=f"step_{steps}"
        )
        assert heard.rules(above_info=True) == set()


def test_changed_betas_are_at_most_information(tmp_path: Path) -> None:
    def change(optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 58:
            optimizer.param_groups[0]["betas"] = (0.9, 0.95)

    heard = heard_of(trained(OPTIMIZERS["adamw"], kind=2, change=change), tmp_path, "step_60/c.pt")
    assert (heard.of("CK045")["severity"], heard.record["verdict"]) == ("info", "ok")
    assert 1.165 < heard.of("CK045")["evidence"]["ratio"] < 7.27


def test_betas_that_a_schedule_moves_are_at_most_information(tmp_path: Path) -> None:
    def change(optimizer: torch.optim.Optimizer, step: int) -> None:
        optimizer.param_groups[0]["betas"] = (0.85 + 0.1 * step / 60, 0.999)

    for kind in range(3):
        heard = heard_of(trained(OPTIMIZERS["adamw"], kind=kind, change=change), tmp_path, "step_60/c.pt")
        assert heard.rules(above_info=True) == set()


def test_frozen_layers_leave_nothing_suspect(tmp_path: Path) -> None:
    model = Net()
    for parameter in model.inner.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(12):
        if step == 6:
            for parameter in model.inner.parameters():
                parameter.requires_grad = True
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        if step in (5, 11):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            heard = heard_of(copy.deepcopy(state), tmp_path / str(step), f"step_{step + 1}/c.pt")
            assert heard.rules(above_info=True) == set()
            assert heard.rules() >= {"CK049" if step == 5 else "CK040"}


def test_groups_that_were_added_later_are_information(tmp_path: Path) -> None:
    model, _ = network(1, width=16)
    layers = [list(layer.parameters()) for layer in model.children()]
    optimizer = torch.optim.AdamW(layers[0] + layers[1])
    for step in range(6):
        if step == 4:
            optimizer.add_param_group({"params": layers[2] + layers[3], "lr": 1e-4})
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    heard = heard_of({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    assert (heard.of("CK040")["severity"], heard.record["verdict"]) == ("info", "ok")
    assert heard.of("CK040")["next_step"].startswith("Nothing to do"), "and not: do not resume from it"


def test_experts_that_were_not_asked_are_information(tmp_path: Path) -> None:
    """Each expert, two tensors, takes part in one step of three."""
    parameters = [torch.nn.Parameter(torch.randn(9, 9)) for _ in range(20)]
    optimizer = torch.optim.AdamW(parameters)
    for step in range(7):
        for index, parameter in enumerate(parameters):
            expert = 4 <= index < 16
            parameter.grad = None if expert and (index // 2 + step) % 3 else torch.randn(9, 9)
        optimizer.step()
    heard = heard_of({"model": parameters, "optimizer": optimizer.state_dict()}, tmp_path)
    assert heard.of("CK040")["severity"] == "info"


def test_a_parameter_that_missed_a_step_is_information(tmp_path: Path) -> None:
    for late in range(6):
        parameters = [torch.nn.Parameter(torch.randn(9, 9)) for _ in range(6)]
        optimizer = torch.optim.AdamW(parameters)
        for step in range(3):
            for index, parameter in enumerate(parameters):
                parameter.grad = None if index == late and step == 1 else torch.randn(9, 9)
            optimizer.step()
        heard = heard_of({"model": parameters, "optimizer": optimizer.state_dict()}, tmp_path / str(late))
        assert heard.of("CK040")["severity"] == "info"


def test_eight_bit_states_are_known(tmp_path: Path) -> None:
    """As bitsandbytes saves them: codes, the table that gives them a meaning, and a scale for each block."""
    moments = {f"state{n}": torch.randint(0, 256, (64, 64), dtype=torch.uint8) for n in (1, 2)}
    scales = {f"absmax{n}": torch.rand(16) for n in (1, 2)} | {f"qmap{n}": torch.linspace(-1, 1, 256) for n in (1, 2)}
    group = {"lr": 1e-3, "betas": (0.9, 0.995), "eps": 1e-8, "weight_decay": 0.0, "params": [0]}
    kept = {"step": 7, **moments, **scales}
    state = {"model": {"w.weight": torch.randn(64, 64)}, "optimizer": {"state": {0: kept}, "param_groups": [group]}}
    assert heard_of(state, tmp_path).rules() == set()
    del kept["qmap1"]
    assert heard_of(state, tmp_path).rules(above_info=True) == {"CK052"}


def test_what_only_goes_by_the_same_names_is_not_taken_for_adam(tmp_path: Path) -> None:
    """SOAP keeps its second moments in another basis, Adan has three betas, ADOPT divides before it averages."""
    first, second = torch.randn(64, 64), torch.full((64, 64), 1e-9)
    base = {"step": 9, "exp_avg": first, "exp_avg_sq": second}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "params": [0]}
    strangers = (
        ({**base, "GG": torch.eye(64)}, group),
        ({**base, "exp_avg_diff": first}, {**group, "betas": (0.98, 0.92, 0.99)}),
        (base, {**group, "betas": None}),
    )
    for number, (state, options) in enumerate(strangers):
        optimizer = {"state": {0: state}, "param_groups": [options]}
        heard = heard_of({"model": {"w": torch.randn(64, 64)}, "optimizer": optimizer}, tmp_path / str(number))
        assert heard.rules(above_info=True) == set()
    optimizer = {"state": {0: base}, "param_groups": [group]}
    heard = heard_of({"model": {"w": torch.randn(64, 64)}, "optimizer": optimizer}, tmp_path / "adopt")
    assert heard.of("CK045")["severity"] == "suspect"


# --- R12: torn snapshots --------------------------------------------------------------------------------------------


def stepped(state: dict[str, Any], keys: list[int], by: float = 1) -> dict[str, Any]:
    """Move the optimizer's step of some parameters on."""
    for key in keys:
        state["optimizer_state_dict"]["state"][key]["step"] += by
    return state


@pytest.mark.parametrize("odd", [1, 3, 7])
def test_r12_a_one_step_ahead(tmp_path: Path, odd: int) -> None:
    heard = heard_of(stepped(training_state(), [odd]), tmp_path)
    found = heard.of("CK040")
    assert (found["severity"], heard.record["verdict"]) == ("bad", "bad")
    assert found["data"]["parameters"] == [str(odd)]
    assert found["evidence"] == {"lowest": 1, "highest": 2, "parameters": 8, "odd": 1}


def test_r12_b_the_last_third_is_ahead(tmp_path: Path) -> None:
    heard = heard_of(stepped(training_state(), [5, 6, 7]), tmp_path)
    assert (heard.of("CK040")["severity"], heard.rules()) == ("bad", {"CK040"})
    assert (
        "the first 5 parameters in the file stand at an earlier step than the 3 after them"
        in heard.of("CK040")["message"]
    )


def test_r12_c_half_old_and_half_new_bytes(tmp_path: Path) -> None:
    path = save(training_state(0), tmp_path / "run" / "c.pt")
    later = save(training_state(1), tmp_path / "other" / "c.pt")
    offset, size = place_of(path, "data/0")
    overwrite(path, offset + size // 2, later.read_bytes()[offset + size // 2 : offset + size])
    heard = audit(path)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK022", "CK041"}, "bad")


def test_steps_that_rise_through_a_torn_file_are_bad(tmp_path: Path) -> None:
    """As a save looks that many steps overtake: four of the first parameters, nine of the last one."""
    state = training_state()
    for key, step in enumerate((4, 4, 4, 4, 5, 5, 7, 9)):
        state["optimizer_state_dict"]["state"][key]["step"].fill_(step)
    heard = heard_of(state, tmp_path)
    assert heard.of("CK040")["severity"] == "suspect"
    path = tmp_path / "run" / "step_2000" / "c.pt"
    offset, size = place_of(path, "data/4")
    overwrite(path, offset, torch.randn(size // 4).numpy().tobytes())
    heard = audit(path)
    assert heard.rules() == {"CK022", "CK040", "CK041"}
    assert heard.of("CK040")["severity"] == "bad"
    assert "4 to 9: they rise from place to place" in heard.of("CK040")["message"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((10, 10, 20, 20, 30, 30, 40, 40), "6 parameters took part in fewer steps"),
        ((3, 3, 3, 3, 3, 3, 3, 9), "1 parameter took part in more steps than all others"),
        ((9, 9, 3, 3, 3, 3, 3, 3), "2 parameters took part in more steps than all others"),
    ],
)
def test_layers_that_are_thawed_one_after_the_other_are_information(
    tmp_path: Path, steps: tuple[int, ...], words: str
) -> None:
    state = training_state()
    for key, step in enumerate(steps):
        state["optimizer_state_dict"]["state"][key]["step"].fill_(step)
    found = heard_of(state, tmp_path).of("CK040")
    assert found["severity"] == "info"
    assert words in found["message"]


def mixed(kind: str, *, seed: int = 0) -> dict[str, Any]:
    """Return a model in bfloat16 and the weights it is rounded from, where mixed-precision optimizers keep them."""
    model, optimizer = network(seed)
    exact = [parameter.detach().clone() for parameter in model.parameters()]
    state: dict[str, Any] = {
        "model": model.bfloat16().state_dict(),
        "optimizer": optimizer.state_dict(),
        "iteration": 7,
    }
    if kind == "apex":
        state["optimizer"] = {"optimizer_state_dict": state["optimizer"], "fp32_from_fp16": [exact]}
    elif kind == "megatron":
        matrices, vectors = ([each for each in exact if (each.ndim > 1) == wide] for wide in (True, False))
        state["optimizer"] = {"optimizer": state["optimizer"], "fp32_from_fp16_params": [matrices, vectors]}
    else:
        for key, each in state["optimizer"]["state"].items():
            each["master_param"] = exact[key]
    return state


def masters(state: dict[str, Any], kind: str) -> torch.Tensor:
    """Return the weights in float32 of 1.weight."""
    optimizer = state["optimizer"]
    places = {
        "apex": lambda: optimizer["fp32_from_fp16"][0][2],
        "megatron": lambda: optimizer["fp32_from_fp16_params"][0][1],
    }
    found: torch.Tensor = places.get(kind, lambda: optimizer["state"][2]["master_param"])()
    return found


@pytest.mark.parametrize("kind", ["apex", "megatron", "transformer engine"])
def test_r12_d_a_model_that_is_not_its_rounded_master_weights(tmp_path: Path, kind: str) -> None:
    state = mixed(kind)
    assert heard_of(state, tmp_path, "c.pt").rules() == set()
    masters(state, kind)[5:9] += 0.01
    heard = heard_of(state, tmp_path, "c.pt")
    assert (heard.rules(), heard.record["verdict"]) == ({"CK042"}, "bad")
    assert heard.of("CK042")["data"]["tensors"] == ["model.1.weight"]
    assert 200 < heard.of("CK042")["evidence"]["unequal"] <= 256


def test_master_weights_of_which_nobody_knows_the_place_are_not_compared(tmp_path: Path) -> None:
    state = mixed("apex")
    state["optimizer"]["fp32_from_fp16"][0].reverse()
    del state["optimizer"]["fp32_from_fp16"][0][0]
    assert heard_of(state, tmp_path, "c.pt").rules() == set()


@pytest.fixture
def stepping() -> Iterator[dict[str, Any]]:
    """Have a thread step an optimizer all the time, as trainers do that save in the background."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3_000_000)) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    done, going = threading.Event(), threading.Event()

    def train() -> None:
        while not done.is_set():
            optimizer.step()
            going.set()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert going.wait(60)
        yield {"model": parameters, "optimizer": optimizer.state_dict()}
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_r12_e_a_live_tear(tmp_path: Path, stepping: dict[str, Any]) -> None:
    """The file is perfect but for storages that changed between their checksum and their bytes."""
    attempts = 3
    path = save(stepping, tmp_path / "c.pt")
    while (heard := audit(path)).record["verdict"] == "ok" and attempts:
        path, attempts = save(stepping, tmp_path / "c.pt"), attempts - 1
    torch.load(path, weights_only=True)
    assert {"CK022", "CK041"} <= heard.rules() <= {"CK022", "CK040", "CK041"}
    assert (heard.record["nan_weights"], heard.record["nan_optimizer"]) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_steps_as_tensors_of_any_format_are_compared(tmp_path: Path, dtype: torch.dtype) -> None:
    state = training_state()
    for key, each in state["optimizer_state_dict"]["state"].items():
        each["step"] = torch.tensor(1001 if key < 5 else 1002, dtype=dtype)
    assert heard_of(state, tmp_path).of("CK040")["severity"] == "bad"


def test_steps_as_plain_numbers_are_compared(tmp_path: Path) -> None:
    state = training_state()
    for key, each in state["optimizer_state_dict"]["state"].items():
        each["step"] = 1001 if key < 5 else 1002
    assert heard_of(state, tmp_path).of("CK040")["severity"] == "bad"


# --- R14: the optimizer's state -------------------------------------------------------------------------------------


def moments(state: dict[str, Any], key: int) -> dict[str, Any]:
    """Return what the optimizer keeps of a parameter."""
    kept: dict[str, Any] = state["optimizer_state_dict"]["state"][key]
    return kept


@pytest.mark.parametrize("engine", ENGINES)
def test_r14_a_negative_second_moment(tmp_path: Path, engine: str) -> None:
    state = training_state()
    moments(state, 2)["exp_avg_sq"][5, 6] = -1
    heard = heard_of(state, tmp_path, engine=engine)
    assert (heard.of("CK044")["severity"], heard.record["verdict"]) == ("bad", "bad")
    assert heard.of("CK044")["data"]["tensor"] == "optimizer_state_dict.state.2.exp_avg_sq"


def test_a_negative_sum_of_adagrad_is_found_and_one_of_others_is_not(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["sum"][3, 4] = -1
    state = {"model": model.state_dict(), "optimizer": saved, "step": 1}
    heard = heard_of(state, tmp_path)
    assert (heard.of("CK044")["severity"], heard.record["verdict"]) == ("bad", "bad")
    del saved["param_groups"][0]["initial_accumulator_value"]
    assert heard_of(state, tmp_path).record["verdict"] == "ok"


@pytest.mark.parametrize("engine", ENGINES)
def test_r14_a_page_of_second_moments_is_zero(tmp_path: Path, engine: str) -> None:
    state = training_state()
    moments(state, 2)["exp_avg_sq"].view(-1)[1024:2048] = 0
    heard = heard_of(state, tmp_path, engine=engine)
    found = heard.of("CK045")
    assert (found["severity"], heard.rules(), heard.record["verdict"]) == ("bad", {"CK045"}, "bad")
    assert found["evidence"]["ratio"] == "inf"
    assert found["data"]["tensor"] == "optimizer_state_dict.state.2.exp_avg"
    assert found["evidence"]["blocks"] < found["evidence"]["of_blocks"]


@pytest.mark.parametrize("engine", ENGINES)
def test_r14_second_moments_that_went_through_float16(tmp_path: Path, engine: str) -> None:
    state = training_state()
    for key in range(8):
        moments(state, key)["exp_avg_sq"] = moments(state, key)["exp_avg_sq"].half().float()
    heard = heard_of(state, tmp_path, engine=engine)
    assert heard.rules() == {"CK045"}
    assert heard.of("CK045")["severity"] == "bad"


def test_r14_second_moments_in_float16(tmp_path: Path) -> None:
    state = training_state()
    for key in range(8):
        moments(state, key)["exp_avg_sq"] = moments(state, key)["exp_avg_sq"].half()
    heard = heard_of(state, tmp_path)
    assert heard.rules() == {"CK045", "CK052", "CK126"}
    assert heard.of("CK052")["evidence"] == {"tensors": 8}


@pytest.mark.parametrize("engine", ENGINES)
def test_r14_first_moments_a_hundred_times_too_large(tmp_path: Path, engine: str) -> None:
    state = training_state()
    moments(state, 4)["exp_avg"] *= 100
    heard = heard_of(state, tmp_path, engine=engine)
    assert heard.rules() == {"CK045"}
    assert heard.of("CK045")["evidence"]["ratio"] == pytest.approx(316.2, rel=1e-3)
    assert heard.of("CK045")["evidence"]["bound"] == pytest.approx(7.27, rel=1e-3)


def test_r14_state_of_seven_parameters_of_eight(tmp_path: Path) -> None:
    state = training_state()
    del state["optimizer_state_dict"]["state"][3]
    heard = heard_of(state, tmp_path)
    assert heard.of("CK049")["evidence"] == {"without": 1, "parameters": 8}
    assert heard.of("CK049")["data"]["parameters"] == ["3"]


@pytest.mark.parametrize(("step", "severity"), [(2000, "suspect"), (0, None), (None, "info")])
def test_r14_empty_state(tmp_path: Path, step: int | None, severity: str | None) -> None:
    state = training_state(global_step=step)
    state["optimizer_state_dict"]["state"] = {}
    heard = heard_of(state, tmp_path, "c.pt")
    assert told_severity(heard, "CK050") == severity


def test_r14_ids_that_do_not_cover_the_state(tmp_path: Path) -> None:
    state = training_state()
    state["optimizer_state_dict"]["param_groups"][0]["params"] = [0, 1, 2, 3, 4, 5, 6]
    assert "1 parameter in no group" in heard_of(state, tmp_path).of("CK051")["message"]
    state["optimizer_state_dict"]["param_groups"][0]["params"] = [0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert "1 parameter in its groups more than once" in heard_of(state, tmp_path).of("CK051")["message"]


@pytest.mark.parametrize(
    ("dtype", "step", "severity"),
    [
        (torch.bfloat16, 9999, "suspect"),
        (torch.bfloat16, 200, "info"),
        (torch.float16, 2000, "info"),
        (torch.float16, 4001, "suspect"),
    ],
)
def test_r14_steps_that_are_rounded_never_count_as_torn(
    tmp_path: Path, dtype: torch.dtype, step: int, severity: str
) -> None:
    state = training_state()
    for key in range(8):
        moments(state, key)["step"] = torch.tensor(step + (key > 4), dtype=dtype)
    heard = heard_of(state, tmp_path)
    assert (heard.rules(), heard.of("CK046")["severity"]) == ({"CK046"}, severity)


@pytest.mark.parametrize("kind", ["int", "missing", "group"])
def test_r14_steps_of_older_optimizers(tmp_path: Path, kind: str) -> None:
    state = training_state()
    for key in range(8):
        moments(state, key)["step"] = 1
        if kind != "int":
            del moments(state, key)["step"]
    if kind == "group":
        state["optimizer_state_dict"]["param_groups"][0]["step"] = 1.0
    assert heard_of(state, tmp_path).rules() == set()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["one element", "float16", "two formats"])
def test_r14_a_first_moment_above_all_second_ones(tmp_path: Path, engine: str, kind: str) -> None:
    """Where sums of blocks say nothing, the greatest elements do: what holds for each holds for these."""
    state = training_state()
    kept = moments(state, 4)
    if kind == "one element":
        # Its block hides it: one second moment there is as large as it has to be.
        kept["exp_avg_sq"][0, :2], kept["exp_avg"][0, 0] = 1e-2, 0.9
    elif kind == "float16":
        kept.update({key: kept[key].half() for key in ("exp_avg", "exp_avg_sq")})
        kept["exp_avg"][0, 0] = 300.0
    else:
        kept["exp_avg"] = kept["exp_avg"].bfloat16()
        kept["exp_avg"][0, 0] = 9.0
    heard = heard_of(state, tmp_path, engine=engine)
    found = heard.of("CK045")
    assert (found["severity"], found["data"]["tensor"]) == (
        "info" if kind == "one element" else "bad",
        "optimizer_state_dict.state.4.exp_avg",
    )
    assert ("CK126" in heard.rules()) == (kind == "two formats")


def test_moments_that_could_not_be_compared_are_named(tmp_path: Path) -> None:
    state = training_state()
    moments(state, 4)["exp_avg"] = moments(state, 4)["exp_avg"].bfloat16()
    moments(state, 6)["exp_avg_sq"] = moments(state, 6)["exp_avg_sq"].t()
    heard = heard_of(state, tmp_path)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK126"}, "ok")
    assert heard.of("CK126")["severity"] == "info"
    assert heard.of("CK126")["data"]["tensors"] == [f"optimizer_state_dict.state.{key}.exp_avg" for key in (4, 6)]
    assert heard_of(state, tmp_path, deep=False).of("CK126")["message"].startswith("no value was checked")


@pytest.mark.parametrize(
    ("option", "value", "severity"),
    [
        ("lr", NAN, "bad"),
        ("lr", torch.tensor(NAN), "bad"),
        ("lr", float("inf"), "bad"),
        ("lr", -1e-3, "suspect"),
        ("weight_decay", NAN, "bad"),
        ("betas", (0.9, NAN), "bad"),
    ],
)
def test_r14_options_that_are_no_numbers(tmp_path: Path, option: str, value: object, severity: str) -> None:
    state = training_state()
    state["optimizer_state_dict"]["param_groups"][0][option] = value
    assert told_severity(heard_of(state, tmp_path), "CK051") == severity


@pytest.mark.parametrize(
    ("scaler", "severity"),
    [
        ({"scale": 65536.0}, None),
        ({"scale": 1.0}, None),
        ({"scale": 0.0}, "bad"),
        ({"scale": 0.25}, "suspect"),
        ({"scale": float("inf")}, "bad"),
        ({"scale": torch.tensor(NAN)}, "bad"),
        ({}, "suspect"),
    ],
)
def test_r14_gradient_scales(tmp_path: Path, scaler: dict[str, Any], severity: str | None) -> None:
    usual = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3}
    heard = heard_of(training_state(scaler={**scaler, **usual}), tmp_path)
    assert told_severity(heard, "CK053") == severity


def test_a_scaler_that_is_switched_off_is_sound(tmp_path: Path) -> None:
    assert (
        heard_of(training_state(scaler=torch.amp.GradScaler("cpu", enabled=False).state_dict()), tmp_path).rules()
        == set()
    )
    assert heard_of(training_state(scaler=torch.amp.GradScaler("cpu").state_dict()), tmp_path).rules() == set()


def test_moments_of_another_shape_than_their_parameter(tmp_path: Path) -> None:
    model, _ = network(2, width=16)
    optimizer = torch.optim.AdamW(model.named_parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert heard_of(state, tmp_path).rules() == set()
    for key in ("exp_avg", "exp_avg_sq"):
        state["optimizer"]["state"][2][key] = state["optimizer"]["state"][2][key][:9].clone()
    heard = heard_of(state, tmp_path)
    assert heard.of("CK051")["data"]["tensor"] == "model.1.weight"
    assert "of shape [9, 16]" in heard.of("CK051")["message"]


def test_a_scheduler_that_was_not_saved_is_information(tmp_path: Path) -> None:
    model, optimizer = network(3, width=8)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert told_severity(heard_of(state, tmp_path), "CK054") == "info"
    state["scheduler"] = scheduler.state_dict()
    assert heard_of(state, tmp_path).rules() == set()


# --- R20: steps in names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inside", "severity"),
    [
        ("step_2000", {"global_step": 1990}, "suspect"),
        ("step_2000", {"global_step": 2001}, "info"),
        ("step_2000", {"global_step": 1999}, "info"),
        ("step_2000", {"global_step": 2000}, None),
        ("step_2000", {"global_step": torch.tensor(1990)}, "suspect"),
        ("step_2000", {"global_step": torch.tensor(2000.0)}, None),
        ("step_2000", {}, None),
        ("step_2000", {"global_step": 8000}, "info"),
        ("step_2000", {"epoch": 3, "step": 120}, "info"),
        ("step_2000", {"step": 0}, "suspect"),
        ("global_step800", {"global_step": 799}, "info"),
        ("checkpoint-500", {"global_step": 400}, "suspect"),
        ("checkpoint-3", {"global_step": 400}, None),
        ("checkpoint-3", {"global_step": 15000, "epoch": 3}, None),
        ("epoch_7", {"epoch": 7, "global_step": 70}, None),
        ("epoch_8", {"epoch": 7}, "info"),
        ("epoch=9-step=70", {"epoch": 7, "global_step": 70}, "suspect"),
    ],
)
def test_r20_steps_in_names(tmp_path: Path, name: str, inside: dict[str, Any], severity: str | None) -> None:
    model, optimizer = network()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **inside}
    heard = heard_of(state, tmp_path, f"{name}/c.pt")
    assert told_severity(heard, "CK047") == severity
    assert heard.rules() <= {"CK047"}


def test_r20_a_numpy_scalar_counts(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    assert told_severity(heard_of(training_state(global_step=np.int64(1990)), tmp_path), "CK047") == "suspect"


@pytest.mark.parametrize(
    ("count", "more", "severity"),
    [
        (500, {}, None),
        (499, {}, None),
        (498, {}, "suspect"),
        (498, {"scaler": {"scale": 2.0, "growth_factor": 2.0}}, "info"),
        (498, {"epoch": 498}, None),
        (4000, {}, None),
        (3, {}, None),
    ],
)
def test_r20_a_scheduler_that_is_behind(tmp_path: Path, count: int, more: dict[str, Any], severity: str | None) -> None:
    scheduler = {"last_epoch": count, "_step_count": count + 1, "base_lrs": [1e-3]}
    state = training_state(global_step=500, lr_scheduler=scheduler, **more)
    heard = heard_of(state, tmp_path, "checkpoint-500/c.pt")
    assert told_severity(heard, "CK047") == severity
    heard = heard_of(state, tmp_path / "unnamed", "c.pt")
    assert told_severity(heard, "CK048") == severity


def test_an_optimizer_that_made_other_steps_is_information(tmp_path: Path) -> None:
    for made, severity in ((2000, None), (2001, None), (1990, "info"), (4000, None), (7, None)):
        state = stepped(training_state(), list(range(8)), made - 1)
        heard = heard_of(state, tmp_path / str(made))
        assert told_severity(heard, "CK048") == severity
        assert heard.record["verdict"] == "ok"


def _trainers(folder: Path, steps: int, count: int, **more: object) -> Heard:
    """Audit a checkpoint of transformers' Trainer whose optimizer and scheduler have counted so much."""
    trainer(folder, 500)
    optimizer = torch.load(folder / "optimizer.pt")
    for each in optimizer["state"].values():
        each["step"].fill_(steps)
    save(optimizer, folder / "optimizer.pt")
    save({**torch.load(folder / "scheduler.pt"), "last_epoch": count, **more}, folder / "scheduler.pt")
    return audit(folder)


@pytest.mark.parametrize(("steps", "count"), [(400, 500), (500, 400), (0, 500), (500, 1000)])
def test_a_trainers_files_of_two_saves_are_suspect(tmp_path: Path, steps: int, count: int) -> None:
    heard = _trainers(tmp_path / "checkpoint-500", steps, count)
    assert (heard.of("CK048")["severity"], heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK048")["evidence"] == {"optimizer": steps, "scheduler": count}


@pytest.mark.parametrize(
    ("steps", "count", "more"),
    [(500, 500, {}), (499, 500, {}), (100, 100, {}), (500, 5, {"num_bad_epochs": 0, "best": 1.5})],
)
def test_a_trainers_files_may_both_have_begun_later(
    tmp_path: Path, steps: int, count: int, more: dict[str, object]
) -> None:
    assert _trainers(tmp_path / "checkpoint-500", steps, count, **more).rules(above_info=True) == set()


def _scheduled(begun_anew: int = 0, *, by_hand: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is saved after 60 steps and after 90, by a script that may begin its optimizer anew."""
    model, optimizer = network(0, 8, 2)
    optimizer.state.clear()
    optimizer.param_groups[0]["lr"] = 3e-3
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, eta_min=1e-5)
    saved = []
    for step in range(1, 91):
        if step == begun_anew:
            optimizer.state.clear()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
        if step in (60, 90):
            if by_hand:
                optimizer.param_groups[0]["lr"] = 1e-4
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            saved.append(copy.deepcopy({**state, "scheduler": schedule.state_dict()}))
    return saved[0], saved[1]


def test_an_optimizer_with_the_rate_of_another_step_than_its_schedulers_is_suspect(tmp_path: Path) -> None:
    before, state = _scheduled()
    assert heard_of(state, tmp_path / "sound", "last.pt").rules(above_info=True) == set()
    heard = heard_of({**state, "optimizer": before["optimizer"]}, tmp_path / "mixed", "last.pt")
    assert (heard.of("CK048")["severity"], heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK048")["evidence"] == {"optimizer": 60, "scheduler": 90}
    heard = heard_of({**state, "scheduler": before["scheduler"]}, tmp_path / "turned", "last.pt")
    assert heard.of("CK048")["evidence"] == {"optimizer": 90, "scheduler": 60}


@pytest.mark.parametrize(("begun_anew", "by_hand"), [(40, False), (40, True), (0, True)])
def test_a_rate_that_no_count_explains_is_not_suspected(tmp_path: Path, begun_anew: int, by_hand: bool) -> None:
    for number, state in enumerate(_scheduled(begun_anew, by_hand=by_hand)):
        assert heard_of(state, tmp_path / str(number), "last.pt").rules(above_info=True) == set()
