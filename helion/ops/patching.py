"""Replacement of modules of a model by operators: norms, gated layers, losses, rotary embeddings, and attention.

A module is a candidate by its class or by the names of its attributes. It is replaced if its operator gives the same
results for random numbers; so a norm that scales by `1 + weight` is told from one that scales by `weight`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from .. import exc
from ._operators import FLOATS
from .kernels.attention import attention
from .kernels.cross_entropy import cross_entropy
from .kernels.gated import geglu, swiglu
from .kernels.layer_norm import layer_norm
from .kernels.rms_norm import rms_norm
from .kernels.rope import rope

KINDS = ("norms", "gated", "losses", "rope", "attention")
#: Differences that replace a module, relative to its largest result: some roundings of its dtype.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}
#: Name of the attention of this package in the registry of transformers.
ATTENTION = "helion"

Forward = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patches:
    """The modules of a model that were replaced, and those that were not.

    Attributes:
        replaced: names of modules, and the operator that each calls now. The name of the model itself is empty.
        kept: names of candidates that stay as they are, and the reason.
    """

    replaced: dict[str, str]
    kept: dict[str, str]
    _undo: list[Callable[[], None]] = dataclasses.field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Put back what was replaced."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def patch(model: torch.nn.Module, *, kinds: Collection[str] = KINDS) -> Patches:
    """Let norms, gated layers, losses and attention of a model call operators. Parameters stay as they are.

    These are recognized:

    - `norms`: `torch.nn.RMSNorm`, `torch.nn.LayerNorm`, and classes with `RMSNorm` in their names that have a `weight`;
    - `gated`: modules of `gate_proj`, `up_proj`, `act_fn` and `down_proj`, or of `gate_up_proj` in place of the first two;
    - `losses`: `torch.nn.CrossEntropyLoss`, and the causal loss of models of transformers;
    - `rope`: the function `apply_rotary_pos_emb` of models of transformers, for all models of its file;
    - `attention`: that of models of transformers, where no mask is needed but a causal one.

    Norms, gated layers and rotary embeddings are compared with their operators on the model's device, which compiles kernels there.

    Args:
        model: the model, on the device where it runs.
        kinds: those to replace, of `"norms"`, `"gated"`, `"losses"`, `"rope"` and `"attention"`.

    Returns:
        The names of modules that were replaced and that were not. Its `undo`, or the end of a `with` block, puts
        everything back.

    Raises:
        exc.WrongOpArgument: `kinds` has another name.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise exc.WrongOpArgument(op="patch", argument="kinds", expected=f"of {', '.join(KINDS)}", got=repr(kind))
    patches = Patches(replaced={}, kept={})
    for name, module in model.named_modules():
        found = _of_module(module, kinds)
        if not found:
            continue
        if reason := _unsuitable(module):
            patches.kept[name] = reason
            continue
        fitting = [(op, forward) for op, forward in found if forward is _cross_entropy or _agrees(module, forward)]
        if not fitting:
            patches.kept[name] = f"results differ from {' and '.join(dict.fromkeys(op for op, _ in found))}"
            continue
        op, forward = fitting[0]
        module.forward = types.MethodType(forward, module)
        patches.replaced[name] = op
        patches._undo.append(lambda module=module: delattr(module, "forward"))  # type: ignore[misc]
    if "losses" in kinds:
        _patch_causal_loss(model, patches)
    if "rope" in kinds:
        _patch_rope(model, patches)
    if "attention" in kinds:
        _patch_attention(model, patches)
    return patches


# --- modules ---------------------------------------------------------------------------------------------------------------


