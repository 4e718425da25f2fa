"""Models whose modules ``helion.ops.patch`` replaces: results, losses of training, and what stays as it is."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from helion import exc, ops
from helion.ops import patching


class PlainRMSNorm(torch.nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(columns))
        self.variance_epsilon = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(
            x.dtype
        )


class RMSNormFromOne(torch.nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(columns))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1 + self.weight.float())).to(x.dtype)


class CentredRMSNorm(PlainRMSNorm):
    """A norm of another kind with the name of this one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class Gated(torch.nn.Module):
    def __init__(self, columns: int, activation: torch.nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(columns, 2 * columns, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(2 * columns, columns)
        self.act_fn = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return found


class Joined(torch.nn.Module):
    """A gated layer whose gate is the first half of one projection."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Linear(columns, 4 * columns, bias=False)
        self.down_proj, self.activation_fn = torch.nn.Linear(2 * columns, columns), torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        found: torch.Tensor = self.down_proj(up * self.activation_fn(gate))
        return found


class Dropping(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(41, 24)
        self.norms = torch.nn.ModuleList(
            [PlainRMSNorm(24), RMSNormFromOne(24), torch.nn.LayerNorm(24), torch.nn.RMSNorm(24)]
        )
        activations = torch.nn.SiLU(), torch.nn.GELU(), torch.nn.GELU(approximate="tanh")
        self.layers = torch.nn.ModuleList([*(Gated(24, each) for each in activations), Joined(24)])
        self.head = torch.nn.Linear(24, 41)
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        found: torch.Tensor = self.loss(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return found


REPLACED = {
    **{f"norms.{i}": name for i, name in enumerate(("rms_norm", "rms_norm", "layer_norm", "rms_norm"))},
    **{f"layers.{i}": name for i, name in enumerate(("swiglu", "geglu", "geglu", "swiglu"))},
    "loss": "cross_entropy",
}


def _models() -> tuple[Model, Model]:
    torch.manual_seed(0)
    model = Model()
    return model, copy.deepcopy(model)


def _losses(model: torch.nn.Module, steps: int) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        loss = model(torch.randint(41, [3, 7]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_results_are_equal() -> None:
    plain, patched = _models()
    patches = ops.patch(patched)
    assert (patches.replaced, patches.kept) == (REPLACED, {})
    tokens = torch.randint(41, [2, 5])
    torch.testing.assert_close(patched(tokens), plain(tokens))


@pytest.mark.prove
def test_losses_of_training_are_equal() -> None:
    plain, patched = _models()
    ops.patch(patched)
    expected, found = _losses(plain, 50), _losses(patched, 50)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=0)


def test_undone() -> None:
    plain, patched = _models()
    patches = ops.patch(patched, kinds=("norms",))
    assert patches.replaced == {name: op for name, op in REPLACED.items() if name.startswith("norms")}
    assert patched.norms[0].forward.__func__ is patching._rms_norm
    patches.undo()
    assert not any("forward" in vars(module) for module in patched.modules())
    tokens = torch.randint(41, [2, 5])
    assert torch.equal(patched(tokens), plain(tokens))
    with pytest.raises(KeyError), ops.patch(patched, kinds=("norms",)) as again:
        assert again.replaced == patches.replaced
        assert "forward" in vars(patched.norms[0])
        raise KeyError
    assert not any("forward" in vars(module) for module in patched.modules())


@pytest.mark.prove
def test_one_graph() -> None:
    plain, patched = _models()
    ops.patch(patched)
    tokens = torch.randint(41, [2, 5])
    compiled = torch.compile(patched, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), plain(tokens))


def test_what_differs_stays() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {
            "centred": CentredRMSNorm(24),
            "relu": Gated(24, torch.nn.ReLU()),
            "dropping": Dropping(24, torch.nn.SiLU()),
            "float64": torch.nn.LayerNorm(24, dtype=torch.float64),
            "square": torch.nn.LayerNorm([4, 6]),
            "meta": torch.nn.RMSNorm(24, device="meta"),
            "plain": torch.nn.LayerNorm(24, elementwise_affine=False),
        }
    ).eval()
    patches = ops.patch(model)
    assert patches.replaced == {}
    assert patches.kept == {
        "centred": "results differ from rms_norm",
        "relu": "results differ from swiglu and geglu",
        "dropping": "results differ from swiglu and geglu",
        "float64": "it has parameters of torch.float64; operators compute in fp32",
        "square": "its weight has 2 dimensions",
        "meta": "its parameters have no values; move the model to its device first",
    }
    assert not any(module.training for module in model.modules())
    again = ops.patch(torch.nn.ModuleList([torch.nn.LayerNorm(24)]))
    assert again.replaced == {"0": "layer_norm"}


def test_patched_twice() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(24))
    assert ops.patch(model).replaced == {"0": "layer_norm"}
    assert ops.patch(model).kept == {"0": "its forward is replaced already"}


def test_a_loss_of_other_forms_is_torchs() -> None:
    loss = torch.nn.CrossEntropyLoss()
    logits, labels = torch.randn(3, 7, 5), torch.randint(7, [3, 5])
    expected = loss(logits, labels), loss(logits[0].T.double(), labels[0])
    assert ops.patch(loss).replaced == {"": "cross_entropy"}
    assert torch.equal(loss(logits, labels), expected[0])
    assert torch.equal(loss(logits[0].T.double(), labels[0]), expected[1])


def test_an_unknown_kind() -> None:
    with pytest.raises(
        exc.WrongOpArgument, match="'kinds' must be of norms, gated, losses, rope, attention, got 'ropes'"
    ):
        ops.patch(torch.nn.ReLU(), kinds=("ropes",))


# --- a model of transformers, by the names that matter ------------------------------------------------------------------


def _causal_loss_of_transformers(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:]
    return F.cross_entropy(logits.float().view(-1, vocab_size), shifted.reshape(-1))


_causal_loss_of_transformers.__name__ = "ForCausalLMLoss"


class Layer(torch.nn.Module):
    is_causal, scaling = True, 0.4


class Foreign(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(_attn_implementation="sdpa")
        self.layer = Layer()
        self.loss_function = _causal_loss_of_transformers

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for transformers; return the functions that are registered."""
    found: dict[str, Any] = {}
    library: Any = types.ModuleType("transformers")
    library.AttentionInterface = types.SimpleNamespace(register=lambda name, f: found.update({name: f}))
    library.AttentionMaskInterface = types.SimpleNamespace(register=lambda name, f: found.update({f"{name} mask": f}))
    masks: Any = types.ModuleType("transformers.masking_utils")
    masks.sdpa_mask = "sdpa_mask"
    sdpa: Any = types.ModuleType("transformers.integrations.sdpa_attention")
    sdpa.sdpa_attention_forward = lambda *args, **options: ("of transformers", options)
    for module in (library, masks, sdpa):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def test_a_causal_loss(registered: dict[str, Any]) -> None:
    model = Foreign()
    patches = ops.patch(model)
    assert patches.replaced == {"loss_function": "cross_entropy", "layer": "attention"}
    logits, labels = torch.randn(2, 5, 11), torch.randint(11, [2, 5])
    labels[0, 3] = -100
    expected = _causal_loss_of_transformers(logits, labels, 11)
    torch.testing.assert_close(model.loss_function(logits=logits, labels=labels, vocab_size=11), expected)
    for count in (5, torch.tensor(5)):
        found = model.loss_function(logits, labels, 11, num_items_in_batch=count)
        torch.testing.assert_close(found, expected * 7 / 5)
    patches.undo()
    assert (model.loss_function, model.config._attn_implementation) == (_causal_loss_of_transformers, "sdpa")


def _expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, softcap: Any, sinks: Any) -> torch.Tensor:
    q, k, v = q.double(), *(t.double().repeat_interleave(2, 1) for t in (k, v))
    scores = q @ k.mT * 0.4
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[None, :, None, None].expand(2, 4, q.size(2), 1)), -1)
    return (scores.softmax(-1)[..., : k.size(2)] @ v).transpose(1, 2).float()


