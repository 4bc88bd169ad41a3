"""What an optimizer keeps against what its own arithmetic lets it come to (CK055)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Iterator, Tuple

from ...model import Found
from ..facts import Facts

if TYPE_CHECKING:
    from ...model import Group, State

# What formats round away.
_SLACK = 0.99

_Options = Dict[str, object]
_Ends = Tuple[float, float]


def _bounds(facts: Facts) -> Iterator[Found]:
    """Hold the ends of each tensor against those of another, or against an option of its group."""
    for optimizer in facts.checkpoint.optimizers if facts.whole else ():
        for group in optimizer.groups:
            for key in group.params:
                for option, names, judge in _KINDS if group.options and key in optimizer.states else ():
                    if group.options.get(option):
                        yield from _told(facts, group, optimizer.states[key], names, judge)


def _told(facts: Facts, group: Group, state: State, names: Tuple[str, ...], judge: _Judge) -> Iterator[Found]:
    indices = [state.tensors[name] for name in names if name in state.tensors]
    known = [facts.stats(index) for index in indices if index not in facts.scanned.counts]
    ends = [
        (each.minimum, each.maximum) for each in known if each and each.minimum is not None and each.maximum is not None
    ]
    message = judge(group.options, *ends) if len(ends) == len(names) else ""
    if message:
        place = facts.place(indices[0])
        yield Found("CK055", "%s %s" % (place["tensor"], message), place, evidence=dict(zip(names, map(list, ends))))


def _amsgrad(options: _Options, greatest: _Ends, now: _Ends) -> str:
    """No element of the greatest second moments that there were is below the one of now."""
    if greatest[0] >= now[0] and greatest[1] >= now[1]:
        return ""
    return (
        "holds the greatest second moments that there were, and is below those of now (%.3g to %.3g, and %.3g to %.3g)"
        % (*greatest, *now)
    )


def _adagrad(options: _Options, total: _Ends) -> str:
    """A sum of squares never falls."""
    first = options["initial_accumulator_value"]
    if not isinstance(first, float) or total[0] >= _SLACK * first:
        return ""
    return "began with %g and only grows, and yet has an element of %.3g" % (first, total[0])


def _adamax(options: _Options, norm: _Ends) -> str:
    """Each magnitude has eps added before the greatest is kept: by torch, whose groups have `differentiable`."""
    eps = options.get("eps")
    if "differentiable" not in options or not isinstance(eps, float) or norm[0] >= _SLACK * eps:
        return ""
    return "can't be below eps (%g), and yet has an element of %.3g" % (eps, norm[0])


def _centred(options: _Options, mean: _Ends, squares: _Ends) -> str:
    """The square of an average is no more than the average of the squares, by Jensen's inequality."""
    peak = max(abs(mean[0]), abs(mean[1]))
    if _SLACK * peak * peak <= squares[1]:
        return ""
    return "reaches %.3g in magnitude, and the average of its squares only %.3g" % (peak, squares[1])


_Judge = Callable[..., str]
_KINDS: Tuple[Tuple[str, Tuple[str, ...], _Judge], ...] = (
    ("amsgrad", ("max_exp_avg_sq", "exp_avg_sq"), _amsgrad),
    ("initial_accumulator_value", ("sum",), _adagrad),
    ("betas", ("exp_inf",), _adamax),
    ("centered", ("grad_avg", "square_avg"), _centred),
)
QUESTIONS = (_bounds,)