def _of_module(module: torch.nn.Module, kinds: Collection[str]) -> list[tuple[str, Forward]]:
    """Return the operators that may compute a module, with functions in place of its `forward`."""
    kind, children = type(module), {name for name, _ in module.named_children()}
    if "norms" in kinds and not children and isinstance(getattr(module, "weight", None), torch.Tensor):
        if isinstance(module, torch.nn.LayerNorm):
            return [("layer_norm", _layer_norm)]
        if "RMSNorm" in kind.__name__:
            return [("rms_norm", _rms_norm), ("rms_norm", _rms_norm_from_one)]
    if "gated" in kinds and {"gate_proj", "up_proj", "down_proj"} <= children <= {*_GATED}:
        if not isinstance(module.gate_proj, torch.nn.Linear):
            return []
        return [("swiglu", _swiglu), ("geglu", _geglu), ("geglu", _geglu_tanh)]
    if "gated" in kinds and {"gate_up_proj", "down_proj"} <= children <= {*_JOINED}:
        return [("swiglu", _swiglu_joined)] if isinstance(module.gate_up_proj, torch.nn.Linear) else []
    if "losses" in kinds and kind is torch.nn.CrossEntropyLoss and getattr(module, "weight", None) is None:
        return [("cross_entropy", _cross_entropy)]
    return []


_GATED = ("gate_proj", "up_proj", "act_fn", "down_proj")
_JOINED = ("gate_up_proj", "act_fn", "activation_fn", "down_proj")


def _unsuitable(module: torch.nn.Module) -> str | None:
    """Return the reason for which a module is not compared at all."""
    if "forward" in vars(module):
        return "its forward is replaced already"
    wrong = {p.dtype for p in module.parameters()} - {*FLOATS}
    if wrong:
        return f"it has parameters of {', '.join(sorted(map(str, wrong)))}; operators compute in fp32"
    if any(p.is_meta for p in module.parameters()):
        return "its parameters have no values; move the model to its device first"
    weight = getattr(module, "weight", None)
    if weight is not None and weight.dim() != 1:
        return f"its weight has {weight.dim()} dimensions"
    needed = [p for p in inspect.signature(module.forward).parameters.values() if p.default is inspect.Parameter.empty]
    if len(needed) != (2 if isinstance(module, torch.nn.CrossEntropyLoss) else 1):
        return f"its forward takes {len(needed)} arguments"
    return None


def _agrees(module: torch.nn.Module, forward: Forward) -> bool:
    """Return whether a function gives the results of a module, as in training, for rows of different magnitudes."""
    weight = next(module.parameters())
    projection = getattr(module, "gate_proj", getattr(module, "gate_up_proj", None))
    columns = weight.size(0) if projection is None else projection.in_features
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, columns, generator=generator) * torch.tensor([[1e-3], [0.1], [1.0], [1.0], [10.0]])
    x = x.to(weight)
    modes = [(each, each.training) for each in module.modules()]
    module.train()
    with torch.no_grad():
        expected, found = module.forward(x), forward(module, x)
    for each, training in modes:
        each.training = training
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    # row by row, so that the smallest, where eps matters, counts too
    error = (found.float() - expected.float()).abs().amax(-1)
    return bool((error <= TOLERANCE[weight.dtype] * expected.float().abs().amax(-1)).all())


def _eps(module: Any, x: torch.Tensor) -> float:
    eps = getattr(module, "variance_epsilon", None)
    eps = getattr(module, "eps", None) if eps is None else eps
    return torch.finfo(x.dtype).eps if eps is None else float(eps)


def _rms_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, self.weight, _eps(self, x))


def _rms_norm_from_one(self: Any, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, 1.0 + self.weight.float(), _eps(self, x))


def _layer_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    return layer_norm(x, self.weight, self.bias, self.eps)


