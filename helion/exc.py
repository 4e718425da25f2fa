"""Every error and warning of the product, as one table: class, base, message.

A message says what is wrong and what to do about it. When the error is about a line of the user's kernel,
the raiser passes ``location`` and an excerpt with a caret follows the message.
"""

from __future__ import annotations

import builtins
import pickle
from typing import Any, ClassVar, Protocol


class _Location(Protocol):
    def excerpt(self) -> str: ...


class Base(RuntimeError):
    """Root of everything in this module."""

    template: ClassVar[str] = "{0}"

    def __init__(self, *args: object, location: _Location | None = None, **fields: object) -> None:
        self.fields = fields
        self.location = location
        self.message = self.template.format(*args, **fields)
        super().__init__(self.message)

    def __str__(self) -> str:
        if self.location is None:
            return self.message
        return f"{self.message}\nWhile processing:\n{self.location.excerpt()}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with text, fields and location, so that it crosses between processes."""
        fields = {name: _portable(value) for name, value in self.fields.items()}
        state = {**self.__dict__, "fields": fields, "location": _portable(self.location)}
        return (_restored, (type(self), tuple(map(_portable, self.args)), state))

    def at(self, location: _Location | None) -> Base:
        """Return the error with a location, unless it already has one (the innermost line wins)."""
        if self.location is None:
            self.location = location
        return self


def _restored(kind: type[Base], args: tuple[Any, ...], state: dict[str, Any]) -> Base:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def _portable(value: Any) -> Any:
    """Return ``value``, or its ``repr`` if it cannot be pickled."""
    try:
        pickle.dumps(value)
    except Exception:  # whatever the object's own code raises
        return repr(value)
    return value


class BaseError(Base):
    """Root of the errors."""


class BaseWarning(Base):
    """Root of the warnings; printed to stderr unless the class is in ``Settings.ignore_warnings``."""


