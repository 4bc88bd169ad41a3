"""What two checkpoints, or all of a series, tell of each other: hand-made values, and real optimizers for quiet."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.model import MODEL, OPTIMIZER, Found
from remoterun.payloads.check_ckpt.rules.catalogue import severity
from remoterun.payloads.check_ckpt.series import chain
from remoterun.payloads.check_ckpt.series.chain import Chains, Link
from remoterun.payloads.check_ckpt.series.profile import Card, Mark, Profile
from remoterun.payloads.check_ckpt.series.trends import trends

pytestmark = pytest.mark.torch

HOUR = 3600 * 10**9
NOW = 2_000_000_000.0


def mark(name: str, tensor: torch.Tensor, role: str = MODEL, key: str = "") -> Mark:
    """Remember a tensor as the scan would."""
    data = tensor.detach().clone().contiguous()
    digest = int.from_bytes(hashlib.sha256(data.view(torch.uint8).numpy().tobytes()).digest()[:8], "big")
    wide = data.double()
    name_of = str(data.dtype).removeprefix("torch.")
    squares = float(wide.pow(2).sum())
    shape = tuple(data.shape)
    return Mark(
        name, role, key, name_of, shape, (), data.numel(), digest, squares, float(wide.min()), float(wide.max())
    )


def profile(
    order: int, model: torch.nn.Module | dict[str, torch.Tensor], optimizer: torch.optim.Optimizer | None = None
) -> Profile:
    """Sum up what training has come to."""
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    marks = [mark(f"model.{name}", tensor.flatten() if not tensor.dim() else tensor) for name, tensor in state.items()]
    card = Card("step_#.pt", order, f"step_{order}", f"/c/step_{order}.pt", order * HOUR, step=order)
    if optimizer is not None:
        saved = optimizer.state_dict()
        for index, kept in saved["state"].items():
            marks += [
                mark(f"optimizer.state.{index}.{key}", value, OPTIMIZER, key)
                for key, value in kept.items()
                if value.dim()
            ]
        steps = [float(kept["step"]) for kept in saved["state"].values() if "step" in kept]
        groups: list[dict[str, Any]] = saved["param_groups"]
        rates = tuple(float(group["lr"]) for group in groups)
        card = card._replace(
            optimizer_step=max(steps, default=float(order)),
            rates=rates,
            top_rate=max(rates),
            decay=max(float(group.get("weight_decay", 0)) for group in groups),
            epsilon=max(float(group.get("eps", 0)) for group in groups),
            adam=any(each.key == "exp_avg_sq" for each in marks),
        )
    prints = ["".join(sorted(f"{each.digest:x}" for each in marks if each.role == role)) for role in (MODEL, OPTIMIZER)]
    norm = sum(each.squares or 0 for each in marks if each.role == MODEL) ** 0.5
    return Profile(card._replace(model=prints[0], moments=prints[1], norm=norm), lambda: marks)


class Training:
    """Train a small network."""

    def __init__(self, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, seed: int = 0, **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
        self.optimizer = kind(self.model.parameters(), **options)
        self.steps = 0

    def go(self, steps: int = 5) -> Profile:
        """Train some steps, and sum up."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).pow(2).mean().backward()
            self.optimizer.step()
        self.steps += steps
        return self.sum_up()

    def sum_up(self, *, order: int | None = None) -> Profile:
        return profile(self.steps if order is None else order, self.model, self.optimizer)


def compare(older: Profile, younger: Profile) -> list[Found]:
    found = chain.compare(older, younger)
    assert found is not None
    return found


def rules(found: list[Found]) -> set[str]:
    return {each.rule for each in found}


# --- quiet where all is well ---


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"lr": 1e-6}),
        (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.5}),
        (torch.optim.Adam, {"betas": (0.9, 0.95), "amsgrad": True}),
        (torch.optim.Adam, {"betas": (0.5, 0.9999), "weight_decay": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_real_training_is_never_suspected(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], seed: int
) -> None:
    training = Training(kind, seed, **options)
    profiles = [training.go(steps) for steps in (1, 1, 5, 50)]
    for older, younger in itertools.pairwise(profiles):
        assert compare(older, younger) == []
    assert [each for each in trends([each.card for each in profiles], NOW) if severity(each.found) != "info"] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_that_the_weights_round_away_are_no_standstill(dtype: torch.dtype) -> None:
    training = Training(lr=1e-6)
    training.model.to(dtype)
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-7)
    older = training.sum_up(order=0)
    for step in (1, 2):
        for parameter in training.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        training.optimizer.step()
        younger = training.sum_up(order=step)
        assert rules(compare(older, younger)) == set()
        older = younger