@pytest.mark.parametrize("options", [(None, False), (2.0, False), (None, True), (2.0, True)])
def test_attention(registered: dict[str, Any], options: tuple[float | None, bool]) -> None:
    torch.manual_seed(0)
    model = Foreign()
    ops.patch(model)
    attend = registered["helion"]
    assert registered["helion mask"] == "sdpa_mask"
    q, k, v = torch.randn(2, 4, 7, 12), torch.randn(2, 2, 7, 12), torch.randn(2, 2, 7, 12)
    softcap, sinks = options[0], torch.randn(4) if options[1] else None
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    given = {"scaling": 0.4, "softcap": softcap, "s_aux": sinks}

    found, _ = attend(model.layer, q, k, v, None, **given)
    torch.testing.assert_close(found, _expected(q, k, v, causal, softcap, sinks))
    found, _ = attend(model.layer, q[:, :, :1], k, v, None, **given)  # one token sees the whole cache
    torch.testing.assert_close(found, _expected(q[:, :, :1], k, v, causal[-1:], softcap, sinks))
    padded = causal & (torch.arange(7) != 2)
    found = attend(model.layer, q, k, v, padded[None, None], **given)
    if options == (None, False):
        assert found[0] == "of transformers"
    else:
        torch.testing.assert_close(found[0], _expected(q, k, v, padded, softcap, sinks))
        added = torch.where(padded, 0.0, torch.finfo(torch.float32).min)[None, None]
        torch.testing.assert_close(attend(model.layer, q, k, v, added, **given)[0], found[0])


