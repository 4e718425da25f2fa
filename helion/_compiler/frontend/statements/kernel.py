"""The walk over a whole kernel."""

from __future__ import annotations

import ast

from .... import exc
from ..walk.scope import Raised, Return, Scope, UserError, Walk, call
from ..walk.shared_memory import settle_storages
from .grid_loops import is_grid_loop
from .launches import walk_host


def walk_kernel(walk: Walk) -> None:
    """Walk the kernel's body."""
    function = walk.kernel_frame.source.node
    assert isinstance(function, ast.FunctionDef)
    s = Scope(walk, walk.kernel_frame)
    s.t.call = lambda called, args: call(s, called, args, {}, s.node or function)
    try:
        walk_host(s, function.body)
        if walk.open_barrier is not None:
            s.node = walk.open_barrier
            raise exc.BarrierOnlyAllowedAtTopLevel()
    except Return:
        walk.skipped = walk.skipped or any(_has_loops(walk, statement) for statement in function.body)
    except Raised:
        walk.skipped = True
    except UserError as user:
        raise user.error from None
    except exc.Base as error:
        raise error.at(s.location()) from None
    finally:
        settle_storages(walk)


def _has_loops(walk: Walk, statement: ast.stmt) -> bool:
    s = Scope(walk, walk.kernel_frame)
    return any(is_grid_loop(s, part) for part in ast.walk(statement) if isinstance(part, ast.stmt))
