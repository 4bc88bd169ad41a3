"""Values that are finite and wrong all the same, and those that only look like it."""

from __future__ import annotations

import copy
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    Heard,
    audit,
    network,
    overwrite,
    place_of,
    save,
    settle,
    training_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

NAN = float("nan")
PAGE = 4096


def heard_of(state: object, tmp_path: Path, **params: Any) -> Heard:
    save(state, tmp_path / "c.pt")
    return audit(tmp_path / "c.pt", **params)


def of_values(heard: Heard) -> set[str]:
    """Return the rules that found something, but for the one that misses an optimizer."""
    return heard.rules() - {"CK050"}


def severity(heard: Heard, rule: str) -> str | None:
    return heard.of(rule)["severity"] if rule in heard.rules() else None


def dense(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- CK004: which copy is good --------------------------------------------------------------------------------------


def copies(bad: str) -> dict[str, Any]:
    state = training_state()
    state["ema"] = copy.deepcopy(state["model_state_dict"])
    state["optimizer_state_dict"]["fp32_from_fp16"] = [list(copy.deepcopy(state["model_state_dict"]).values())]
    weights = {
        "model": state["model_state_dict"]["1.weight"],
        "ema": state["ema"]["1.weight"],
        "master": state["optimizer_state_dict"]["fp32_from_fp16"][0][2],
    }
    weights[bad][3, 4] = NAN
    return state


@pytest.mark.parametrize(("bad", "rule"), [("ema", "CK001"), ("model", "CK001"), ("master", "CK003")])
def test_the_copy_that_is_good_is_named(tmp_path: Path, bad: str, rule: str) -> None:
    heard = heard_of(copies(bad), tmp_path)
    assert heard.rules() == {rule, "CK004"}
    assert heard.of("CK004")["data"]["bad"] == [bad]
    assert heard.of("CK004")["data"]["good"] == [each for each in ("model", "ema", "master") if each != bad]
    assert (heard.of("CK004")["severity"], heard.record["verdict"]) == ("info", "bad")
    assert (heard.record["nan_weights"], heard.record["nan_optimizer"]) == ((0, 1) if bad == "master" else (1, 0))


def test_without_a_good_copy_there_is_none_to_name(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"]["1.weight"][3, 4] = NAN
    assert heard_of(state, tmp_path).rules() == {"CK001"}


# --- R11: plausible garbage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [1e37, -1e37, 2e6])
def test_r11_exploding_weights(tmp_path: Path, engine: str, value: float) -> None:
    state = training_state()
    state["model_state_dict"]["1.weight"].fill_(value)[0, 0] = 0.5
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK005"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK005")["data"]["tensor"] == "model_state_dict.1.weight"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flipped_bit_of_an_exponent_is_seen(tmp_path: Path, engine: str) -> None:
    """Bit 30, with a checksum to match, as when memory fails before the save: the weight is finite, and huge."""
    state = training_state()
    weight = state["model_state_dict"]["2.weight"]
    weight.view(torch.int32)[7, 7] ^= 1 << 30
    assert weight.isfinite().all()
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK005"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK005")["evidence"]["max"] == pytest.approx(weight[7, 7].abs().item())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("make", "key"),
    [
        (torch.optim.Adadelta, "acc_delta"),
        (torch.optim.Adagrad, "sum"),
        (torch.optim.AdamW, "exp_avg_sq"),
        (torch.optim.Muon, "momentum_buffer"),
        (torch.optim.RMSprop, "square_avg"),
        (torch.optim.Rprop, "prev"),
    ],
)
def test_a_flipped_bit_in_what_an_optimizer_keeps_is_seen(
    tmp_path: Path, engine: str, make: Callable[[Any], torch.optim.Optimizer], key: str
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 32, bias=False)
    optimizer = make(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    assert heard_of(state, tmp_path, engine=engine).record["verdict"] == "ok"
    kept = state["optimizer"]["state"][0][key]
    kept.view(torch.int32)[3, 5] ^= 1 << 30
    assert kept[3, 5].isfinite()
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK005"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK005")["data"]["tensor"] == f"optimizer.state.0.{key}"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("value", "expected"), [(1300.0, "suspect"), (-1300.0, "suspect"), (30.0, None)])
def test_a_single_weight_that_outweighs_all_others(
    tmp_path: Path, engine: str, value: float, expected: str | None
) -> None:
    state = training_state()
    state["model_state_dict"]["2.weight"][7, 7] = value
    heard = heard_of(state, tmp_path, engine=engine)
    assert severity(heard, "CK005") == expected


