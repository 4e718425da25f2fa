"""Host code that asks torch for shapes does not import torch's compiler, and leaves it as it is."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from helion._compiler.frontend.host import untraced_meta

CALLS = """
    torch.logsumexp(x, 1); torch.softmax(x, 1); F.log_softmax(x, -1); torch.sigmoid(x); torch.tanh(x); F.relu(x); F.gelu(x); F.silu(x)
    F.leaky_relu(x); F.elu(x); F.selu(x); F.celu(x); F.softplus(x); F.softsign(x); F.logsigmoid(x); F.hardtanh(x); F.relu6(x)
    F.hardsigmoid(x); F.hardswish(x); F.mish(x); F.glu(x, 1); F.softmin(x, 1); F.threshold(x, 1, 2); F.prelu(x, v)
    F.layer_norm(x, [6]); F.rms_norm(x, [6]); F.group_norm(x, 2); F.batch_norm(x, v, v); F.normalize(x); F.linear(x, sq, v)
    F.mse_loss(x, y); F.l1_loss(x, y); F.smooth_l1_loss(x, y); F.huber_loss(x, y); F.kl_div(x, y); F.cosine_similarity(x, y)
    F.pairwise_distance(x, y); F.pad(x, (1, 1)); F.scaled_dot_product_attention(x3, x3, x3); F.softshrink(x); F.tanhshrink(x)
    torch.sinc(x); torch.logit(x); torch.xlogy(x, y); torch.special.entr(x); torch.logaddexp(x, y); torch.lerp(x, y, 0.5)
    torch.addcmul(x, x, y); torch.heaviside(x, y); torch.isclose(x, y); x.std(1); x.var(1); torch.var_mean(x, 1); x.norm(); x.norm(2, 1)
    torch.linalg.norm(x, dim=1); torch.linalg.vector_norm(x, dim=1); x.count_nonzero(1); x.nansum(1); x.nanmean(1); x.median(1)
    x.cumsum(1); x.cumprod(1); x.logcumsumexp(1); x.diff(); x.dist(y); x.topk(2); x.sort(); torch.trace(sq); x.nan_to_num(); x.square()
    x.roll(1, 1); x.flip(1); x.rot90(); x.tril(); torch.block_diag(x, y); torch.meshgrid(v, v, indexing="ij"); x.gather(1, i)
    x.masked_fill(b, 0.0); torch.einsum("ij,jk->ik", x, sq); torch.addmm(x, x, sq); torch.kron(x, y); torch.cdist(x, y); torch.cov(x)
    x + y; x * 2; x / y; x // y; x % 2; x**2; x @ sq; x == y; -x; torch.where(b, x, 0.0); x.clamp(0, 1); x.amax(1); x.mean(1); x.prod(1)
"""

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
import helion
import helion.language as hl

@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def kernel(x, y, v, sq, x3, i, b):
{calls}
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2
    return out

x, y = torch.rand(4, 6), torch.rand(4, 6)
index, chosen = torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.bool)
bound = kernel.bind((x, y, torch.rand(6), torch.rand(6, 6), torch.rand(2, 4, 6), index, chosen))
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
COMPILED = """
compiled = torch.compile(lambda x: F.gelu(x).logsumexp(1), backend="eager")
torch.testing.assert_close(compiled(x), F.gelu(x).logsumexp(1))
from helion._compiler.frontend.host import untraced_meta
print(len(untraced_meta._GIVEN))
"""


# importing the compiler takes as long as all else
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.prove)])
def test_host_code_does_not_import_torch_s_compiler(compiles: bool, tmp_path: Path) -> None:
    calls = [call.strip() for line in CALLS.strip().splitlines() for call in line.split(";")]
    assert len(calls) > 90
    lines = "".join(f"    found = {call}\n" for call in calls)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(calls=lines) + (COMPILED if compiles else ""))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == (["[]", "0"] if compiles else ["[]"])


def test_other_threads_may_import_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    added = types.ModuleType("added_meanwhile")

    class Importing(str):
        """A name whose comparison imports a module, as another thread does between two of them."""

        def startswith(self, *given: Any) -> bool:
            monkeypatch.setitem(sys.modules, added.__name__, added)
            return super().startswith(*given)

    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setitem(sys.modules, Importing("importing"), types.ModuleType("importing"))
    untraced_meta.keep_dynamo_out()
    assert sys.modules.pop(added.__name__) is added


def test_names_of_modules_are_read_again_after_an_import_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Counted(str):
        def startswith(self, *given: Any) -> bool:
            read.append(self)
            return super().startswith(*given)

    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setitem(sys.modules, Counted("counted"), types.ModuleType("counted"))
    for _ in range(4):
        untraced_meta.keep_dynamo_out()
    before = len(read)
    untraced_meta.keep_dynamo_out()
    assert before and len(read) == before
    monkeypatch.setitem(sys.modules, "another", types.ModuleType("another"))
    untraced_meta.keep_dynamo_out()
    assert len(read) == before + 1
