"""The formula of the scores, and the masks that are bands of keys."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ....._compiler.ir.grammar import Op, Operand, Value
from ....._shapes import Number
from ...plan.attention.magnitude import LARGEST_FLOAT, ORDINARY, largest
from ...plan.attention.records import Band, Formula
from ...plan.epilogue import MAX_NUMBERED, Constant, constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED, Reference
from .band import (
    band_of,
    chunk_of_mask,
    every_query_sees,
    joined,
    prefixed_band_of,
    reached_keys,
    shows_whole_chunks,
    whole_where_empty,
)
from .formula import FormulaReader
from .loops import Loops
from .operands import stored_keys
from .ranges import LoadedRange, ends_of_loop, needed_terms, range_of
from .values import by_number, is_lowest, is_minus_infinity, name_of_op, number_of

PRODUCT = "product"


def scores_of(loops: Loops, scores: Operand, prefixes: bool) -> Scores:
    """Return the formula of the scores, in which masks by a number stay that a score may be below.

    Bands have ``prefixes``, and chunks, unless queries see keys after theirs.
    """
    for chunks in (True, False) if prefixes else (False,):
        for by_numbers in (True, False):
            found = Scores(loops, scores, prefixes, by_numbers, chunks)
            if found.above_masks or not by_numbers:
                break
        if not found.band.chunk or (shows_whole_chunks(found.band) and found.range == LoadedRange()):
            break
    return found


class Scores:
    """The formula of the scores, without the masks by bands and without a factor of q @ k.T.

    Masks set scores to minus infinity, or ``by_numbers``. The operations after a mask must keep that: products with
    positive numbers, roundings, and sums.
    """

    def __init__(self, loops: Loops, scores: Operand, prefixes: bool, by_numbers: bool, chunks: bool) -> None:
        self.loops, self.band, self.range = loops, Band(), LoadedRange()
        self.reader = FormulaReader(loops, (PRODUCT,), loops.keys, "scores")
        product = loops.first.result
        self.reader.known[product.number] = self.reader.rounded(PRODUCT, product.dtype)
        self.by_numbers, self.prefixes, self.chunks = by_numbers, prefixes, chunks
        self.above_masks = True
        """True if no score is as low as a mask by a number, so that the mask's weights are zero where a query sees any key."""
        self.lowest: dict[int, float] = {}
        """By the number of a mask's result: the number that hides scores, if that is finite."""
        self.hidden: dict[int, Operand] = {}
        """By the number of a mask's result: the scores that it hides."""
        self.replaced: dict[int, tuple[Number, Operand]] = {}
        """By the number of a mask's result: a number of a launch, and what replaces all scores where that is 0."""
        self.factor = 1.0
        """The factor of masked scores after the masks that are found so far."""
        self.added: list[Operand] = []
        """The number that is added to masked scores."""
        self._find_masks(scores)
        for number, value in reversed(self.hidden.items()):
            score = self.reader.read(value)
            self.above_masks &= self._is_above(score, self.lowest.get(number, -math.inf))
            self.reader.known[number] = self._shown(number, score)
        for each in self.added if self.lowest else ():
            self.above_masks &= self._is_above(self.reader.read(each), max(self.lowest.values()))
        self.scale = 1.0
        self.scale, value = self._scaled(scores)
        score = self.reader.read(value)
        if isinstance(score, Constant) or not self.reader.reads(score, PRODUCT):
            raise Refusal("scores that do not depend on q @ k.T are not implemented")
        formula, numbers = self.reader.formula({"score": score})
        self.formula = replace(formula, value=numbers["score"])

    def _find_masks(self, value: Operand) -> None:
        while True:
            made = self.loops.stripped(value)
            if made is None or made is self.loops.first:
                return
            following = self._masked(made) or self._kept(made)
            if following is None:
                return
            value = following

    def _masked(self, made: Op) -> Operand | None:
        """Return the scores that a mask by a band, or by loaded integers of queries, hides, and add these."""
        if name_of_op(made) != "where":
            return None
        condition, one, other = made.operands
        seen = not is_lowest(self.loops, one)
        if not seen:
            one, other = other, one
        found = self._visible(condition, seen) if is_lowest(self.loops, other) else None
        if found is None:
            return self._bounded(condition, seen, one) if is_minus_infinity(self.loops, other) else None
        band, loaded = found
        if not self._is_infinite(other):
            if not self.by_numbers:
                return None
            lowest = number_of(self.loops, other)
            assert isinstance(lowest, (int, float))
            self.lowest[made.result.number] = lowest
            if not self._is_shown(band, loaded):
                self._replace(made, (one, other), band, loaded)
                return None
        self.band, self.range = band, loaded
        self.hidden[made.result.number] = one
        return one

    def _replace(self, made: Op, scores: tuple[Operand, Operand], band: Band, loaded: LoadedRange) -> None:
        """Take the band of a first mask by a number, if that is empty for all queries or none: the number replaces all scores
        in launches in which it is empty. Masks of these scores stay in the formula."""
        plain = self.band.is_whole and loaded == LoadedRange()
        found = whole_where_empty(self.loops, band, self._keys()) if plain else None
        if found is not None:
            self.band, shown = found
            self.hidden[made.result.number], other = scores
            self.replaced[made.result.number] = shown, other

    def _shown(self, number: int, score: Reference) -> Reference:
        """Return the scores that mask ``number`` hides, or what replaces them in some launches."""
        if number not in self.replaced:
            return score
        shown, other = self.replaced[number]
        source = self.reader.number(f"shown_{number}", shown)
        seen = self.reader.step("ne", (source, constant(0.0)))
        return self.reader.step("where", (seen, score, self.reader.read(other)))

    def _is_above(self, score: Reference, lowest: float) -> bool:
        """Return whether no score is near a mask, nor what is added to it. Numbers of a launch, and of a head, are ordinary ones."""
        if isinstance(score, Constant) or lowest == -math.inf:
            return True
        formula, numbers = self.reader.formula({"score": score})
        return largest(replace(formula, value=numbers["score"]), MAX_NUMBERED, ORDINARY) < -lowest / 4

    def _keys(self) -> int:
        return reached_keys(self.loops, stored_keys(self.loops))

    def _is_infinite(self, value: Operand) -> bool:
        """Return whether a mask's number is minus infinity, or becomes that by a factor."""
        number = number_of(self.loops, value)
        return isinstance(number, (int, float)) and number * self.factor < -LARGEST_FLOAT

    def _bounded(self, condition: Operand, seen: bool, scores: Operand) -> Operand | None:
        """Return the scores that a mask hides, if a part of its condition is a band, and add that. The mask stays in the
        formula."""
        joint = self.band
        for term in needed_terms(self.loops, condition, seen):
            joint = self._joined(joint, *term) or joint
        if joint == self.band:
            return None
        self.band = joint
        return scores

    def _joined(self, band: Band, condition: Operand, seen: bool) -> Band | None:
        """Return the keys of a band that a condition shows, or None if these are no band."""
        found = band_of(self.loops, condition, seen)
        if found is None and self.prefixes:
            found = prefixed_band_of(self.loops, condition, seen)
        if found is None and self.chunks and (chunk := chunk_of_mask(self.loops, condition, seen)):
            found = Band(chunk=chunk)
        if found is None or ((found.prefix or band.prefix) and found.last is not None and band.last is not None):
            return None
        return joined(self.loops, band, found)

    def _visible(self, condition: Operand, seen: bool) -> tuple[Band, LoadedRange] | None:
        """Return the band and the range of what is visible so far and by a condition, or None if it is neither of both."""
        band, loaded = self.band, self.range
        for term, wanted in needed_terms(self.loops, condition, seen):
            joint = self._joined(band, term, wanted)
            if joint is not None:
                band = joint
                continue
            of_query = range_of(self.loops, term, wanted)
            both = None if of_query is None else loaded.joined(of_query)
            if both is None:
                return None
            loaded = both
        return band, loaded

    def _is_shown(self, band: Band, loaded: LoadedRange) -> bool:
        """Return whether the number of hidden scores does not matter.

        Every query sees a key then. Or the loop ends with the keys of a tile's queries: results of queries without keys
        depend on the size of tiles in any case.
        """
        if loaded == LoadedRange():
            return every_query_sees(self.loops, band, self._keys())
        ends = ends_of_loop(self.loops)
        return ends.begins is not None and ends.ends is not None

    def _kept(self, made: Op) -> Operand | None:
        """Return the operand whose minus infinity an operation keeps."""
        name = name_of_op(made)
        if name == "cast" and (made.result.dtype in ROUNDED or made.result.dtype == torch.float32):
            return made.operands[0]
        if name in ("mul", "div"):
            one, number = by_number(made)
            if isinstance(number, Value) or not number > 0:
                return None
            self.factor *= number if name == "mul" else 1.0 / number
            return one
        if name in ("add", "sub"):
            terms = made.operands[:1] if name == "sub" else made.operands
            kept = next((each for each in terms if self._has_product(each)), None)
            self.added += [each for each in made.operands if kept is not None and each is not kept]
            return kept
        return None

    def _has_product(self, value: Operand) -> bool:
        made = self.loops.stripped(value)
        return made is not None and (made is self.loops.first or any(map(self._has_product, made.operands)))

    def _bare(self, value: Operand) -> Op | None:
        """Return the op that makes a value, without views and the masks found."""
        made = self.loops.stripped(value)
        while made is not None and made.result.number in self.hidden and made.result.number not in self.replaced:
            made = self.loops.stripped(self.hidden[made.result.number])
        return made

    def _scaled(self, value: Operand) -> tuple[float, Operand]:
        """Return the positive number that scores in fp32 are multiplied by at last, and the value without it."""
        made = self._bare(value)
        if made is None or made.result.dtype != torch.float32 or name_of_op(made) not in ("mul", "div"):
            return 1.0, value
        one, number = by_number(made)
        if isinstance(number, Value) or not isinstance(one, Value) or not number > 0 or one.dtype != torch.float32:
            return 1.0, value
        return (float(number) if name_of_op(made) == "mul" else 1.0 / number), one


def may_be_infinite(formula: Formula) -> bool:
    """Return whether a formula may give minus infinity: it has infinite constants, or reads numbers."""
    infinite = any(
        isinstance(each, Constant) and math.isinf(float(each.text))
        for made in formula.instructions
        for each in made.arguments
    )
    return infinite or bool(formula.sources)