def test_large_numbers_that_are_meant(tmp_path: Path) -> None:
    """Counters, variances, statistics of observations, and masks that are filled with the least number."""
    lowest = torch.finfo(torch.float32).min
    model = {
        "inner.weight": dense(64, 64),
        "bn.running_var": torch.full((64,), 3e8),
        "obs.count": torch.tensor(4e9),
        "obs.var": torch.full((64,), 1e9),
        "attn.fill": torch.full((64, 64), lowest).triu(1),
        "attn.half": torch.full((64, 64), -1e9).triu(1),
        "attn.mask": torch.full((64, 64), -3e37).triu(1),
    }
    assert of_values(heard_of({"model": model, "step": 2000}, tmp_path)) == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_r11_a_flood_of_subnormal_numbers(tmp_path: Path, engine: str) -> None:
    state = training_state()
    state["model_state_dict"]["3.weight"].fill_(1e-42)[0, 0] = 2e-42
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK008"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK008")["evidence"]["subnormals"] == 64 * 64


def test_few_subnormal_numbers_are_information(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"]["3.weight"][:16] *= 1e-39
    assert severity(heard_of(state, tmp_path), "CK008") == "info"
    half = {"model": {"w": torch.full((64, 64), 1e-6, dtype=torch.float16) * dense(64, 64).half()}}
    assert severity(heard_of(half, tmp_path), "CK008") is None


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_of_dead_channels_are_information(tmp_path: Path, engine: str) -> None:
    model = {"norm.weight": dense(96), "norm.running_var": dense(96).abs() + 0.1, "norm.running_mean": dense(96)}
    for name in ("norm.running_var", "norm.running_mean"):
        model[name][:60] *= 1e-41
    heard = heard_of(model, tmp_path, engine=engine)
    assert (heard.rules(), heard.rules(above_info=True)) == ({"CK008"}, set())


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.out = torch.nn.Linear(64, 64)


def normed(steps: int, **more: object) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model.out(model.norm(model.inner(torch.randn(8, 64)))).pow(2).mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}


@pytest.mark.parametrize("engine", ENGINES)
def test_r11_a_normalisation_of_zeros(tmp_path: Path, engine: str) -> None:
    state = normed(1)
    state["model"]["norm.weight"].zero_()
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK006"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK006")["data"]["tensor"] == "model.norm.weight"


@pytest.mark.parametrize(
    ("steps", "more", "expected"),
    [(0, {}, "info"), (0, {"global_step": 0}, "info"), (0, {"global_step": 5000}, "suspect"), (3, {}, "suspect")],
)
def test_a_matrix_of_zeros_counts_by_what_should_have_moved_it(
    tmp_path: Path, steps: int, more: dict[str, Any], expected: str
) -> None:
    state = normed(steps, **more)
    state["model"]["out.weight"].zero_()
    assert severity(heard_of(state, tmp_path), "CK006") == expected


@pytest.mark.parametrize(
    ("rate", "initial", "step", "expected"),
    [(0.0, 1e-3, 3000, "suspect"), (0.0, 1e-3, 5, "info"), (0.0, 0.0, 3000, "info"), (1e-3, 1e-3, 3000, "suspect")],
)
def test_the_end_of_a_schedule_is_no_reason_for_zeros(
    tmp_path: Path, rate: float, initial: float, step: int, expected: str
) -> None:
    state = normed(3)
    state["model"]["out.weight"].zero_()
    state["optimizer"]["param_groups"][0].update(lr=rate, initial_lr=initial)
    for kept in state["optimizer"]["state"].values():
        kept["step"].fill_(step)
    assert severity(heard_of(state, tmp_path), "CK006") == expected
    state["optimizer"]["param_groups"].append({**state["optimizer"]["param_groups"][0], "params": [], "lr": 1e-3})
    assert severity(heard_of(state, tmp_path), "CK006") == ("info" if rate == 0 else "suspect"), "it may thaw later"