def test_a_parameter_without_gradients_decays_in_peace() -> None:
    training = Training(lr=1e-3, weight_decay=0)
    training.go(3)
    profiles = []
    for step in range(0, 900, 300):
        for _ in range(300):
            for parameter in training.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            training.optimizer.step()
        profiles.append(training.sum_up(order=step))
    # By now the moments are too small to move anything, and still change.
    assert compare(profiles[1], profiles[2]) == []


def test_a_fresh_start_may_begin_with_other_weights() -> None:
    older, restarted = Training(seed=1).go(50), Training(seed=2)
    with torch.no_grad():
        for parameter in restarted.model.parameters():
            parameter.mul_(1000)
    restarted.go(5)
    assert compare(older, restarted.sum_up(order=60)) == []


# --- CK080 ---


def _with(base: Profile, name: str, tensor: Mark) -> Profile:
    """Put another tensor into a profile."""
    marks = [tensor if each.name == name else each for each in base.marks()]
    return Profile(base.card._replace(model="another"), lambda: marks)


def _mark_of(base: Profile, name: str) -> Mark:
    return next(each for each in base.marks() if each.name == name)


def test_a_weight_that_stands_still_is_found_though_nobody_knows_its_state() -> None:
    training = Training(lr=1e-3)
    older = training.go()
    younger = _with(training.go(), "model.0.weight", _mark_of(older, "model.0.weight"))
    (found,) = compare(older, younger)
    assert (found.rule, severity(found)) == ("CK080", "suspect")
    assert found.message == "a weight is the same as in step_5, though the optimizer worked on it: model.0.weight"
    assert (found.data or {})["compared_with"] == "step_5"


def test_of_two_that_stand_still_only_one_may_be_frozen() -> None:
    training = Training(lr=1e-3)
    training.model[2].weight.requires_grad_(False)
    older = training.go()
    younger = _with(training.go(), "model.0.weight", _mark_of(older, "model.0.weight"))
    (found,) = compare(older, younger)
    assert found.message.startswith("of 2 weights that are the same as in step_5, the optimizer worked on 1: ")


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_frozen_layer_is_only_told(kind: type[torch.optim.Optimizer]) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    training = Training(kind, lr=1e-3, **options)
    training.model[2].requires_grad_(False)
    (found,) = compare(training.go(), training.go())
    assert (found.rule, severity(found)) == ("CK080", "info")
    assert found.message == "a weight is the same as in step_5, and the optimizer did not work on it: model.2.weight"


def test_nobody_is_told_that_most_of_a_model_is_frozen() -> None:
    training = Training(lr=1e-3)
    training.model[:2].requires_grad_(False)
    training.model[2].bias.requires_grad_(False)
    assert compare(training.go(), training.go()) == []


def test_without_a_learning_rate_nothing_has_to_move() -> None:
    training = Training(lr=0.0)
    assert rules(compare(training.go(), training.go())) <= {"CK081"}


# --- CK082 ---


def test_a_weight_that_leapt_is_found() -> None:
    training = Training(lr=1e-3)
    older, younger = training.go(), training.go()
    weight = _mark_of(younger, "model.0.weight")
    (found,) = compare(older, _with(younger, "model.0.weight", weight._replace(high=3.4e30, squares=1.2e61)))
    assert (found.rule, severity(found)) == ("CK082", "suspect")
    assert "the greatest magnitude of model.0.weight was 0." in found.message
    assert "3.4e+30: further than Adam moves it in 5 steps" in found.message
    (found,) = compare(older, _with(younger, "model.0.weight", weight._replace(squares=1e4)))
    assert "the norm of" in found.message
    (found,) = compare(_with(older, "model.0.weight", weight._replace(squares=1e4, digest=1)), younger)
    assert "the norm of" in found.message


def test_a_buffer_may_leap() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    profiles = []
    for step, scale in ((0, 1.0), (1, 1e6)):
        optimizer.zero_grad()
        model(torch.randn(4, 8) * scale).pow(2).mean().backward()
        optimizer.step()
        profiles.append(profile(step, model, optimizer))
    assert compare(*profiles) == []