def _swiglu(self: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
    return found


def _swiglu_joined(self: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = self.down_proj(swiglu(*self.gate_up_proj(x).chunk(2, dim=-1)))
    return found


def _geglu(self: Any, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    found: torch.Tensor = self.down_proj(geglu(self.gate_proj(x), self.up_proj(x), approximate=approximate))
    return found


def _geglu_tanh(self: Any, x: torch.Tensor) -> torch.Tensor:
    return _geglu(self, x, approximate="tanh")


def _cross_entropy(self: Any, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute the loss of rows of logits; other forms are torch's."""
    if input.dim() != 2 or target.is_floating_point() or input.dtype not in FLOATS:
        found: torch.Tensor = type(self).forward(self, input, target)
        return found
    options = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing, "reduction": self.reduction}
    return cross_entropy(input, target, **options).to(input.dtype)


# --- models of transformers ------------------------------------------------------------------------------------------------


def _causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    """Compute the mean loss of the next tokens, or the sum divided by a number of tokens."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = cross_entropy(logits.reshape(-1, vocab_size), targets, ignore_index=ignore_index, reduction=reduction)
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def _patch_causal_loss(model: Any, patches: Patches) -> None:
    former = getattr(model, "loss_function", None)
    if getattr(former, "__name__", "") != "ForCausalLMLoss":
        return
    model.loss_function = _causal_loss
    patches.replaced["loss_function"] = "cross_entropy"
    patches._undo.append(lambda: setattr(model, "loss_function", former))


@dataclasses.dataclass
class _Rotation:
    """The function of a file that rotates queries and keys, and the number of patches that replace it."""

    former: Callable[..., Any]
    count: int = 0


_ROTATE = "apply_rotary_pos_emb"
#: Rotations that are replaced, by the names of their files' modules.
_ROTATIONS: dict[str, _Rotation] = {}


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, form: str) -> torch.Tensor:
    """Rotate `x[B, H, S, D]` by the angles of `cos[1, S, ...]` or `cos[B, S, ...]`, which are laid out by ``form``."""
    half = x.size(3) // 2
    angles = [t[..., ::2] if form == "neighbors" else t[..., :half] for t in (cos, sin)]
    tokens = x.transpose(1, 2)
    flat = tokens if cos.size(0) == 1 else tokens.flatten(0, 1)
    found = rope(flat, *(t.reshape(-1, half) for t in angles), interleaved=form == "neighbors")
    return found.view(tokens.shape).transpose(1, 2)


#: Layouts of angles, and their number per feature: twice, one half after the other, each next to its copy, or once.
_FORMS = {"halves": 1, "neighbors": 1, "once": 2}


def _rotation(former: Callable[..., Any], form: str) -> Callable[..., Any]:
    """Return a function in place of that of a file; it leaves other forms of arguments to it."""

    @functools.wraps(former)
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        given = (q, k, cos, sin)
        plain = not args and all(
            value is None or (name, value) == ("unsqueeze_dim", 1) for name, value in options.items()
        )
        fits = cos.dim() == 3 and cos.shape == sin.shape and cos.size(0) in (1, q.size(0)) and not cos.requires_grad
        if not plain or not fits or any(t.dtype not in FLOATS for t in given):
            return former(*given, *args, **options)
        if any(t.dim() != 4 or t.shape[2:] != (cos.size(1), _FORMS[form] * cos.size(2)) for t in (q, k)):
            return former(*given, *args, **options)
        return _rotated(q, cos, sin, form), _rotated(k, cos, sin, form)

    return rotate


def _embedding(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that gives a model the cosines and sines of positions."""
    return next((m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")), None)


def _form(model: Any, layer: Any, former: Callable[..., Any]) -> tuple[str, str]:
    """Return the layout of a model's angles with which `rope` gives the results of a file's function, and why none does."""
    embedding, weight = _embedding(model), next(model.parameters())
    if embedding is None or weight.dtype not in FLOATS or weight.is_meta:
        return "", "the model has no rotary embedding of a known form"
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([[0, 1, 2, 3, 40], [9, 8, 7, 100, 3]], device=weight.device)
    kinds = (
        {"layer_type": model.config.layer_types[0]}
        if "layer_type" in inspect.signature(embedding.forward).parameters
        else {}
    )
    try:
        with torch.no_grad():
            cos, sin = embedding(weight.new_zeros(2, 5, 1), positions, **kinds)
            depth = getattr(layer, "head_dim", cos.size(2))
            q, k = (torch.randn(2, heads, 5, depth, generator=generator).to(weight) for heads in (4, 2))
            expected = former(q, k, cos, sin)
            for form in (form for form, per in _FORMS.items() if per * cos.size(2) == depth):
                found = [_rotated(t, cos, sin, form) for t in (q, k)]
                errors = [(a.float() - b.float()).abs().max() for a, b in zip(found, expected, strict=True)]
                if max(errors) <= TOLERANCE[weight.dtype] * q.abs().max().float():
                    return form, ""
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        return "", f"it cannot be compared: {type(error).__name__}: {error}"
    return "", "results differ from rope"


def _patch_rope(model: Any, patches: Patches) -> None:
    """Replace the rotation in the files of the attention layers."""
    modules = dict(model.named_modules())
    layers = {type(modules[name]).__module__: modules[name] for name in _attention_layers(model)}
    for file, layer in layers.items():
        owner = sys.modules.get(file)
        former = getattr(owner, _ROTATE, None)
        if owner is None or former is None:
            continue
        name = f"{file}.{_ROTATE}"
        if file not in _ROTATIONS:
            form, reason = _form(model, layer, former)
            if not form:
                patches.kept[name] = reason
                continue
            _ROTATIONS[file] = _Rotation(former)
            setattr(owner, _ROTATE, _rotation(former, form))
        _ROTATIONS[file].count += 1
        patches.replaced[name] = "rope"
        patches._undo.append(functools.partial(_undo_rope, file))


def _undo_rope(file: str) -> None:
    rotation = _ROTATIONS[file]
    rotation.count -= 1
    if not rotation.count:
        setattr(sys.modules[file], _ROTATE, _ROTATIONS.pop(file).former)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a layer of transformers; with a mask or dropout in torch."""
    plain = attention_mask is None and dropout == 0 and query.dtype in FLOATS
    if others.get("position_bias") is not None or (not plain and softcap is None and s_aux is None):
        options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        sdpa = sys.modules["transformers.integrations.sdpa_attention"].sdpa_attention_forward
        found: tuple[torch.Tensor, None] = sdpa(module, query, key, value, attention_mask, **options)
        return found
    queries = query.size(2)
    causal = queries > 1 and bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if causal:  # keys beyond the queries are free places of a cache
        key, value = key[:, :, :queries], value[:, :, :queries]
    scale = query.size(3) ** -0.5 if scaling is None else scaling
    if plain:
        out = attention(query, key, value, causal=causal, softcap=softcap, scale=scale, sinks=s_aux)
    else:
        out = _attend_with_mask(query, key, value, attention_mask, causal, dropout, scale, softcap, s_aux)
    return out.transpose(1, 2).contiguous(), None


def _attend_with_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Compute attention in plain torch: with a mask or dropout, and a limit of the scores or sinks."""
    shared = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(shared, 1) for t in (key, value))
    scores = (query @ key.mT).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    lowest = torch.finfo(scores.dtype).min
    if causal and mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        mask = mask[..., : key.size(2)]
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = torch.nn.functional.dropout(scores.softmax(-1)[..., : key.size(2)], dropout)
    return weights.to(value.dtype) @ value


def _attention_layers(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if hasattr(module, "is_causal") and hasattr(module, "scaling"):
            yield name


def _patch_attention(model: Any, patches: Patches) -> None:
    library = sys.modules.get("transformers")
    if library is None or not hasattr(model, "set_attn_implementation"):
        return
    former, layers = model.config._attn_implementation, [*_attention_layers(model)]
    if former == ATTENTION or not layers:
        return
    library.AttentionInterface.register(ATTENTION, _attend)
    library.AttentionMaskInterface.register(ATTENTION, sys.modules["transformers.masking_utils"].sdpa_mask)
    model.set_attn_implementation(ATTENTION)
    into, what = (patches.replaced, "attention")
    if model.config._attn_implementation != ATTENTION:
        into, what = patches.kept, "the model does not take another attention"
    else:
        patches._undo.append(lambda: model.set_attn_implementation(former))
    into |= dict.fromkeys(layers, what)
