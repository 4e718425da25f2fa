"""Launches stand in the order in which they need each other's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample_kernels
from harness import program_of, tensor

from helion import exc
from helion._compiler.ir.grammar import MemoryAttrs, Program, Root
from helion._compiler.ir.rewrite import map_ops
from helion._compiler.ir.verifier import verify
from helion._compiler.passes.always.phases import insert_before


def _program() -> Program:
    """One grid loop that loads tensor 0 and stores tensor 1."""
    return program_of(sample_kernels.softmax, tensor(64, 100))


def _with_tensors(program: Program, names: str) -> Program:
    (first, *_) = program.tensors
    made = [
        replace(first, id=at, name=name, storage=1 + at, made=name.isupper(), source=name)
        for at, name in enumerate(names)
    ]
    return replace(program, tensors=tuple(made))


def _root(program: Program, read: int, written: int, phase: int = 0) -> Root:
    (root,) = map_ops(
        replace(program, roots=program.roots[:1]),
        lambda op: (
            replace(op, attrs=replace(op.attrs, tensor=read if op.kind == "load" else written))
            if isinstance(op.attrs, MemoryAttrs)
            else op
        ),
    ).roots
    return replace(root, phase=phase)


def test_what_reads_nothing_new_comes_first() -> None:
    program = _with_tensors(_program(), "xyAB")
    reader = _root(program, 3, 1)
    program = replace(program, roots=(reader,))
    roots = insert_before(program, reader, [_root(program, 0, 2), _root(program, 0, 3)])
    assert [root.phase for root in roots] == [1, 0, 0]


def test_what_shall_run_alone_has_a_phase_of_its_own() -> None:
    program = _with_tensors(_program(), "xyAB")
    reader, before = _root(program, 3, 1, phase=1), _root(program, 0, 1)
    program = replace(program, roots=(reader, before))
    roots = insert_before(program, reader, [_root(program, 0, 2), _root(program, 0, 3)], alone=True)
    assert [root.phase for root in roots] == [3, 2, 0, 1]


def test_what_reads_what_a_phase_writes_comes_behind_it() -> None:
    program = _with_tensors(_program(), "xyABC")
    first, reader = _root(program, 0, 2), _root(program, 4, 1, phase=1)
    program = replace(program, roots=(reader, first))
    copies = [_root(program, 2, 3), _root(program, 0, 4)]
    roots = insert_before(program, reader, copies)
    # the copy of x, what computes A, the copy of A, and the reader
    assert [root.phase for root in roots] == [3, 1, 2, 0]


def test_what_is_written_behind_the_reader_is_not_waited_for() -> None:
    program = _with_tensors(_program(), "xyA")
    reader, later = _root(program, 2, 1), _root(program, 1, 0, phase=1)
    program = replace(program, roots=(reader, later))
    roots = insert_before(program, reader, [_root(program, 0, 2)])
    assert [root.phase for root in roots] == [1, 2, 0]


def test_the_verifier_finds_what_is_read_before_it_is_written() -> None:
    program = _with_tensors(_program(), "xyA")
    made = map_ops(
        program,
        lambda op: (
            replace(op, attrs=replace(op.attrs, tensor=2 if op.kind == "load" else 1))
            if isinstance(op.attrs, MemoryAttrs)
            else op
        ),
    )
    with pytest.raises(exc.VerifierError, match="phase 0 reads A, which no earlier phase writes"):
        verify(made, "test")