# --- CK083 ---


def _cut(tensor: str, /, **change: Any) -> tuple[Profile, Profile]:
    training = Training(lr=1e-3)
    older, younger = training.go(), training.go()
    return older, _with(younger, tensor, _mark_of(younger, tensor)._replace(**change))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "model.0.weight",
            {"dtype": "bfloat16"},
            "changed its number format since step_5 (bfloat16 instead of float32)",
        ),
        ("model.0.weight", {"shape": (8, 9)}, "changed its shape since step_5 ([8, 9] instead of [8, 8])"),
        ("model.0.weight", {"name": "model.0.kernel"}, "is missing since step_5: model.0.weight"),
        ("model.0.weight", {"name": "model.0.kernel"}, "is new since step_5: model.0.kernel"),
        ("optimizer.state.0.exp_avg", {"dtype": "bfloat16"}, "1 tensor changed its number format"),
    ],
)
def test_a_change_of_form_is_suspect(name: str, change: dict[str, Any], words: str) -> None:
    told = [
        each.message for each in compare(*_cut(name, **change)) if (each.rule, severity(each)) == ("CK083", "suspect")
    ]
    assert any(words in message for message in told), told


def test_wrappers_come_and_go() -> None:
    for name in ("model.module.0.weight", "module.model.0.weight", "model._orig_mod.0.weight"):
        assert compare(*_cut("model.0.weight", name=name)) == []


def test_the_last_save_may_be_cast_and_without_an_optimizer() -> None:
    training = Training()
    older, model = training.go(), training.model
    younger = profile(9, {name: value.bfloat16() for name, value in model.state_dict().items()})
    assert {(each.rule, severity(each)) for each in compare(older, younger)} == {("CK083", "info")}


def test_another_model_is_told_as_one() -> None:
    other = profile(9, {f"model.{index}": torch.randn(8, 8) for index in range(6)})
    (found,) = compare(Training().go(), other)
    assert found.message == "it holds another model: of its 6 tensors, 0 have a name that is known from step_5"
    assert severity(found) == "info"


def test_the_states_of_flat_partitions_depend_on_the_number_of_ranks() -> None:
    assert compare(*_cut("optimizer.state.0.exp_avg", shape=(32,))) == []


# --- copies, in the order of an audit ---


def _stub(order: int, model: str = "", moments: str = "", **more: Any) -> Card:
    """Make the card of a checkpoint that only its fingerprints tell from others."""
    place = Card("step_#.pt", order, f"step_{order}", f"/c/{order}", order * HOUR)
    return place._replace(model=model, moments=moments, step=order, **more)


def reported(chains: Chains, link: Link) -> list[Link]:
    """Give a checkpoint to the chains, and report at once what waits no longer."""
    links = chains.add(link)
    for each in links:
        chains.settle(each)
    return links


def told(*cards: Card, known: tuple[Card, ...] = ()) -> tuple[dict[str, list[Found]], dict[str, list[Found]]]:
    """Give cards to the chains, the newest first, and return what is told of each in time, and late."""
    chains = Chains({"step_#.pt": len(cards)}, known, NOW)
    released = [link for card in cards for link in reported(chains, Link(card.path, Profile(card, list)))]
    assert [link.card for link in released] == list(cards)
    in_time = {link.card.name: link.found for link in released if link.found}
    late: dict[str, list[Found]] = {}
    for card, found in chains.late:
        late.setdefault(card.name, []).append(found)
    return in_time, late


def shown(found: dict[str, list[Found]]) -> dict[str, list[tuple[str, str, object]]]:
    return {
        name: [(each.rule, severity(each), (each.data or {})["compared_with"]) for each in group]
        for name, group in found.items()
    }


def test_a_copy_of_the_one_before_is_told_in_time() -> None:
    in_time, late = told(_stub(400, "d", "d"), _stub(300, "b", "c"), _stub(200, "b", "b"), _stub(100, "a", "a"))
    assert shown(in_time) == {"step_300": [("CK081", "bad", "step_200")]}
    assert late == {}


def test_a_copied_optimizer_is_told() -> None:
    in_time, late = told(_stub(300, "c", "c"), _stub(200, "b", "a"), _stub(100, "a", "a"))
    assert shown(in_time) == {"step_200": [("CK081", "bad", "step_100")]}
    assert in_time["step_200"][0].message.startswith("the optimizer's moments are bit-identical to those of step_100")
    assert late == {}