# --- a file of transformers with a rotation ----------------------------------------------------------------------------


def _turned(x: torch.Tensor, form: str) -> torch.Tensor:
    first, second = (x[..., ::2], x[..., 1::2]) if form == "neighbors" else x.chunk(2, -1)
    return torch.stack((-second, first), -1).flatten(-2) if form == "neighbors" else torch.cat((-second, first), -1)


class FileRotaryEmbedding(torch.nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * 10 ** -torch.linspace(0, 2, 4)
        if self.form != "once":
            angles = angles.repeat_interleave(2, -1) if self.form == "neighbors" else torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _file(monkeypatch: pytest.MonkeyPatch, form: str) -> tuple[Any, torch.nn.Module]:
    """Return the module of a file whose function rotates, and a model that it defines."""
    file: Any = types.ModuleType("file_of_transformers")

    def apply_rotary_pos_emb(
        q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1
    ) -> Any:
        cos, sin = ((torch.cat((t, t), -1) if form == "once" else t).unsqueeze(unsqueeze_dim) for t in (cos, sin))
        return tuple(t * cos + (t.flip(-1) if form == "another" else _turned(t, form)) * sin for t in (q, k))

    file.apply_rotary_pos_emb = apply_rotary_pos_emb
    file.Attention = type("Attention", (Layer,), {"__module__": file.__name__, "head_dim": 8})
    monkeypatch.setitem(sys.modules, file.__name__, file)
    model = torch.nn.Module()
    model.embedding, model.layer, model.norm = FileRotaryEmbedding(form), file.Attention(), torch.nn.RMSNorm(8)
    return file, model


@pytest.mark.parametrize("form", ["halves", "neighbors", "once"])
def test_a_rotation(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    file, model = _file(monkeypatch, form)
    former = file.apply_rotary_pos_emb
    first, second = ops.patch(model, kinds=["rope"]), ops.patch(model, kinds=["rope"])
    assert first.replaced == second.replaced == {"file_of_transformers.apply_rotary_pos_emb": "rope"}
    q, k = torch.randn(2, 3, 7, 8).requires_grad_(), torch.randn(2, 1, 7, 8)
    for positions in (torch.arange(7)[None], torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])):
        angles = model.embedding(q, positions)
        expected, found = former(q, k, *angles), file.apply_rotary_pos_emb(q, k, *angles)
        torch.testing.assert_close(found, expected)
        assert all(a.shape == b.shape for a, b in zip(found, expected, strict=True))
        given = torch.randn_like(q)
        torch.testing.assert_close(
            torch.autograd.grad(found[0], q, given), torch.autograd.grad(expected[0], q, given, retain_graph=True)
        )
    token_major = [t.transpose(1, 2) for t in (q, k)]
    found = file.apply_rotary_pos_emb(*token_major, *angles, unsqueeze_dim=2)  # left to the file's function
    torch.testing.assert_close(found, former(*token_major, *angles, unsqueeze_dim=2))
    first.undo()
    assert file.apply_rotary_pos_emb is not former
    second.undo()
    assert file.apply_rotary_pos_emb is former


def test_other_rotations_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    file, model = _file(monkeypatch, "another")
    former, name = file.apply_rotary_pos_emb, "file_of_transformers.apply_rotary_pos_emb"
    assert ops.patch(model, kinds=["rope"]).kept == {name: "results differ from rope"}
    model.embedding.forward = lambda x, position_ids: position_ids[0, 0, 0]
    reason = ops.patch(model, kinds=["rope"]).kept[name]
    assert reason.startswith("it cannot be compared: IndexError: ")
    model.embedding = None
    assert ops.patch(model, kinds=["rope"]).kept == {name: "the model has no rotary embedding of a known form"}
    assert file.apply_rotary_pos_emb is former
