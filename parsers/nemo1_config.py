"""The configuration that NeMo 1 prints before it trains: YAML below '****** Experiment configuration ******'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conf.vocabulary import printed
from parsers.events import Event, Fact, Setting
from parsers.values import literal

FRAMEWORK = "nemo"
_FACTS: Mapping[str, str] = {
    "trainer.precision": "precision",
    "trainer.num_nodes": "num_nodes",
    "trainer.devices": "gpus_per_node",
    "model.optim.name": "optimizer_name",
}
_ACTIVATION = "model.activation"
# megatron_base_model.py, build_transformer_config: "fast-" names a fused kernel of the same.
_GATED: Mapping[str, bool] = {
    **dict.fromkeys(("swiglu", "geglu", "reglu"), True),
    **dict.fromkeys(("gelu", "relu", "silu", "squared-relu"), False),
}
_WINDOW = "exp_manager.step_timing_kwargs.buffer_size"
_YAML_NULL = ("null", "", "None")


class ConfigDump:
    """Reads the lines of one dump, top to bottom."""

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []
        self._fp8: dict[str, Any] = {}
        self.begun = False
        self.window: int | None = None
        """buffer_size of train_step_timing; the default, 1, where exp_manager is shown without it. (The dictionary that
        exp_manager itself logs shows its defaults, not what runs.)"""

    def feed(self, line: int, text: str) -> Iterator[Event] | None:
        """The events of one line; None where the dump is over."""
        stripped = text.strip()
        if not self.begun and (not stripped or stripped.startswith("[NeMo")):
            return iter(())
        indent = len(text) - len(text.lstrip(" "))
        name, colon, shown = stripped.partition(":")
        self.begun = True
        if not stripped or stripped.startswith("- "):
            return iter(())
        if not colon or stripped.startswith("[NeMo") or (indent == 0 and self._path and self._path[0][0] > 0):
            return None
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        self._path.append((indent, name))
        if self.window is None and self._path[0][1] == "exp_manager":
            self.window = 1
        return self._value(line, shown.strip().strip("'\""))

    def _value(self, line: int, shown: str) -> Iterator[Event]:
        path = ".".join(name for _, name in self._path)
        if path == "model.kv_channels" and shown in _YAML_NULL:
            yield Setting("kv_channels", None, line)  # hidden size by heads
        if shown in _YAML_NULL or shown.startswith("${"):
            return
        value = {"true": True, "false": False}.get(shown, literal(shown))
        if path in printed(FRAMEWORK):
            yield Setting(printed(FRAMEWORK)[path].name, value, line)
            if path == "trainer.max_steps" and isinstance(value, int) and value > 0:
                yield Fact("train_iters", value, line)
        elif path == _ACTIVATION:
            gated = _GATED.get(shown.removeprefix("fast-"))
            if gated is not None:
                yield Setting("gated_linear_unit", gated, line)
                yield Setting("swiglu", shown.endswith("swiglu"), line)
        elif path in _FACTS:
            yield Fact(_FACTS[path], value, line)
        elif path in ("model.fp8", "model.fp8_hybrid", "model.fp8_e4m3"):
            self._fp8[path] = value
            yield from self._fp8_setting(line)
        elif path == _WINDOW and isinstance(value, int):
            self.window = value

    def _fp8_setting(self, line: int) -> Iterator[Event]:
        # fp8 comes first in NeMo's files, its format in the lines that follow.
        if self._fp8.get("model.fp8") is False and len(self._fp8) == 1:
            yield Setting("fp8", None, line)
        elif self._fp8.get("model.fp8") is True:
            for key, name in (("model.fp8_hybrid", "hybrid"), ("model.fp8_e4m3", "e4m3")):
                if self._fp8.pop(key, None) is True:
                    yield Setting("fp8", name, line)
