"""Every environment variable that the project reads, with type, default and meaning.

No other module reads ``os.environ``.
"""

from __future__ import annotations

import difflib
import enum
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    raise ValueError(f"expected one of {', '.join((*_TRUE, *_FALSE[:-1]))}")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError("expected a number above 0")
    return number


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError("expected a number that is not negative")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError("expected a number of seconds that is not negative")
    return seconds


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in _names(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"expected one of {', '.join(values)}")
        return text

    parse.values = values  # type: ignore[attr-defined]
    return parse


def _name(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("expected a name")
    return text


def _loggers(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse ``+helion.runtime,all`` into pairs of a logger's name and a flag for debug lines.

    ``-default`` stays as it is.
    """
    wanted = []
    for name in _names(text):
        if name == "-default":
            wanted.append((name, False))
            continue
        bare = name.removeprefix("+").strip()
        if bare != "all" and bare.split(".")[0] != "helion":
            raise ValueError(
                f"{bare!r} is no logger of helion; expected all, helion or helion.<module>, with a + in front for debug, or -default"
            )
        wanted.append(("helion" if bare == "all" else bare, name.startswith("+")))
    return tuple(wanted)


def _json_or_file(text: str) -> dict[str, Any]:
    return json.loads(text if text.lstrip().startswith("{") else pathlib.Path(text).read_text())


@dataclass(frozen=True)
class Knob:
    """One environment variable: ``parse`` turns its text into a value and raises ValueError on nonsense."""

    env: str
    parse: Callable[[str], Any]
    default: Any
    doc: str

    def read(self) -> Any:
        """Return the parsed value, or the default when unset. Raises ValueError naming the variable."""
        text = os.environ.get(self.env)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except (ValueError, OSError) as error:
            raise ValueError(f"environment variable {self.env}={text!r}: {error}") from error

    def accepts(self, value: Any) -> bool:
        """Return whether ``value``, given in Python, has the type that the text is parsed to."""
        if value is None:
            return self.default is None or self.env.startswith("HELION_AUTOTUNE")
        if self.parse is _bool:
            return isinstance(value, bool)
        if self.parse is _natural:
            return isinstance(value, int) and not isinstance(value, bool)
        if self.parse is _seconds:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if self.parse in (int, float):
            return isinstance(value, (int, self.parse)) and not isinstance(value, bool)
        if self.parse is str:
            return isinstance(value, (str, int, enum.Enum)) and not isinstance(value, bool)
        if self.parse is _names:
            return isinstance(value, (tuple, list)) and all(isinstance(item, (str, type)) for item in value)
        if self.parse is _sizes:
            return isinstance(value, (tuple, list)) and all(type(item) is int for item in value)
        if self.parse is _json_or_file:
            return isinstance(value, Mapping)
        if not isinstance(value, str):
            return False
        try:
            self.parse(value)
        except ValueError:
            return False
        return True

    @property
    def expected(self) -> str:
        """The values that ``accepts`` takes, in words."""
        kinds: dict[Any, str] = {
            _bool: "True or False",
            int: "an int",
            _natural: "an int",
            float: "a number",
            _seconds: "a number of seconds that is not negative",
            str: "a string",
            _names: "a list of names",
            _sizes: "a list of sizes",
            _name: "a name",
            _json_or_file: "a dict",
        }
        text = kinds.get(self.parse) or f"one of {', '.join(map(repr, getattr(self.parse, 'values', ())))}"
        return f"{text} or None" if self.accepts(None) else text


def unknown_variables() -> list[str]:
    """List the ``HELION_*`` variables that are set but not read, each with the closest known name."""
    known = {knob.env for knob in (*globals().values(), *SETTINGS.values()) if isinstance(knob, Knob)}
    found = []
    for name in sorted(os.environ):
        if name.startswith("HELION_") and name not in known and name not in _OF_TOOLS:
            close = difflib.get_close_matches(name, known, 1)
            found.append(f"{name} (did you mean {close[0]}?)" if close else name)
    return found


def changed() -> tuple[tuple[str, str], ...]:
    """Return the variables that are set and their texts, besides those that name folders."""
    knobs = (knob for knob in (*globals().values(), *SETTINGS.values()) if isinstance(knob, Knob))
    names = {knob.env for knob in knobs if knob not in (CACHE_DIR, CACHE_HOME, TRITON_CACHE_DIR)}
    return tuple((name, os.environ[name]) for name in sorted(names & os.environ.keys()))


def see_one_gpu(number: int) -> None:
    """Leave this process, before it uses CUDA, only the GPU of this number of those that it sees.

    Raises:
        ValueError: ``CUDA_VISIBLE_DEVICES`` names fewer GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
        return
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if number >= len(names):
        raise ValueError(f"GPU {number} of {len(names)} is requested, but CUDA_VISIBLE_DEVICES is {visible!r}")
    os.environ["CUDA_VISIBLE_DEVICES"] = names[number]


#: Variables of the project's own scripts.
_OF_TOOLS = ("HELION_PROVE",)

TARGET = Knob("HELION_TARGET", str, None, "target of kernels bound to CPU, meta or fake tensors (default sm_90)")
CACHE_DIR = Knob(
    "HELION_CACHE_DIR", str, None, "folder of generated modules and tuned configs (default: the user's cache directory)"
)
CACHE_HOME = Knob("XDG_CACHE_HOME", str, None, "the user's cache directory (default: ~/.cache)")
TRITON_CACHE_DIR = Knob(
    "TRITON_CACHE_DIR",
    str,
    None,
    "folder of Triton's binaries (default: ~/.triton/cache, or next to helion's own cache if that is not writable)",
)
WAIT_TIMEOUT = Knob(
    "HELION_WAIT_TIMEOUT",
    _natural,
    30,
    "seconds after which hl.wait gives up and exc.PeerLost is raised; 0 waits forever; part of compiled kernels",
)
CPU_CONFIG = Knob(
    "HELION_CPU_CONFIG",
    _choice("large", "target"),
    "large",
    "config of untuned calls with CPU tensors: large enlarges the tiles of the default config, which is many times faster in the interpreter; target keeps the target's tiles, for debugging",
)
DUMP = Knob(
    "HELION_DUMP",
    _names,
    (),
    "compiler steps whose program is printed to stderr, comma separated, or 'all'; an unknown step lists all",
)
LOGS = Knob(
    "HELION_LOGS",
    _loggers,
    (),
    "loggers shown on stderr, comma separated: helion.<module> or all; a + in front adds debug; -default silences the line about the default config of an untuned kernel",
)
INTERPRET = Knob("HELION_INTERPRET", _bool, False, "run kernels eagerly, without compiling them")
TRITON_INTERPRET = Knob(
    "TRITON_INTERPRET",
    lambda text: text.lower() in (*_TRUE, "y"),
    False,
    "run generated kernels in the interpreter on GPU tensors too, where breakpoint() in device code stops; slow",
)
SKIP_FAST_LAUNCHER = Knob("HELION_SKIP_FAST_LAUNCHER", _bool, False, "launch through Triton's own JITFunction.run")
NATIVE_LAUNCH = Knob(
    "HELION_NATIVE_LAUNCH",
    _bool,
    False,
    "check arguments and launch in C++, built with g++ at first use; without a compiler calls go through Python",
)
AOT_MODE = Knob(
    "HELION_AOT_MODE",
    _choice("evaluate", "collect", "measure", "disabled"),
    "evaluate",
    "tables of kernels decorated with helion.aot_kernel: evaluate takes configs from them, collect (or measure) tunes "
    "what is called and writes them, disabled looks at none",
)
DISALLOW_AUTOTUNING = Knob("HELION_DISALLOW_AUTOTUNING", _bool, False, "raise instead of tuning a kernel")
SKIP_CACHE = Knob(
    "HELION_SKIP_CACHE",
    _bool,
    False,
    "neither read nor write the caches of tuned configs and of checked binaries",
)
PRETUNED = Knob(
    "HELION_PRETUNED",
    str,
    None,
    "files of `python -m helion tune --contribute`, separated as in PATH, whose configs first calls and searches try "
    "too; 0 leaves out the package's own",
)
ASSERT_CACHE_HIT = Knob(
    "HELION_ASSERT_CACHE_HIT", _bool, False, "raise if a kernel on a GPU has no tuned config, and name the difference"
)
SHARED_CACHE = Knob(
    "HELION_SHARED_CACHE",
    str,
    None,
    "URL of a folder (any file system of fsspec) where machines share tuned configs",
)
MEASURE_COMPILE_TIME = Knob(
    "HELION_MEASURE_COMPILE_TIME", _bool, False, "count and time every bind, and print a table at exit"
)
MAX_SPECIALIZATIONS = Knob(
    "HELION_MAX_SPECIALIZATIONS",
    _positive,
    1024,
    "bound kernels that one kernel keeps; beyond that the least recently used are evicted, and compiled again when needed",
)
COMPILE_NOTICE_SECONDS = Knob(
    "HELION_COMPILE_NOTICE_SECONDS",
    _natural,
    20,
    "seconds of a compilation after which a line on stderr names the kernel, and again after each doubling; 0 prints nothing",
)
COMPILE_LIMIT_SECONDS = Knob(
    "HELION_COMPILE_LIMIT_SECONDS",
    _natural,
    60,
    "seconds of a compilation after which the first call of a kernel without a config ends ptxas and compiles another seed; the conservative config, which is the last, has no limit; 0 sets none at all",
)
FULL_TRACEBACK = Knob(
    "HELION_FULL_TRACEBACK", _bool, False, "show the compiler's own frames in tracebacks of errors of kernels"
)
VERIFY = Knob(
    "HELION_VERIFY", _bool, False, "verify the device IR after every compiler step, and raise a backend's own errors"
)

#: Knobs that give the defaults of ``helion.Settings``, by field.
SETTINGS: dict[str, Knob] = {
    "backend": Knob("HELION_BACKEND", _name, None, "code generator: triton, cute, or auto, which takes the one with the shortest predicted time; unset, auto for GPU tensors and triton for others"),
    "ignore_warnings": Knob("HELION_IGNORE_WARNINGS", _names, (), "names of warning classes to drop"),
    "index_dtype": Knob("HELION_INDEX_DTYPE", _choice("auto", "int32", "int64"), None, "dtype of offsets; auto takes int64 when an input has more than 2**31 - 2**24 elements"),
    "dot_precision": Knob("TRITON_F32_DEFAULT", _choice("tf32", "tf32x3", "ieee", "default", "high", "highest"), "tf32", "precision of fp32 matmuls"),
    "fast_math": Knob("HELION_FAST_MATH", _bool, False, "allow approximate transcendental functions"),
    "static_shapes": Knob("HELION_STATIC_SHAPES", _bool, True, "compile once per shape instead of passing sizes as arguments"),
    "size_hints": Knob("HELION_SIZE_HINTS", _sizes, (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536), "with static_shapes=False, ascending sizes that configs are chosen for: a call uses the smallest hint that is not below its size, or the last; one hint means one config, none means the config of the first call"),
    "persistent_reserved_sms": Knob("HELION_PERSISTENT_RESERVED_SMS", _natural, 0, "SMs that persistent grids leave free"),
    "checked": Knob("HELION_CHECKED", _bool, False, "report indices out of range, races and reads of unwritten elements, with the user's line; slow"),
    "print_output_code": Knob("HELION_PRINT_OUTPUT_CODE", _bool, False, "print generated modules to stderr"),
    "print_repro": Knob("HELION_PRINT_REPRO", _bool, False, "print a script that runs the kernel on random arguments, at its first call and when it fails"),
    "output_origin_lines": Knob("HELION_OUTPUT_ORIGIN_LINES", _bool, True, "name the user's lines in comments of generated code"),
    "allow_warp_specialize": Knob("HELION_ALLOW_WARP_SPECIALIZE", _bool, True, "offer warp specialization where the target has it"),
    "debug_dtype_asserts": Knob("HELION_DEBUG_DTYPE_ASSERTS", _bool, False, "assert the dtype of every value in generated code"),
    "triton_do_not_specialize": Knob("HELION_TRITON_DO_NOT_SPECIALIZE", _bool, False, "no Triton specialization on integer arguments"),
    "torch_compile_fusion": Knob("HELION_TORCH_COMPILE_FUSION", _bool, False, "under torch.compile, fuse elementwise operations before and after a call into the kernel"),
    "force_autotune": Knob("HELION_FORCE_AUTOTUNE", _bool, False, "tune even when configs or a cached answer exist"),
    "autotune_effort": Knob("HELION_AUTOTUNE_EFFORT", _choice("none", "minimal", "quick", "full"), None, "search effort for a kernel on a GPU without a config: none, minimal (times the seeds), quick (about 30 s), full; unset, the first call times a few configs within first_call_seconds, and kernel.autotune(...) searches as with full"),
    "first_call_seconds": Knob("HELION_FIRST_CALL_SECONDS", _seconds, 1.0, "seconds for which the first call on a GPU of a kernel without a config times a few configs that may be faster than the default; 0 times none"),
    "autotune_force_persistent": Knob("HELION_AUTOTUNE_FORCE_PERSISTENT", _bool, False, "search persistent grids only"),
    "distributed": Knob("HELION_DISTRIBUTED", _bool, False, "keep ranks on one config"),
    "autotune_log_level": Knob("HELION_AUTOTUNE_LOG_LEVEL", str, "INFO", "log level of the search"),
    "autotune_log": Knob("HELION_AUTOTUNE_LOG", str, None, "file the search logs to"),
    "autotune_log_details": Knob("HELION_AUTOTUNE_LOG_DETAILS", _bool, False, "log every candidate"),
    "autotune_compile_timeout": Knob("HELION_AUTOTUNE_COMPILE_TIMEOUT", int, 60, "seconds a candidate may compile"),
    "autotune_adaptive_timeout": Knob("HELION_AUTOTUNE_ADAPTIVE_TIMEOUT", _bool, True, "lower the timeout as candidates finish"),
    "autotune_precompile": Knob("HELION_AUTOTUNE_PRECOMPILE", str, "fork", "way to compile candidates in parallel"),
    "autotune_precompile_jobs": Knob("HELION_AUTOTUNE_PRECOMPILE_JOBS", int, None, "parallel compilations"),
    "autotune_benchmark_subprocess": Knob("HELION_AUTOTUNE_BENCHMARK_SUBPROCESS", _bool, True, "time candidates in a separate process"),
    "autotune_benchmark_timeout": Knob("HELION_AUTOTUNE_BENCHMARK_TIMEOUT", int, 30, "seconds a candidate may run"),
    "autotune_random_seed": Knob("HELION_AUTOTUNE_RANDOM_SEED", int, None, "random seed of the search (default: 0)"),
    "autotune_best_of_k": Knob("HELION_AUTOTUNE_BEST_OF_K", int, 1, "searches to run one after the other, each with the whole budget and its own random seed"),
    "autotune_accuracy_check": Knob("HELION_AUTOTUNE_ACCURACY_CHECK", _bool, True, "compare candidates with the reference"),
    "autotune_rebenchmark_threshold": Knob("HELION_REBENCHMARK_THRESHOLD", float, None, "configs within this ratio of the least time are measured again at the end (default: 1.15)"),
    "autotune_suspicious_rebenchmark_ratio": Knob("HELION_AUTOTUNE_SUSPICIOUS_REBENCHMARK_RATIO", float, None, "time again when this much faster than the best"),
    "autotune_max_generations": Knob("HELION_AUTOTUNE_MAX_GENERATIONS", int, None, "generations of 20 configs after the first"),
    "autotune_budget_seconds": Knob("HELION_AUTOTUNE_BUDGET_SECONDS", int, None, "seconds of the search"),
    "autotune_log_search_space": Knob("HELION_AUTOTUNE_LOG_SEARCH_SPACE", _bool, False, "log the space of configs"),
    "autotune_progress_bar": Knob("HELION_AUTOTUNE_PROGRESS_BAR", _bool, True, "show a progress bar"),
    "autotune_ignore_errors": Knob("HELION_AUTOTUNE_IGNORE_ERRORS", _bool, False, "continue after an unexpected error of a candidate"),
    "autotune_config_overrides": Knob("HELION_AUTOTUNE_CONFIG_OVERRIDES", _json_or_file, {}, "config keys forced on every candidate: JSON text or a file"),
    "disable_autotuner_heuristics": Knob("HELION_DISABLE_AUTOTUNER_HEURISTICS", _bool, False, "no seeds: the conservative config is the default"),
    "autotune_cache": Knob("HELION_AUTOTUNE_CACHE", str, "LocalAutotuneCache", "cache of tuned configs"),
    "autotune_search_acf": Knob("HELION_AUTOTUNE_SEARCH_ACF", _names, (), "PTXAS option files to search over"),
    "autotune_initial_population_strategy": Knob("HELION_AUTOTUNER_INITIAL_POPULATION", str, None, "first generation of the search"),
    "autotune_best_available_max_configs": Knob("HELION_BEST_AVAILABLE_MAX_CONFIGS", int, 20, "cached configs to start from"),
    "autotune_best_available_max_cache_scan": Knob("HELION_BEST_AVAILABLE_MAX_CACHE_SCAN", int, 500, "cache entries to look at"),
}  # fmt: skip
