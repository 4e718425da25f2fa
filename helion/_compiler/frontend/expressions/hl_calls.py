"""Calls of ``hl`` functions."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from .... import exc
from .... import language as hl
from ....language._registry import DECLARED, TAKES_FUNCTION
from ..hl.remote import ChangingPeer
from ..hl.rules import HL_RULES
from ..runtime_values import refuse_opaque
from ..walk.iterations import item_of
from ..walk.kinds import tensors_in
from ..walk.lookup import name_tensor
from ..walk.scope import Scope


def call_hl(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """Call the rule of an ``hl`` function; refuse it in code where it is not allowed."""
    refuse_opaque((args, kwargs))
    where = DECLARED[function]
    name = f"hl.{function.__qualname__}"
    if where == "loop":
        if function is hl.static_range and not s.t.on_device:
            error = exc.DeviceAPIOnHost(name=name)
            error.message += " A loop in host code takes range(...)."
            raise error
        raise exc.LoopFunctionNotInFor(name=name)
    if where == "device" and not s.t.on_device:
        if function is hl.stacktensor_like:
            raise exc.StackTensorcOnHost()
        raise exc.DeviceAPIOnHost(name=name)
    if where == "host" and s.t.on_device:
        if function is hl.specialize:
            raise exc.SpecializeOnDevice()
        if function is hl.barrier:
            raise exc.BarrierOnlyAllowedAtTopLevel()
        raise exc.NotAllowedOnDevice(what=name)
    for value in tensors_in((*args, *kwargs.values())) if s.t.on_device else ():
        name_tensor(s, value)
    if function in TAKES_FUNCTION and args and isinstance(args[0], str) and args[0].isidentifier():
        args = (s.frame.lookup(s.t, args[0]), *args[1:])
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise exc.TypeInferenceError(f"{name}: {error}.") from error
    if function is hl.signal or function is hl.Mailbox.send:
        args, kwargs = _at_changing_peer(s, function, args, kwargs, node)
    result = HL_RULES[function](s.t, *args, **kwargs)
    _note_compile_time_call(s, function, result, node)
    return result


def _at_changing_peer(
    s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``hl.signal`` or ``send``, with the tensors of a peer that a host loop around the grid
    loop counts."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    name = "to" if function is hl.signal else "peer"
    mail = given.get("self")
    channel, peer = given["channel"] if mail is None else mail.channel, given[name]
    if isinstance(channel, hl.Channel) and s.t.numbers.changes(peer) and isinstance(node, ast.expr):
        words = item_of(s, channel.words, peer, node)
        inbox = None if mail is None else item_of(s, mail.marked or mail.inbox, peer, node)
        for tensor in (words, *([] if inbox is None else [inbox])):
            name_tensor(s, tensor)
        given[name] = ChangingPeer(number=peer, words=words, inbox=inbox)
    return (), given


def _note_compile_time_call(s: Scope, function: Any, result: Any, node: ast.AST) -> None:
    """Record a call that the generated host code replaces by a constant."""
    where = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    if function is hl.register_block_size:
        s.t.registered.block_sizes[where] = result.args[0]
    elif function is hl.register_tunable:
        s.t.registered.tunable_calls[where] = result.args[0]
    elif function is hl.specialize:
        s.t.registered.specialized_calls.add(where)