def test_weights_of_long_ago_are_told_late_unless_they_are_known() -> None:
    cards = _stub(400, "a", "d"), _stub(300, "c", "c"), _stub(200, "b", "b"), _stub(100, "a", "a")
    expected = {"step_400": [("CK084", "bad", "step_100")]}
    in_time, late = told(*cards)
    assert (shown(in_time), shown(late)) == ({}, expected)
    in_time, late = told(*cards, known=cards[2:])
    assert (shown(in_time), shown(late)) == (expected, {})
    assert in_time["step_400"][0].message == (
        "all weights are bit-identical to those of step_100, though those of step_300, in between, are others"
    )


def test_a_stale_copy_made_again_and_again_names_the_one_before() -> None:
    in_time, late = told(*(_stub(step, "a", "a") for step in (400, 300, 200, 100)))
    assert shown(in_time) == {f"step_{step}": [("CK081", "bad", f"step_{step - 100}")] for step in (400, 300, 200)}
    assert late == {}
    assert "all weights and the optimizer's moments are" in in_time["step_400"][0].message


def test_very_many_copies_are_told_in_no_time() -> None:
    """Each is a copy of the one before, which of the many others of the same fingerprint is found at once."""
    began = time.process_time()
    in_time, late = told(*(_stub(step, "a", "a") for step in range(6000, 0, -1)))
    assert (len(in_time), late) == (5999, {})
    assert time.process_time() - began < 5


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_of_two_checkpoints_of_one_step_both_are_told_to_be_copies(known: int) -> None:
    cards = _stub(300, "a"), _stub(300, "a")._replace(path="/d/300", name="other"), _stub(200, "b"), _stub(100, "a")
    in_time, late = told(*cards, known=cards[4 - known :])
    assert {*in_time, *late} == {"step_300", "other"}
    assert {each[2] for group in (*shown(in_time).values(), *shown(late).values()) for each in group} == {"step_100"}


@pytest.mark.parametrize(
    ("younger", "expected"),
    [
        (_stub(300, "a"), ("CK084", "suspect", "step_100")),
        (_stub(300, "a", "a"), ("CK081", "bad", "step_100")),
        (_stub(300, "a", "c", rates=(0.0, 0.0)), ("CK084", "bad", "step_100")),
    ],
)
def test_what_a_copy_of_long_ago_is_depends_on_the_optimizer(younger: Card, expected: tuple[str, str, str]) -> None:
    _, late = told(younger, _stub(200, "b", "b"), _stub(100, "a", "a"))
    assert shown(late) == {"step_300": [expected]}


@pytest.mark.parametrize(
    ("rates", "moments", "expected"),
    [((0.0,), "a", "info"), ((), "", "info"), ((9e-5,), "a", "suspect"), ((9e-5,), "c", "bad")],
)
def test_a_rate_of_zero_explains_weights_that_stand_still_where_it_was_zero_before(
    rates: tuple[float, ...], moments: str, expected: str
) -> None:
    in_time, _ = told(_stub(200, "a", "c", rates=(0.0,)), _stub(100, "a", moments, rates=rates))
    assert shown(in_time) == {"step_200": [("CK081", expected, "step_100")]}
    assert in_time["step_200"][0].message.endswith(
        "; the learning rate is 0, but was 9e-05 there" if rates == (9e-5,) else "; the learning rate is 0"
    )


def test_a_warm_up_may_begin_with_a_rate_of_zero() -> None:
    cards = _stub(1, "a", "b", optimizer_step=1.0, rates=(1e-5,)), _stub(0, "a", optimizer_step=0.0)
    assert shown(told(*cards)[0]) == {"step_1": [("CK081", "info", "step_0")]}
    cards = _stub(2, "a", "b", optimizer_step=2.0, rates=(1e-5,)), _stub(0, "a", optimizer_step=0.0)
    assert shown(told(*cards)[0]) == {"step_2": [("CK081", "bad", "step_0")]}