def test_what_begins_at_zero_or_one_is_sound(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Normed()
    torch.nn.init.zeros_(model.out.weight)
    torch.nn.init.zeros_(model.out.bias)
    heard = heard_of({"model": model.state_dict(), "global_step": 0}, tmp_path)
    assert heard.rules(above_info=True) == set()
    model.register_buffer("table", torch.ones(64, 64))
    torch.nn.init.normal_(model.out.weight)
    assert heard_of({"model": model.state_dict(), "global_step": 0}, tmp_path).rules() == set()


def test_a_model_of_zeros(tmp_path: Path) -> None:
    state = {name: torch.zeros_like(tensor) for name, tensor in network()[0].state_dict().items()}
    heard = heard_of(state, tmp_path)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK006"}, "suspect")
    assert "all 16,640 elements of the weights are zero" in heard.of("CK006")["message"]


def test_r11_weights_of_size_zero(tmp_path: Path) -> None:
    """As a model that is cut up by ZeRO-3 is saved: the small tensors whole, the large ones empty."""
    state = training_state()
    for name, tensor in state["model_state_dict"].items():
        if tensor.ndim == 2:
            state["model_state_dict"][name] = torch.empty(0)
    heard = heard_of({"module": state["model_state_dict"], "global_step": 3}, tmp_path)
    assert heard.of("CK009")["evidence"] == {"empty": 4, "tensors": 8}
    assert heard.record["verdict"] != "ok"


def test_modules_that_need_no_weights_are_information(tmp_path: Path) -> None:
    """Those of e3nn have a weight of size 0 where it comes from elsewhere, beside many that are there."""
    model = {f"{layer}.linear.{number}.weight": dense(8, 8) for layer in range(5) for number in range(3)}
    model.update({f"{layer}.convolution.weight": torch.empty(0) for layer in range(5)})
    heard = heard_of({"model": model, "global_step": 3}, tmp_path)
    assert (severity(heard, "CK009"), heard.record["verdict"]) == ("info", "ok")
    assert heard.of("CK009")["next_step"] == "Nothing to do if that was meant."


def test_one_empty_tensor_is_no_finding(tmp_path: Path) -> None:
    assert heard_of({"model": {"w.weight": dense(64, 64), "cache.weight": torch.empty(0)}}, tmp_path).rules() == set()


def adapter(**more: object) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for layer in range(3):
        state[f"base_model.layers.{layer}.q_proj.lora_A.weight"] = dense(8, 64)
        state[f"base_model.layers.{layer}.q_proj.lora_B.weight"] = torch.zeros(64, 8)
    return {"model": state, **more}


@pytest.mark.parametrize("engine", ENGINES)
def test_r11_an_adapter_that_does_nothing(tmp_path: Path, engine: str) -> None:
    heard = heard_of(adapter(global_step=500), tmp_path, engine=engine)
    assert (of_values(heard), heard.record["verdict"]) == ({"CK010"}, "suspect")
    assert heard.of("CK010")["evidence"] == {"pairs": 3, "elements": 3 * 512, "first": 3}
    assert severity(heard_of(adapter()["model"], tmp_path), "CK010") == "suspect"


def test_r11_an_adapter_before_its_first_step(tmp_path: Path) -> None:
    heard = heard_of(adapter(global_step=0), tmp_path)
    assert (severity(heard, "CK010"), heard.record["verdict"]) == ("info", "ok")
    group = {"lr": 1e-3, "params": list(range(6))}
    assert severity(heard_of(adapter(optimizer={"state": {}, "param_groups": [group]}), tmp_path), "CK010") == "info"


def test_an_adapter_of_which_one_factor_moved_is_sound(tmp_path: Path) -> None:
    state = adapter(global_step=500)
    state["model"]["base_model.layers.1.q_proj.lora_B.weight"][0, 0] = 1e-3
    assert of_values(heard_of(state, tmp_path)) == set()


# --- CK007: pages of zeros ------------------------------------------------------------------------------------------


def wiped(path: Path, record: str, *, mend: bool) -> Path:
    """Zero the first whole page of the file inside a record, and give it the checksum of that if it is to be mended."""
    offset, size = place_of(path, record)
    page = -(-offset // PAGE) * PAGE
    assert page + PAGE <= offset + size
    overwrite(path, page, bytes(PAGE))
    if mend:
        data = path.read_bytes()
        crc = zlib.crc32(data[offset : offset + size])
        with zipfile.ZipFile(path) as archive:
            info = next(info for info in archive.infolist() if info.filename.endswith(record))
        old, new = struct.pack("<I", info.CRC), struct.pack("<I", crc)
        described = data.index(b"PK\x07\x08" + old, offset)
        listed = data.index(old, data.index(b"PK\x01\x02", offset + size))
        path.write_bytes(data)
        overwrite(path, described + 4, new)
        overwrite(path, listed, new)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    return settle(path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("record", ["data/0", "data/2", "data/4", "data/6"])
def test_r4_a_a_zeroed_page_that_its_checksum_gives_away(tmp_path: Path, engine: str, record: str) -> None:
    path = wiped(save(training_state(), tmp_path / "c.pt"), record, mend=False)
    heard = audit(path, engine=engine)
    assert heard.rules() == {"CK007", "CK022"}
    assert heard.of("CK022")["next_step"].startswith("Go back"), "a page was lost: no word of optimizer steps"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("record", ["data/0", "data/2", "data/4", "data/6"])
def test_r4_b_a_zeroed_page_with_a_checksum_of_its_own(tmp_path: Path, engine: str, record: str) -> None:
    path = wiped(save(training_state(), tmp_path / "c.pt"), record, mend=True)
    torch.load(path, weights_only=True)
    heard = audit(path, engine=engine)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK007"}, "suspect")
    found = heard.of("CK007")
    assert found["data"]["tensor"] == f"model_state_dict.{int(record[-1]) // 2}.weight"
    (start, stop), *more = found["data"]["zero_ranges"]
    assert (start % PAGE, stop - start, more) == (0, PAGE, [])
    assert found["evidence"]["zero_pages"] == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("start", [0, 64, 1500, 2048])
def test_r4_b_zeros_that_fill_no_page_of_the_file(tmp_path: Path, engine: str, start: int) -> None:
    """4096 bytes of zeros, as the recipe writes them: wherever they begin, and with a checksum of their own."""
    state = training_state()
    state["model_state_dict"]["1.weight"].view(-1)[start : start + 1024] = 0
    path = save(state, tmp_path / "c.pt")
    assert (place_of(path, "data/2")[0] + 4 * start) % PAGE != 0
    heard = audit(path, engine=engine)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK007"}, "suspect")
    assert heard.of("CK007")["data"]["tensor"] == "model_state_dict.1.weight"
    assert heard.of("CK007")["evidence"] == {"zeros": 1024, "trained": 1024, "elements": 4096}


@pytest.mark.parametrize("start", [1024, 5000])
def test_many_pages_of_zeros_need_not_begin_with_one(tmp_path: Path, start: int) -> None:
    model, optimizer = network(width=128, layers=3)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    state["model"]["1.weight"].view(-1)[start : start + 8192] = 0
    heard = heard_of(state, tmp_path)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK007"}, "suspect")
    assert heard.of("CK007")["data"]["tensor"] == "model.1.weight"


def pruned(weights: list[torch.Tensor], _: dict[str, Any]) -> None:
    for index, weight in enumerate(weights):
        weight[torch.rand(64, 64, generator=torch.Generator().manual_seed(index)) < 0.3] = 0


def held_above_zero(weights: list[torch.Tensor], _: dict[str, Any]) -> None:
    for weight in weights:
        weight[weight < 0] = 0


def without_gradients(weights: list[torch.Tensor], optimizer: dict[str, Any]) -> None:
    weights[1][8:24] = 0
    for key in ("exp_avg", "exp_avg_sq"):
        optimizer["state"][2][key][8:24] = 0


def at_a_rate_of_zero(weights: list[torch.Tensor], optimizer: dict[str, Any]) -> None:
    """Begin a schedule, whose first step has no effect."""
    weights[1][8:24] = 0
    optimizer["param_groups"][0].update(lr=1e-5, initial_lr=1e-3)


def a_few(weights: list[torch.Tensor], _: dict[str, Any]) -> None:
    weights[1].view(-1)[:500] = 0


@pytest.mark.parametrize("change", [pruned, held_above_zero, without_gradients, at_a_rate_of_zero, a_few])
def test_zeros_that_training_leaves_are_sound(tmp_path: Path, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """In most weights, where no second moment says that they were trained, where no step was taken, or too few."""
    state = training_state()
    change([tensor for tensor in state["model_state_dict"].values() if tensor.ndim > 1], state["optimizer_state_dict"])
    assert heard_of(state, tmp_path).rules() <= {"CK054"}


def test_float16_loses_small_steps(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"] = {name: tensor.half() for name, tensor in state["model_state_dict"].items()}
    state["model_state_dict"]["1.weight"].view(-1)[50:1600] = 0
    assert heard_of(state, tmp_path).rules() == set()


def test_of_two_weights_nobody_knows_which_is_the_rule(tmp_path: Path) -> None:
    model, optimizer = network(layers=2)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    state["model"]["1.weight"].view(-1)[50:1074] = 0
    assert heard_of(state, tmp_path).rules() == set()


def test_a_zeroed_page_of_weights_alone(tmp_path: Path) -> None:
    """Without an optimizer, what gives it away is that the page ends in the midst of a row."""
    path = wiped(save({"model": {"big.weight": dense(200, 100)}}, tmp_path / "c.pt"), "data/0", mend=True)
    heard = audit(path)
    assert (heard.rules(), heard.record["verdict"]) == ({"CK007"}, "suspect")


def test_a_zeroed_page_of_first_moments(tmp_path: Path) -> None:
    state = training_state()
    record = next(
        name
        for name, tensor in enumerate(torch.load(save(state, tmp_path / "c.pt"))["optimizer_state_dict"]["state"][2])
        if tensor == "exp_avg"
    )
    path = wiped(save(state, tmp_path / "c.pt"), f"data/{8 + 2 * 3 + record}", mend=True)
    heard = audit(path)
    assert heard.rules() == {"CK007"}
    assert heard.of("CK007")["data"]["tensor"] == "optimizer_state_dict.state.2.exp_avg"


def test_rows_of_zeros_are_no_pages_of_zeros(tmp_path: Path) -> None:
    """Padding, and words that never occurred: whole rows, wherever pages end."""
    for width in (32, 100, 256, 1024, 3000):
        words = dense(90, width)
        words[:1] = 0
        words[40 : 40 + 2 * PAGE // (4 * width) + 2] = 0
        assert of_values(heard_of({"model": {"words.weight": words}, "step": 2000}, tmp_path)) == set()


@pytest.mark.parametrize("width", [1024, 1100, 1536, 1999])
def test_padding_of_about_a_page_is_sound(tmp_path: Path, width: int) -> None:
    """Its page may lie whole in the weights and not in the moments, where other offsets cut it."""
    torch.manual_seed(0)
    for before in range(0, 1024, 128):
        words = torch.nn.Embedding(8, width, padding_idx=0)
        optimizer = torch.optim.AdamW(words.parameters())
        for _ in range(2):
            words.weight.grad = torch.randn(8, width)
            words.weight.grad[0] = 0
            optimizer.step()
        state = {"pad": torch.ones(before), "model": words.state_dict(), "optimizer": optimizer.state_dict()}
        assert heard_of(state, tmp_path).rules() == set()


def test_sparse_and_padded_tensors_are_sound(tmp_path: Path) -> None:
    pruned = dense(200, 100)
    pruned[torch.rand(200, 100, generator=torch.Generator().manual_seed(1)) < 0.3] = 0
    pruned[20:60] = 0
    flat = torch.cat([dense(5000), torch.zeros(3000)])
    middle = torch.cat([dense(5003), torch.zeros(3001), dense(5000)])
    triangle = dense(128, 128).tril()
    model = {"pruned.weight": pruned, "flat": flat, "middle": middle, "triangle": triangle}
    assert of_values(heard_of({"model": model, "step": 2000}, tmp_path)) == set()


def test_embeddings_of_which_few_words_occur_are_sound(tmp_path: Path) -> None:
    """First moments of a word that does not occur any more decay to zero long before the second ones."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(500, 64, padding_idx=0)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(60):
        model.weight.grad = torch.zeros_like(model.weight)
        model.weight.grad[1 : 300 if step < 3 else 50] = 1e-30 if step < 3 else 1.0
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["optimizer"]["state"][0]["exp_avg"][100:300] = 0
    heard = heard_of(state, tmp_path)
    assert heard.rules() == set()


# --- CK011: the same bytes twice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_bytes_under_two_names(tmp_path: Path, engine: str) -> None:
    state = training_state()
    state["model_state_dict"]["3.weight"] = state["model_state_dict"]["0.weight"].clone()
    heard = heard_of(state, tmp_path, engine=engine)
    assert (severity(heard, "CK011"), heard.record["verdict"]) == ("suspect", "suspect")
    assert heard.of("CK011")["data"]["tensors"] == ["model_state_dict.0.weight", "model_state_dict.3.weight"]
    del state["optimizer_state_dict"]
    assert severity(heard_of(state, tmp_path, engine=engine), "CK011") == "info"


def test_moments_that_were_written_twice(tmp_path: Path) -> None:
    state = training_state()
    kept = state["optimizer_state_dict"]["state"]
    kept[4]["exp_avg"] = kept[2]["exp_avg"].clone()
    heard = heard_of(state, tmp_path)
    assert severity(heard, "CK011") == "suspect"


def test_tied_weights_and_tables_are_no_copies(tmp_path: Path) -> None:
    words, table = dense(100, 64), dense(100, 64, seed=1)
    model = {"words.weight": words, "head.weight": words, "a.rope": table, "b.rope": table.clone()}
    assert heard_of({"model": model}, tmp_path).rules() == set()
    amsgrad = training_state()
    for each in amsgrad["optimizer_state_dict"]["state"].values():
        each["max_exp_avg_sq"] = each["exp_avg_sq"].clone()
    assert heard_of(amsgrad, tmp_path).rules() == set()
