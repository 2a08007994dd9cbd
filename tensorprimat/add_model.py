"""`tprimat models`: the models of conf/model. `tprimat models add PATH`: one more, from a config.json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.arguments import Command, Key, program
from conf.compose import CONF
from conf.errors import InputError, Problem, command, writing
from conf.schema import Model
from conf.shapes import count
from launchers.hugging_face import Default, model_of, read_json
from tensorprimat import lists
from tensorprimat.lists import MODELS

__all__ = ["ADD", "MODELS", "main"]
INDEX, MOST_BYTES_OF_INDEX = "model.safetensors.index.json", 2**26  # DeepSeek-V3's has 9 MB
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SCALES = {0: "", 6: "M", 9: "B", 12: "T"}
_LARGE = 60e9  # parameters from which a learning rate of half the usual one is written


def _published(text: str) -> tuple[str, int]:
    """Read a number of parameters as its digits and the power of ten behind them. Raises ValueError."""
    plain = text.replace("_", "").strip().upper()
    if re.fullmatch(r"\d{1,3}(,\d{3}){1,5}", plain, re.ASCII):  # 3,5B is no count: 35B or 3.5B
        plain = plain.replace(",", "")
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,12})?) *([MBT]?|E\d\d?)", plain, re.ASCII)
    if match is None or ("." in match[1] and not match[2]):
        raise ValueError("a number of parameters, such as 7615616512, 7.6B or 7.6e9")
    powers = {letter: power for power, letter in _SCALES.items()}
    return match[1], powers[match[2]] if match[2] in powers else int(match[2][1:])


ADD = Command(
    name="models add",
    summary="Write conf/model/NAME.yaml from Hugging Face's config.json: every key is used, or refused by name.",
    words="PATH",
    words_help="config.json, or the folder that has it",
    keys=(
        Key("name", "the name of the model, for model=NAME", example="qwen25_1p5b"),
        Key("hf_id", "the model on huggingface.co", example="Qwen/Qwen2.5-1.5B"),
        Key(
            "source", "where config.json is from; with hf_id its page there", example="https://example.com/config.json"
        ),
        Key(
            "parameters",
            f"the published count, to the digits given; else {INDEX} beside config.json has it",
            _published,
            example="1.54B",
        ),
        Key("output", "the file to write, in place of conf/model/NAME.yaml", example="qwen25_1p5b.yaml"),
    ),
    examples=("Qwen2.5-1.5B/config.json name=qwen25_1p5b hf_id=Qwen/Qwen2.5-1.5B parameters=1.54B",),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """List the models, or add one. 0: done; 2: bad input, and nothing is written."""
    given = list(sys.argv[1:] if argv is None else argv)
    return _add(given[1:]) if given[:1] == ["add"] else lists.models(given)


def _add(argv: Sequence[str]) -> int:
    arguments = ADD.parse(argv)
    path, about = _given(arguments.words, arguments.values)
    config = read_json(path)
    model, defaults = model_of(config, **about)
    checked = _checked(model, config, path, arguments["parameters"])
    target = Path(arguments["output"] or CONF / "model" / f"{model.name}.yaml")
    with writing(target):
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(_text(model, checked, defaults))
        except FileExistsError:
            raise InputError(Problem(str(target), "is there already", hint="another name=, or remove it")) from None
    parts = count(model)
    if arguments.switches:
        facts = {"model": model.name, "parameters": parts.total, "active": parts.active, "checked": checked}
        taken = [asdict(one) for one in defaults]
        print(json.dumps({**facts, "defaults": taken, "file": str(target)}, indent=1))
    else:
        print("\n".join([f"{target}: {parts.total:,} parameters, {checked}", *_left_out(defaults)]))
        if not arguments["output"]:
            print(f"try: {program('launch')} model={model.name} layout=data_parallel dry_run=true")
    return 0


def _given(words: Sequence[str], values: Mapping[str, Any]) -> tuple[Path, dict[str, str | None]]:
    """Return the path of config.json, and what it does not say itself. InputError: all that is not given."""
    problems = [] if len(words) == 1 else [Problem("PATH", "takes one config.json", f"{len(words)} given")]
    name, hf_id, source = values["name"], values["hf_id"], values["source"]
    name = name or (Path(values["output"]).stem if values["output"] else "")
    if not re.fullmatch(r"[a-z]\w{0,60}", name, re.ASCII):
        problems.append(Problem("name", "is the name of a file: a small letter, then letters, digits and _", name))
    if hf_id is not None and not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", hf_id, re.ASCII):
        problems.append(Problem("hf_id", "is no id of huggingface.co", hf_id, hint="OWNER/NAME"))
    if not source and not hf_id:
        problems.append(Problem("source", "no fact without a source", hint="hf_id=OWNER/NAME, or source=ADDRESS"))
    if problems:
        raise InputError(*problems)
    path = Path(words[0])
    source = " ".join(source.split()) if source else f"https://huggingface.co/{hf_id}/blob/main/config.json"
    return path / "config.json" if path.is_dir() else path, {"name": name, "hf_id": hf_id, "source": source}


def _checked(model: Model, config: Mapping[str, Any], path: Path, published: tuple[str, int] | None) -> str:
    """Return what our count was checked against. InputError: it differs."""
    total, index = count(model).total, path.with_name(INDEX)
    if published is not None:
        digits, power = published
        ours = f"{total / 10**power:.{len(digits.partition('.')[2])}f}" if power else str(total)
        scale = _SCALES.get(power, f"e{power}")
        if ours != digits:
            allowed = f"{ours}{scale}: {total:,}" + ", rounded to the digits given" * bool(power)
            hint = "its published count (a name such as Qwen2.5-7B, of 7.6B, is none); or the file is of another model"
            raise InputError(Problem("parameters", "the model has another number", digits + scale, allowed, hint))
        return f"as given ({digits} {scale})" if scale else f"as given ({digits})"
    size = _bytes_of_one(config)
    if not index.is_file() or size is None or model.mtp_num_layers:
        return "checked against no published count"
    whole = read_json(index, MOST_BYTES_OF_INDEX).get("metadata")
    stated = whole.get("total_size") if isinstance(whole, dict) else None
    if stated != total * size:
        hint = "parameters=N, where that file counts what is no parameter"
        raise InputError(
            Problem(f"{index}: metadata.total_size", "is of another model", str(stated)[:40], f"{total * size}", hint)
        )
    return f"as {INDEX} beside config.json: {stated:,} bytes, {size} each"


def _bytes_of_one(config: Mapping[str, Any]) -> int | None:
    """Return the bytes of one parameter of the checkpoint, None where they differ or are not stated."""
    dtype = config.get("dtype", config.get("torch_dtype"))
    return BYTES.get(dtype) if isinstance(dtype, str) and not config.get("quantization_config") else None


def _left_out(defaults: Sequence[Default]) -> list[str]:
    """Return a line for each source, of the keys that config.json leaves out and what is taken for them."""
    by_source: dict[str, list[str]] = {}
    for one in defaults:
        by_source.setdefault(one.source, []).append(f"{one.key} {json.dumps(one.value)}")
    return [f"not in config.json, by {source}: {', '.join(taken)}" for source, taken in by_source.items()]


def _text(model: Model, checked: str, defaults: Sequence[Default]) -> str:
    """Return the model's file. Training and optimizer are a start of ours, as in the other files."""
    import yaml

    total = count(model).total
    lr, min_lr = (1.5e-4, 1.5e-5) if total > _LARGE else (3e-4, 3e-5)
    seq_length = min(4096, model.max_position_embeddings)
    parts: dict[str, Any] = {"model": asdict(model)}
    parts["training"] = {"seq_length": seq_length, "global_batch_size": 128, "train_iters": 50}
    parts["optimizer"] = {"lr": lr, "min_lr": min_lr, "lr_warmup_iters": 10}
    texts = (yaml.safe_dump({name: part}, sort_keys=False, width=110) for name, part in parts.items())
    head = ["@package _global_", f"{model.hf_id or model.name}, {total:,} parameters, {checked}.", *_left_out(defaults)]
    return "".join(f"# {line}\n" for line in head) + "\n".join(texts)