def test_parts_that_are_seldom_trained_may_stay_as_they_are() -> None:
    series = "checkpoint-#/text_encoder/model.safetensors"
    cards = [_stub(step, "a")._replace(series=series) for step in (200, 100)]
    chains = Chains({series: 2}, (), NOW)
    released = [link for card in cards for link in reported(chains, Link(card.path, Profile(card, list)))]
    assert [(each.rule, severity(each)) for link in released for each in link.found] == [("CK081", "info")]


def test_two_saves_of_one_step_may_be_the_same() -> None:
    again = _stub(100, "a", "a")._replace(path="/c/again", name="again")
    assert told(again, _stub(100, "a", "a")) == ({}, {})


def test_saves_without_an_optimizer_in_between_change_nothing() -> None:
    assert told(_stub(400, "d", "d"), _stub(300, "c"), _stub(200, "b", "b"), _stub(100, "a")) == ({}, {})
    in_time, late = told(_stub(400, "d", "b"), _stub(300, "c"), _stub(200, "b", "b"), _stub(100, "a"))
    assert shown({**in_time, **late}) == {"step_400": [("CK081", "bad", "step_200")]}


def test_what_cannot_be_compared_holds_nothing_up() -> None:
    chains = Chains({"step_#.pt": 3, "best.pt": 1}, (), NOW)
    best = _stub(250)._replace(series="best.pt", path="/c/best")
    newest, oldest = _stub(300, "a"), _stub(100, "a")
    assert chains.add(Link("3", Profile(newest, list))) == []
    assert [link.card for link in chains.add(Link("b", Profile(best, list)))] == [best]
    assert [link.card for link in chains.add(Link("1", Profile(oldest, list)))] == [newest]
    assert [link.card for link in chains.skip("step_#.pt")] == [oldest]


# --- trends ---


def _series(*orders: int, **more: Any) -> list[Card]:
    return [_stub(order, **more) for order in orders]


def _told(cards: list[Card], now: float = NOW) -> list[tuple[str, str, str]]:
    return [(card.name, found.rule, severity(found)) for card, found in trends(cards, now)]


def test_the_first_spoiled_checkpoint_is_named() -> None:
    cards = _series(1, 2, 3, 4)
    cards[2:] = [card._replace(odd=(5, 7)) for card in cards[2:]]
    assert _told(cards) == [("step_3", "CK085", "info"), ("step_3", "CK085", "info")]
    assert _told([card._replace(odd=(5, 7)) for card in cards]) == []


def test_a_norm_that_leaps_is_suspect() -> None:
    norms = [10.0, 11.0, 12.0, 400.0, 410.0, 420.0]
    cards = [card._replace(norm=norm) for card, norm in zip(_series(1, 2, 3, 4, 5, 6), norms, strict=True)]
    assert _told(cards) == [("step_4", "CK085", "suspect")]
    assert _told([card._replace(norm=2.0**card.order) for card in cards]) == []
    fresh = [card._replace(optimizer_step=9 if index < 3 else index) for index, card in enumerate(cards)]
    assert _told(fresh) == []


def test_steps_that_go_back_inside_are_suspect_unless_they_count_an_epochs() -> None:
    cards = _series(100, 200, 300)
    cards[2] = cards[2]._replace(step=150)
    assert _told(cards) == [("step_300", "CK086", "info")]
    assert _told([card._replace(epoch=1) for card in cards]) == [("step_300", "CK086", "suspect")]
    assert _told([card._replace(epoch=card.order) for card in cards]) == [("step_300", "CK086", "info")]


def test_times_that_go_back_are_told_once() -> None:
    cards = _series(1, 2, 3, 4)
    mixed = [card._replace(mtime_ns=time * HOUR) for card, time in zip(cards, (9, 8, 7, 6), strict=True)]
    ((card, found),) = trends(mixed, NOW)
    assert (card.name, found.rule, severity(found)) == ("step_4", "CK086", "info")
    assert found.message == "last written before step_3, which it follows; so are 2 others of this series"
    copied = [card._replace(mtime_ns=HOUR - index) for index, card in enumerate(cards)]
    assert trends(copied, NOW) == []


def test_a_gap_is_told_where_gaps_are_regular() -> None:
    assert _told(_series(100, 200, 300, 400, 600, 700)) == [("step_600", "CK086", "info")]
    assert _told(_series(100, 200, 300, 400, 500)) == []
    assert _told(_series(1, 2, 4, 8, 16, 32)) == []
    # Old ones are thinned out.
    assert _told(_series(100, 1000, 1100, 1200, 1300, 1400, 1500)) == []