_TABLE: tuple[tuple[str, str, str], ...] = (
    # --- the decorator -------------------------------------------------------------------------------------------
    ("NamingConflict", "BaseError", "The name {name!r} is used by generated code; rename the {what} {name!r} in kernel {kernel!r}."),
    ("ClosuresNotSupported", "BaseError", "Kernel {kernel!r} closes over the local variable {name!r}; pass it as an argument, or make it a module global or hl.constexpr."),
    ("SourceChanged", "BaseError", "The source of {name!r} in {file} was changed after it was imported, so that the file differs from the code that Python runs; start the process again, or reload the module."),
    ("DecoratorAfterHelionKernelDecorator", "BaseError", "@helion.kernel must be the innermost decorator of {kernel!r}; move {decorator!r} above it."),
    ("NoTensorArgs", "BaseError", "Kernel {kernel!r} was called without a tensor argument, with {got}; at least one argument must be a tensor or a torch.device, so that the device is known."),
    ("UnsupportedTensor", "BaseError, TypeError", "Kernel {kernel!r}: argument {name!r} is {what}; {remedy}."),
    ("UnsupportedTracer", "BaseError", "Kernel {kernel!r} was called {where}, where its effects would not be recorded. Wrap the call in {remedy}, and call that."),
    ("InPlaceOnGradient", "BaseError", "Kernel {kernel!r} writes into {name!r}, {what}, and autograd would not see the write. Call it under torch.no_grad(), pass {name}.detach(), or wrap it in a torch.autograd.Function that calls mark_dirty."),
    ("WrongOpArgument", "BaseError, ValueError", "helion.ops.{op}: argument {argument!r} must be {expected}, got {got}."),
    ("NoPlaceInGraph", "UnsupportedTracer", "Kernel {kernel!r} cannot be part of a torch graph (torch.compile, torch.export, make_fx, vmap): {why}; {remedy}."),
    ("NoGradient", "BaseError", "A gradient of kernel {kernel!r} with respect to {name!r} is wanted, but the kernel has no backward. Give it one with {remedies}, or run it under torch.no_grad() or on {name}.detach()."),
    ("WriteUnknownToGraph", "BaseError", "Kernel {kernel!r} wrote into {name!r}, but did not write it when the surrounding graph was compiled: a value that this depends on has changed since, such as a global. Compile again, after torch.compiler.reset()."),
    ("TracedArgNotSupported", "BaseError", "{0}"),
    ("GraphModuleUnsupportedOps", "BaseError", "The torch.fx.GraphModule {name!r} contains {ops}; only function calls on its inputs can be traced. Inline submodules and make their parameters inputs."),
    # --- where things may be called ------------------------------------------------------------------------------
    ("NotInsideKernel", "BaseError", "{name} was called outside of a kernel; is the @helion.kernel decorator missing?"),
    ("DeviceAPIOnHost", "BaseError", "{name} may only be called in device code; move it inside an hl.tile or hl.grid loop."),
    ("NotAllowedOnDevice", "BaseError", "{what} is not allowed in device code (inside an hl.tile or hl.grid loop); move it to the host code around the loop."),
    ("NotAllowedInHelperFunction", "BaseError", "{what} is not allowed in a combine function, which may only compute with its arguments and constants."),
    ("InvalidJaggedTileUsage", "BaseError", "hl.jagged_tile: {0}"),
    ("RegisterTunableArgTypes", "BaseError", "hl.register_tunable takes a string literal and a fragment such as helion.autotuner.PowerOfTwoFragment(1, 64), got {got}."),
    ("TunableTypeNotSupported", "BaseError", "The tunable {name!r} has values of type {got}; a tunable is an int, a float or a bool."),
    ("TunableNameConflict", "BaseError", "The tunable {name!r} has the name of a config key or of another tunable; choose another."),
    ("ConfigSpecFragmentWithSymInt", "BaseError", "The fragment {fragment} has bounds that are known only at run time; give it constants, or mark them with hl.specialize in host code."),
    ("StackTensorcOnHost", "BaseError", "hl.stacktensor_like was called in host code; call it inside an hl.tile or hl.grid loop, on pointers that are loaded there."),
    ("StackTensorDevPtrOnHost", "BaseError", "The second argument of hl.stacktensor_like is the host tensor {name!r}; load the pointers first, as in `hl.stacktensor_like(like, {name}[tile])`."),
    ("StackTensorExampleOnDevice", "BaseError", "The first argument of hl.stacktensor_like must be a host tensor, whose shape, strides and dtype the tensors of the stack have, got {got}; did you forget to pass the tensor itself, not a tile of it?"),
    ("StackTensorDevPtrDtype", "BaseError", "The pointers of hl.stacktensor_like must be torch.uint64, got {got}; make them with torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)."),
    ("AtomicOnDeviceTensor", "BaseError", "{name} works on host tensors, got a device value; pass the tensor itself, not a tile of it."),
    ("BarrierOnlyAllowedAtTopLevel", "BaseError", "hl.barrier() must be between two device loops at the top level of the kernel."),
    ("BarrierRequiresPersistent", "BaseError", "hl.barrier() needs a persistent pid_type on this backend, got {pid_type!r}."),
    ("BreakpointInDeviceLoopRequiresInterpret", "BaseError", "breakpoint() is in device code, which is compiled; run it with HELION_INTERPRET=1 (or ref_mode=helion.RefMode.EAGER) to stop in its source, or with TRITON_INTERPRET=1 to stop in the generated kernel."),
    ("NestedKernelCallsNotSupported", "BaseError", "Kernel {name!r} is called from inside another kernel; put the shared code into a plain function and call that from both."),
    ("CudaInForkedProcess", "BaseError", "Kernel {kernel!r} is called with tensors of a GPU in a process that was forked after CUDA was initialized, where CUDA cannot be used; start processes by \"spawn\" (multiprocessing.get_context('spawn'), DataLoader(multiprocessing_context='spawn')), or pass CPU tensors."),
    ("NoDeviceLoopsInKernel", "BaseError", "Kernel {kernel!r} has no device loop; put the computation into a `for tile in hl.tile(...)` loop."),
    ("EmptyDeviceLoopAfterDCE", "BaseError", "The device loop of kernel {kernel!r} stores nothing, so there is nothing to compute; assign the result, as in `out[tile] = value`."),
    # --- loops ---------------------------------------------------------------------------------------------------
    ("EarlyReturnNotAllowedOnDevice", "NotAllowedOnDevice", "A return statement of {function!r} under a branch or a loop on device values is not allowed in device code (inside an hl.tile or hl.grid loop); assign the value to one variable in every branch, and return that variable at the end of the function."),
    ("JumpNotAllowedOnDevice", "NotAllowedOnDevice", "A {what} statement is not allowed in device code (inside an hl.tile or hl.grid loop); mask lanes with torch.where, or write a while loop with a condition."),
    ("LoopFunctionNotInFor", "BaseError", "{name} must be the iterable of a for loop, as in `for tile in {name}(...):`, with nothing around it; tile.id is the number of a tile."),
    ("NestedGridLoop", "BaseError", "A grid loop ({name} outside of any device loop) must be a statement of host code (of the kernel, of a branch or of a loop), not under {parent}."),
    ("NestedDeviceLoopsConflict", "BaseError", "This loop reuses block size {block!r}, which an enclosing loop already iterates over; register another block size for it."),
    ("TopLevelStatementBetweenLoops", "BaseError", "Statements between two device loops are not allowed; move this one before the first loop or after the last."),
    ("LoopDependencyError", "BaseError", "Tensor {name!r} is used by two device loops, at least one of which writes it, without a barrier between them; call hl.barrier() or split the kernel."),
    ("FailedToUnpackTile", "BaseError", "hl.tile with a scalar bound gives one tile, which cannot be unpacked into {count} names; write hl.tile([a, b]) for several dimensions."),
    ("FailedToUnpackTupleAssign", "BaseError", "Cannot unpack {value} into {count} names."),
    ("OverpackedTile", "BaseError", "hl.tile([x]) gives a sequence of one tile; write hl.tile(x), or unpack it with `for (tile,) in hl.tile([x])`."),
    ("InvalidTileRange", "BaseError", "The range of hl.tile begins at {begin} but ends at {end}; begin must not exceed end."),
    ("TileOfTile", "BaseError", "A tile cannot be the bound of another tile; use hl.tile(tile.begin, tile.end)."),
    ("IncorrectTileUsage", "BaseError", "A tile was used {how}; a tile can be an index, a size, or give .index, .begin, .end, .id, .count and .block_size. Use tile.index for the numbers it covers."),
    # --- subscripts ----------------------------------------------------------------------------------------------
    ("RankMismatch", "BaseError", "Expected {expected} indices for {what}, got {got}; {remedy}."),
    ("InvalidIndexingType", "BaseError", "{got} cannot be used as an index; use a tile, an integer, a slice, None or an integer tensor, such as index.to(torch.int64)."),
    ("InvalidSequenceSubscription", "BaseError", "A sequence in device code can only be indexed by a constant integer, got {got}."),
    ("DataDependentOutputShapeNotSupported", "BaseError", "{name} gives a result whose shape depends on the data, which has no tile; use torch.where or an extra_mask instead."),
    # --- shapes and types ----------------------------------------------------------------------------------------
    ("ShapeMismatch", "BaseError", "Shapes do not match: {lhs} and {rhs}{detail}."),
    ("DotBatchDimensionMismatch", "ShapeMismatch", "The batch dimensions of a matmul differ: {lhs} and {rhs}{detail}."),
    ("TypeInferenceError", "BaseError", "{0}"),
    ("ConditionNotScalar", "TypeInferenceError", "The condition of `{statement}` has the shape {shape}, but a branch needs one value for the whole tile; use torch.where, or reduce it to a scalar."),
    ("ControlFlowTensorMismatch", "BaseError", "Variable {name!r} is {before} before the {construct} and {after} at its end; both must have the same shape and dtype. Convert one of them."),
    ("NumberBecomesTensor", "ControlFlowTensorMismatch", "Variable {name!r} is {before} before the {construct} and {after} at its end; begin with a tile of that shape: {name} = {remedy}."),
    ("CantCombineTypesInControlFlow", "BaseError", "Variable {name!r} is {before} on one path through the {construct} and {after} on the other; make both the same kind of value."),
    ("UndefinedVariable", "BaseError", "The name {name!r} is not defined{detail}."),
    # --- host and device -----------------------------------------------------------------------------------------
    ("HostTensorDirectUsage", "BaseError", "The host tensor {name!r} is used directly in device code ({how}); {remedy}."),
    ("CannotModifyHostVariableOnDevice", "BaseError", "The host variable {name!r} cannot be assigned inside a device loop; store into it with `{name}[tile] = value`, or use another name."),
    ("CannotReadDeviceVariableOnHost", "BaseError", "{name!r} is a device value and cannot be read on the host; store it into a tensor inside the loop, as in `out[tile] = {name}`."),
    ("DeviceTensorSubscriptAssignmentNotAllowed", "BaseError", "{name!r} is a device value, which has no memory to assign into; use torch.where, or store into a host tensor."),
    ("RequiresTensorInAssignment", "BaseError", "Only a tensor or a number can be stored into a tensor, got {got}."),
    ("NonTensorSubscriptAssign", "BaseError", "Item assignment works on tensors only, got {got}."),
    ("CantReadOnDevice", "BaseError", "{what} cannot be read in device code; pass it as a kernel argument."),
    ("ShapeSpecializingCall", "BaseError", "{what} needs a size that is known when the kernel is compiled; mark it with hl.specialize in host code."),
    ("ShapeSpecializingAllocation", "BaseError", "The size {size} of a device tensor must be a tile, a block size or a compile-time constant; mark it with hl.specialize in host code."),
    ("SpecializeOnDevice", "BaseError", "hl.specialize must be called in host code, before the device loop."),
    ("SpecializeArgType", "BaseError", "hl.specialize takes sizes, strides and numbers that come from the arguments, got {got}; fix a size of another tensor by a view, as in x.view(-1, 2)."),
    ("ChangesInHostLoop", "SpecializeArgType", "{name!r} changes from one iteration of a host loop to the next, so that it is not known when the kernel is compiled; branch on it in device code, or unroll the loop by hand."),
    ("KnownAtRunTime", "TypeInferenceError", "The value of {what} is known only when the host code runs{because}, and the kernel depends on it; use it in host code only, pass it as an argument, or write int(...), float(...) or bool(...) around what gives a number."),
    ("InvalidReductionDim", "BaseError", "Dimension {dim} does not exist in a value of shape {shape}."),
    ("MultipleReductionDims", "InvalidReductionDim", "{0}"),
    ("ReductionDimInvalidForShape", "InvalidReductionDim", "{0}"),
    ("ReductionOnNonTile", "TypeInferenceError", "{0}"),
    ("UnsupportedSplitOperation", "BaseError", "{name} is not supported in device code; use hl.split, or load the parts separately."),
    # --- statements ----------------------------------------------------------------------------------------------
    ("StatementNotSupported", "BaseError", "{statement} is not supported in {where} code{remedy}."),
    ("GlobalMutation", "StatementNotSupported", "Device code changes the global {name!r}, which every call would see, and how often depends on the config; change it in host code, or store into a tensor."),
    ("ClosureMutation", "StatementNotSupported", "Device code changes {name!r}, which a function closes over, and how often depends on the config; change it in host code, or store into a tensor."),
    ("DeviceLoopElseBlock", "StatementNotSupported", "A device loop may not have an else block; move its statements after the loop."),
    ("UnsupportedPythonType", "BaseError", "A value of type {got} is not supported in {where} code."),
    ("AssignmentMultipleTargets", "BaseError", "Assigning to several targets at once (a = b = value) is not supported in device code; write two assignments."),
    ("InvalidAssignment", "BaseError", "{target} cannot be assigned in device code."),
    ("StarredArgsNotSupportedOnDevice", "BaseError", "Star arguments are not supported in device code; write the arguments out."),
    ("InvalidAPIUsage", "BaseError", "{0}"),
    ("InvalidDeviceForLoop", "BaseError", "A device loop cannot iterate over {got}; use hl.tile, hl.grid, range, or a tuple or list of known length."),
    # --- lowering ------------------------------------------------------------------------------------------------
    ("BackendUnsupported", "BaseError", "{what} is not supported by the {backend} backend{remedy}."),
    ("InductorLoweringError", "BaseError", "{0}"),
    ("UnsupportedTorchFunction", "InductorLoweringError, BackendUnsupported", "{name} is not supported in device code{remedy}."),
    ("TorchOpTracingError", "BaseError", "{name} was refused by torch: {reason}"),
    ("InternalError", "BaseError", "Internal error of the compiler in step {step!r}: {reason}. Please report it with the kernel."),
    ("BackendImplementationMissing", "BackendUnsupported", "{0}"),
    ("MissingEnableTile", "BackendUnsupported", "{0}"),
    ("CuteUnsupported", "BackendUnsupported", "Kernel {kernel!r} cannot be compiled by the cute backend on {target}: {reason}. Use backend='triton', or backend='auto', which falls back to Triton where cute refuses."),
    ("CuteError", "BaseError", "The cute backend failed on kernel {kernel!r} with {decorator}: {reason}\nThe generated source is at {path}"),
    ("CuteBackendUnavailable", "BackendUnsupported", "{0}"),
    ("VerifierError", "InternalError", "The device IR is malformed after step {step!r}: {reason}"),
    ("InputTensorNumelExceedsIndexType", "BaseError", "Tensor {name!r} has {numel} elements: {dtype} offsets cannot address them all and a tile beyond the last; decorate the kernel with index_dtype=torch.int64."),
    ("IndexOffsetOutOfRangeForInt32", "BaseError", "Offsets into tensor {name!r} reach {offset}, and a tile may reach beyond the range of int32; decorate the kernel with index_dtype=torch.int64."),
    ("LoopBoundOutOfRangeForInt32", "IndexOffsetOutOfRangeForInt32", "A loop up to {end}{step} counts beyond the range of int32; decorate the kernel with index_dtype=torch.int64."),
    # --- gradients ---------------------------------------------------------------------------------------------------------
    ("AutodiffKernelNotCalled", "BaseError", "Kernel {kernel!r} was not called before its gradients were requested."),
    ("AutodiffNotSupported", "BaseError", "There is no derivative of {what}; {remedy}."),
    # --- configs and running -------------------------------------------------------------------------------------
    ("InvalidConfig", "BaseError", "{0}"),
    ("NoConfigFound", "BaseError", "No config of kernel {kernel!r} works: {reason}"),
    ("NoFeasibleConfig", "NoConfigFound", "No config of kernel {kernel!r} fits {target}: {reason}"),
    ("NotEnoughConfigs", "BaseError", "configs= needs at least one config for kernel {kernel!r}."),
    ("UnknownTarget", "BaseError", "{0}"),
    ("WrongTarget", "BaseError", "Kernel {kernel!r} was bound for {bound} and cannot run on {device}{remedy}."),
    ("ErrorCompilingKernel", "BaseError", "Kernel {kernel!r} cannot be compiled with {decorator}: {reason}\nThe generated source is at {path}"),
    ("UnexpectedHostTensor", "BaseError", "The host code of kernel {kernel!r} made a different {name} than it was compiled for: {how}. Nothing was launched; make it with a plain torch call on the device of the arguments, or pass it as an argument."),
    ("BoundToOtherArguments", "BaseError", "Kernel {kernel!r} was bound for other arguments: {what} is {actual}, bound for {expected}. Call the kernel itself, or bind it to these arguments."),
    ("TritonError", "ErrorCompilingKernel", "Triton failed on kernel {kernel!r} with {decorator}: {reason}\nThe generated source is at {path}"),
    ("TritonUnrecoverableRuntimeError", "TritonError", "Triton failed on kernel {kernel!r} with {decorator} in a way that leaves the device unusable: {reason}\nThe generated source is at {path}"),
    ("AutotuneError", "BaseError", "{0}"),
    ("AutotuningDisallowedInEnvironment", "AutotuneError", "Tuning was requested, but HELION_DISALLOW_AUTOTUNING is set; fix a config, as in @helion.kernel(config=helion.Config(...)), or unset the variable."),
    ("InconsistantConfigsAcrossRanks", "AutotuneError", "The ranks of a process group run kernel {kernel!r} with different configs: {configs}; fix one, as in @helion.kernel(config=helion.Config(...))."),
    ("CacheAssertionError", "AutotuneError", "{0}"),
    # --- checked mode, and what the interpreter finds without it ---------------------------------------------------
    ("CheckFailed", "BaseError", "Kernel {kernel!r}: a check on the GPU failed, or an access was illegal; see stderr above for the check and the access: {reason}"),
    ("IndexOutOfRange", "CheckFailed, IndexError", "{0}"),
    ("UnwrittenRead", "CheckFailed", "{0}"),
    # --- reference mode ------------------------------------------------------------------------------------------
    ("IncompatibleInterpretModes", "BaseError", "HELION_INTERPRET=1 and TRITON_INTERPRET=1 exclude each other: the first runs kernels eagerly, the second runs compiled code in Triton's interpreter. Unset one of them."),
    ("RefEagerModeCodePrintError", "BaseError", "There is no generated code to print when kernels run eagerly; unset HELION_INTERPRET (or ref_mode), or print_output_code."),
    ("DuplicateStoreIndicesError", "BaseError", "One store writes {count} lanes to elements of a tensor of shape {shape} that other lanes write too; the compiled kernel may keep any of them. Make the indices distinct, mask the surplus lanes with extra_mask, or use an atomic operation."),
    ("ReadModifyWriteRace", "BaseError", "Programs at every tile of {axis!r} read, change and store the same elements of {name!r}, in any order and at the same time, so that updates are lost; use hl.atomic_add (or another atomic operation), or make {axis!r} a loop inside of the grid loop, or give it one tile."),
    ("OverlappingStore", "BaseError", "All indices of dimension {dim} of {name!r} are one element of memory (its stride is 0, as torch.Tensor.expand makes it), and this stores to several of them, in no particular order; store to one index, make the tensor contiguous with .clone() or .contiguous(), or use an atomic operation."),
    ("DataRace", "BaseError", "{element} is {first}, then {second} of kernel {kernel!r}; {why}. Its value depends on which runs first."),
    ("Deadlock", "BaseError", "No rank can go on (seed {seed}): {waits}. Each hl.wait needs a message that a program sends without waiting for this one: send before waiting, and check peer, index and count."),
    ("UnmatchedMessage", "BaseError", "{what} of kernel {kernel!r} has no counterpart: {why}. All ranks run this kernel, and each call must wait for just the messages that it sends; make peer, index and count of both agree."),
    ("MessageOrder", "BaseError", "Kernel {kernel!r} waits for messages that are {why}, so that no rank goes on; {remedy}."),
    ("UnorderedTransfer", "BaseError", "Kernel {kernel!r} stores to a peer's {memory!r}, and {why}. Signal after the last store to a peer, and wait for that signal before the first load of the same elements."),
    ("UnacknowledgedReuse", "BaseError", "Kernel {kernel!r} stores to {parts} of a peer's {memory!r} in each call, while the peer may still read what an earlier call stored, at {load}. Give {memory!r} {remedy}, or let the reader hl.signal after its load, and wait for that; if host code has a barrier between calls, pass ignore_warnings=[helion.exc.UnacknowledgedReuse]."),
    ("UncoveredOutput", "BaseError", "Kernel {kernel!r} stores to a peer's {memory!r}, and no hl.signal to that peer follows, so that the peer does not know when it may read. Signal after the last store, and wait for that in this kernel or before the read; if a later kernel signals, pass ignore_warnings=[helion.exc.UncoveredOutput]."),
    ("ChannelTooSmall", "BaseError", "Dimension {dim} of channel {channel!r} has {words} words, and {axis!r} has {tiles} tiles of {size}; make the channel larger, or the tiles."),
    ("PeerLost", "BaseError", "{0}"),
    ("SeveralGpusUnsupported", "BaseError", "{name} is not supported{remedy}."),
    ("TensorOnOtherDevice", "BaseError", "The host code makes {name!r} on {device}, but the arguments are on the CPU, and the kernel runs there; make it with device=x.device, where x is an argument, or pass tensors on {device}."),
    # --- warnings ------------------------------------------------------------------------------------------------
    ("TensorOperationInWrapper", "BaseWarning", "{name}: host code computes this in launches of its own; move it inside the hl.tile loop to fuse it, unless it needs the results of all tiles."),
    ("TensorOperationsInHostCall", "TensorOperationInWrapper", "{name}: host code computes this in launches of its own; move it inside the hl.tile loop to fuse it, unless it needs the results of all tiles."),
    ("GradientNotRecorded", "BaseWarning", "Kernel {kernel!r} got {name!r}, which requires a gradient, but autograd records nothing of a kernel: its results do not require one. Give it a backward with {remedies}, or call it under torch.no_grad()."),
    ("UnwrittenOutput", "BaseWarning", "Kernel {kernel!r} returns {what} of which {count} elements were never written, the first at {first}: they contain uninitialized memory. Write every element, or allocate it with torch.zeros."),
    ("ResultNotReturned", "BaseWarning", "Kernel {kernel!r} makes {name!r} and stores into it, but neither reads nor returns it, so that the result is lost. Add `return {name}`."),
    ("WrongDevice", "BaseWarning", "{name} gives a tensor on {got}, but the kernel runs on {expected}."),
    ("ProcessGroupNameNotFound", "BaseWarning", "Kernel {kernel!r} has distributed=True and no parameter annotated as hl.ProcessGroupName, so its ranks are not known."),
    ("BlockSizeIgnoredInInterpretMode", "BaseWarning", "Kernel {kernel!r} runs eagerly: its config's block_sizes {sizes} are ignored, tiles cover whole dimensions unless hl.tile(block_size=...) fixes their size."),
    ("StoreFromSeveralPrograms", "BaseWarning", "Programs at every tile of {axis!r} store different values in the same elements of {name!r}; the final value depends on their order. Use an atomic operation, or store from one of them."),
    ("StoreToSharedElements", "BaseWarning", "Different indices of {name!r}, of strides {strides}, are one element of memory, and this stores to all of them, in no particular order; unless the values are equal, store into a tensor whose elements do not overlap, as .contiguous() gives it."),
    ("UpdateByLoadedIndex", "BaseWarning", "This stores into elements of {name!r} what it loaded from them and changed, and the indices were loaded: where an index repeats, all updates but one are lost. Use hl.atomic_add (or another atomic operation), unless no index repeats."),
    ("IndexTensorsNotPaired", "BaseWarning", "1-D index tensors of one size select all their pairs in {name!r}, {dims}, unlike in torch. For one element each, index the flattened tensor: `flat = x.view(-1)` before the loop, `flat[rows * n + columns]` in it. For all pairs, write `x[rows[:, None], columns[None, :]]`."),
    ("ResultOfTileSize", "BaseWarning", "This stores into {name!r}, for each element of the tile {axis!r}, a result of torch.{function} along that tile. It covers the elements of one tile, whose size the config chooses, so that other configs give other results. Take the whole dimension with `:`, reduce in an hl.tile loop before, or fix the size with hl.tile(..., block_size=...)."),
    ("PlaceWithinTile", "BaseWarning", "torch.{function} along the tile {axis!r} counts from the begin of the tile, whose size the config chooses. Add {axis}.begin for the place in the tensor, or take the whole dimension with `:`."),
    ("LoadOfOtherPrograms", "BaseWarning", "This loads elements of {name!r} that programs at other tiles of {axis!r} store at the same time; it may see them before or after. Store into another tensor, or put hl.barrier() between two loops."),
    ("TiledKMatmulAccumulationWarning", "BaseWarning", "`acc += a @ b` rounds every partial product; use hl.dot(a, b, acc=acc) or torch.addmm(acc, a, b)."),
    ("SettingHasNoEffect", "BaseWarning", "The setting {name}={value!r} is accepted for compatibility and has no effect: {why}."),
    ("NoAOTHeuristicWarning", "BaseWarning", "Kernel {kernel!r} has no table of tuned configs{because}; it runs with its default config. Write one with HELION_AOT_MODE=collect, or decorate it with @helion.kernel."),
)  # fmt: skip

for _name, _base, _template in _TABLE:
    _bases = tuple(globals().get(base) or getattr(builtins, base) for base in _base.split(", "))
    globals()[_name] = type(_name, _bases, {"template": _template, "__module__": __name__, "__doc__": _template})


def __getattr__(name: str) -> Any:  # the classes above are made from the table; this line is for type checkers
    raise AttributeError(f"module {__name__!r} has no error {name!r}")