def test_a_checkpoint_that_is_late_is_told_while_it_may_matter() -> None:
    cards = _series(1, 2, 3, 4, 5)
    late = [hours for hours in (1, 2, 3, 4, 30, 49, 51, 1000) if _told(cards, (5 + hours) * 3600)]
    assert late == [4, 30, 49]
    (trend,) = trends(cards, 9 * 3600.0)
    assert trend.found.message == "written 4 h ago, where one every 60 min is usual: training has ended, or hangs"


def test_checkpoints_seconds_apart_are_never_late() -> None:
    """They were copied, or are of something too short to wait for."""
    for seconds in (0.3, 20):
        cards = [card._replace(mtime_ns=int(card.order * seconds * 1e9)) for card in _series(1, 2, 3, 4, 5)]
        assert trends(cards, 15 * seconds) == []


def test_an_optimizer_out_of_step_is_suspect() -> None:
    steps = [100, 200, 300, 400, 500]
    made = {
        "straight": [100, 200, 300, 400, 500],
        "skipping": [95, 193, 293, 391, 490],
        "stale": [99, 199, 200, 399, 499],
        "two runs that take turns": [100, 180, 300, 380, 500],
    }
    for name, counts in made.items():
        cards = [card._replace(optimizer_step=count) for card, count in zip(_series(*steps), counts, strict=True)]
        assert _told(cards) == ([("step_300", "CK048", "suspect")] if name == "stale" else [])
    accumulating = [card._replace(optimizer_step=card.order / 4) for card in _series(*steps)]
    assert _told(accumulating) == []


# --- whatever a file says ---

_number = st.floats(allow_nan=False, allow_infinity=False)
_few = st.sampled_from([0.0, 1.0, 2.0, 100.0, 1e308, -1e308, 5e-324])
_maybe = st.none() | _few | _number
_marks = st.builds(
    Mark,
    st.sampled_from(["a.weight", "b.weight", "o.0.exp_avg", "o.0.exp_avg_sq", "running_mean"]),
    st.sampled_from([MODEL, OPTIMIZER]),
    st.sampled_from(["exp_avg", "exp_avg_sq", "momentum_buffer", ""]),
    st.sampled_from(["float32", "bfloat16", "int8"]),
    st.sampled_from([(), (4,), (0,), (2**62, 2**62)]),
    st.sampled_from([(), (0,), (2,)]),
    st.integers(0, 2**70),
    st.integers(0, 3),
    st.none() | _few.map(abs) | _number.map(abs),
    _maybe,
    _maybe,
    st.integers(0, 9),
)
_cards = st.builds(
    Card,
    series=st.just(""),
    order=_few,
    name=st.text(max_size=5),
    path=st.uuids().map(str),
    mtime_ns=st.integers(-(2**63), 2**63),
    step=_maybe,
    epoch=_maybe,
    model=st.sampled_from(["", "a", "b"]),
    moments=st.sampled_from(["", "a", "b"]),
    odd=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    norm=st.none() | _few.map(abs),
    optimizer_step=_maybe,
    rates=st.lists(_few | _number, max_size=3).map(tuple),
    top_rate=_few | _number,
    decay=_few | _number,
    epsilon=_few | _number,
    adam=st.booleans(),
)


def _far(path: str, order: float, step: float, optimizer_step: float) -> tuple[Card, list[Mark]]:
    return Card(order=order, path=path, step=step, optimizer_step=optimizer_step), []


@given(st.lists(st.tuples(_cards, st.lists(_marks, max_size=8)), min_size=1, max_size=6), _number)
@example([_far("a", 0, 2, 0), _far("b", 0, -8e307, 1e308), _far("c", 1, 2, 0)], 0.0)
def test_no_numbers_break_a_comparison(given_: list[tuple[Card, list[Mark]]], now: float) -> None:
    chains = Chains({"": len(given_)}, [card for card, _ in given_[::2]], now)
    links = [Link(card.path, Profile(card, lambda marks=marks: marks)) for card, marks in given_]  # type: ignore[misc]
    released = [each for link in links for each in reported(chains, link)]
    assert released == links
    for found in [*(each for link in released for each in link.found), *(late.found for late in chains.late)]:
        json.dumps([found.message, found.data, found.evidence], allow_nan=False)
