"""`tprimat models add`: a config.json of Hugging Face into a file of conf/model. Every key is used, or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import tensorprimat
from conf.compose import choices
from conf.errors import InputError
from conf.freeze import frozen
from conf.load import model_named
from conf.schema import Model
from conf.vocabulary import read_yaml
from launchers import hugging_face
from launchers.attribute_settings import FOLDER
from launchers.frameworks.megatron_bridge import hub_config
from tensorprimat.cli import main

ABOUT = {"name": "mine", "source": "a test", "hf_id": None}
TABLE = read_yaml(hugging_face.TABLE)
PUBLISHED_FILES = yaml.safe_load(Path(__file__).with_name("config_json.yaml").read_text(encoding="utf-8"))
QWEN = PUBLISHED_FILES["qwen25_1p5b"]
COUNT = 1_543_714_304
GIVEN = ("name=qwen25_1p5b", "hf_id=Qwen/Qwen2.5-1.5B")


def model_of(config: Mapping[str, Any], **about: str | None) -> Model:
    return hugging_face.model_of(config, **about)[0]


def ours() -> list[Model]:
    return [model for name in choices("model") if (model := model_named(name))]


def of_a_known_family() -> list[Model]:
    names = read_yaml(FOLDER / "hugging_face.yaml")["families"]
    return [model for model in ours() if any(model.name.startswith(name) for name in names)]


@pytest.mark.parametrize("model", of_a_known_family(), ids=lambda model: model.name)
def test_a_model_written_as_config_json_is_read_back_the_same(model: Model) -> None:
    config = json.loads(json.dumps(hub_config(model.name, model)))
    assert model_of(config, name=model.name, source=model.source, hf_id=model.hf_id) == model


def test_a_file_of_transformers_5_is_the_same_model() -> None:
    model = model_named("llama31_8b")
    assert model
    config = hub_config("llama31_8b", model)
    rope = {"rope_theta": config.pop("rope_theta"), **config.pop("rope_scaling")}
    config |= {"rope_parameters": rope, "dtype": config.pop("torch_dtype")}
    assert model_of(config, name=model.name, source=model.source, hf_id=model.hf_id) == model


def test_what_a_file_leaves_out_is_what_the_library_takes() -> None:
    config = {key: value for key, value in QWEN.items() if key not in ("rope_theta", "tie_word_embeddings")}
    model = model_of(config, **ABOUT)
    assert (model.rotary_base, model.untie_embeddings_and_output_weights, model.kv_channels) == (10000.0, True, 128)
    left_out = {one.key: (one.value, one.source) for one in hugging_face.model_of(config, **ABOUT)[1]}
    library = "transformers 4.57.6, models/qwen2/configuration_qwen2.py"
    assert left_out == {
        "rope_theta": (10000.0, library),
        "tie_word_embeddings": (False, library),
        "head_dim": (128, "hidden_size / num_attention_heads"),
    }


def test_a_family_that_the_library_does_not_have_leaves_nothing_out() -> None:
    own = {"model_type": "kimi_k2", "aux_loss_alpha": 0.001, "n_group": 1, "topk_group": 1, "seq_aux": True}
    config = DEEPSEEK_V3 | own
    model_of(config, **ABOUT)
    for key in ("rope_theta", "scoring_func", "routed_scaling_factor", "tie_word_embeddings", "norm_topk_prob"):
        with pytest.raises(InputError, match=f"{key}: missing"):
            model_of({name: value for name, value in config.items() if name != key}, **ABOUT)


DEEPSEEK_V3, DEEPSEEK_V2_LITE, GPT_OSS, MIXTRAL, MISTRAL = (
    PUBLISHED_FILES[name] for name in ("deepseek_v3", "deepseek_v2_lite", "gpt_oss_20b", "mixtral_8x7b", "mistral_7b")
)


@pytest.mark.parametrize("name", sorted(PUBLISHED_FILES.keys() - {"qwen25_1p5b"}))
def test_a_published_file_is_the_model_that_we_have(name: str) -> None:
    ours = model_named(name)
    assert ours
    read = model_of(PUBLISHED_FILES[name], name=ours.name, source=ours.source, hf_id=ours.hf_id)
    assert read == ours


OF_OTHER_FAMILIES: list[tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = [
    (DEEPSEEK_V2_LITE, {"topk_method": "group_limited_greedy", "n_group": 8}, "n_group", "does not look at"),
    (DEEPSEEK_V2_LITE, {"topk_method": "group_limited_greedy"}, "topk_method", "the best expert decides of a group"),
    (DEEPSEEK_V2_LITE, {"seq_aux": False}, "seq_aux", "balanced over the batch"),
    (DEEPSEEK_V2_LITE, {"moe_layer_freq": 2}, "moe_layer_freq", "is not expressible"),
    (DEEPSEEK_V2_LITE, {"n_shared_experts": "2"}, "n_shared_experts", "wrong type"),
    (DEEPSEEK_V3, {"topk_group": 2}, "topk_group", "the two best experts decide of a group"),
    (DEEPSEEK_V3, {"n_group": 7}, "n_group", "256 experts do not divide"),
    (DEEPSEEK_V3, {"num_experts_per_tok": 512}, "num_experts_per_tok", "at most all 256 experts"),
    (DEEPSEEK_V3, {"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers", "must be at most 10000"),
    (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func", "V3 sigmoid"),
    (
        DEEPSEEK_V3,
        {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"attention_factor": 2.0}},
        "rope_scaling.attention_factor",
        "follows",
    ),
    (
        DEEPSEEK_V3,
        {"rope_scaling": {"type": "yarn", "factor": 40}},
        "rope_scaling.original_max_position_embeddings",
        "missing",
    ),
    (
        GPT_OSS,
        {"rope_scaling": GPT_OSS["rope_scaling"] | {"truncate": True}},
        "rope_scaling.truncate",
        "not rounded in gpt-oss",
    ),
    (DEEPSEEK_V3, {"rope_scaling": {"type": "yarn", "factor": 40}}, "rope_scaling.mscale", "missing"),
    (GPT_OSS, {"rope_scaling": None}, "rope_scaling", "not this family's"),
    (GPT_OSS, {"layer_types": ["full_attention"] * 24}, "layer_types", "sliding_attention, full_attention, …"),
    (GPT_OSS, {"attention_bias": False}, "attention_bias", "biases everywhere"),
    (MIXTRAL, {"router_jitter_noise": 0.1}, "router_jitter_noise", "noise at the router"),
    (MIXTRAL, {"num_experts_per_tok": 1}, "num_experts_per_tok", "always 1 and has no gradient"),
    (MISTRAL, {"layer_types": ["sliding_attention"] * 32}, "layer_types", "is not expressible"),
]


@pytest.mark.parametrize(("config", "change", "key", "says"), OF_OTHER_FAMILIES, ids=lambda value: str(value)[:60])
def test_what_a_family_cannot_say_is_named(
    config: Mapping[str, Any], change: Mapping[str, Any], key: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        model_of({**config, **change}, **ABOUT)
    problems = {problem.where: str(problem) for problem in caught.value.problems}
    assert says in problems[key]


def test_weights_that_do_not_add_up_to_1_are_a_softmax_over_all_experts() -> None:
    config = hub_config("qwen3_30b_a3b", model_named("qwen3_30b_a3b") or pytest.fail("gone"))
    assert config["norm_topk_prob"] is True
    for given, pre_softmax in (({"norm_topk_prob": False}, True), ({"norm_topk_prob": True}, False)):
        model = model_of(config | given, **ABOUT)
        assert model.moe and model.moe.moe_router_pre_softmax is pre_softmax
    del config["norm_topk_prob"]
    model = model_of(config, **ABOUT)
    assert model.moe and model.moe.moe_router_pre_softmax, "the class's own value is false"


def test_a_window_is_read() -> None:
    """Mistral 7B v0.1's, which is in every layer; without the key it is the class's own."""
    model = model_of(MISTRAL | {"sliding_window": 2048}, **ABOUT)
    assert (model.window_size, model.window_attn_skip_freq) == (2048, None)
    assert (
        model_of({key: value for key, value in MISTRAL.items() if key != "sliding_window"}, **ABOUT).window_size == 4096
    )


def test_kimi_k2_is_a_deepseek_v3_with_values_of_its_own() -> None:
    config = DEEPSEEK_V3 | {
        "model_type": "kimi_k2",
        "aux_loss_alpha": 0.001,
        "num_nextn_predict_layers": 0,
        "n_group": 1,
    }
    model = model_of(config | {"topk_group": 1, "seq_aux": True, "_attn_implementation_autoset": False}, **ABOUT)
    assert model.moe
    assert (model.moe.moe_aux_loss_coeff, model.mtp_num_layers, model.moe.moe_router_num_groups) == (0.001, None, 1)


REFUSED: list[tuple[Mapping[str, Any], str, str]] = [  # changes of Qwen's file; the key that is named, and why
    ({"hidden_activation": "gelu"}, "hidden_activation", "is not known here"),
    ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act", "GeGLU"),
    ({"use_sliding_window": True}, "use_sliding_window", "a window in the last layers"),
    ({"layer_types": ["full_attention"] * 27 + ["sliding_attention"]}, "layer_types", "is not expressible"),
    ({"layer_types": ["full_attention"] * 27}, "layer_types", "for 28 layers"),
    ({"layer_types": 3}, "layer_types", "is not expressible"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling", "RoPE scaling of another kind"),
    ({"rope_scaling": {"rope_type": "default", "type": "yarn"}}, "rope_scaling", "RoPE scaling of another kind"),
    ({"rope_scaling": [1]}, "rope_scaling", "RoPE scaling of another kind"),
    ({"rope_scaling": {"rope_type": ["default"]}}, "rope_scaling", "RoPE scaling of another kind"),
    ({"rope_scaling": {"rope_type": "default", "factor": 2}}, "rope_scaling.factor", "is not known here"),
    ({"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters", "says again"),
    ({"rope_parameters": 3}, "rope_parameters", "is no mapping"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "a part of a head"),
    ({"architectures": ["Qwen2ForSequenceClassification"]}, "architectures", "is not expressible"),
    ({"is_encoder_decoder": 1}, "is_encoder_decoder", "there is no encoder"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
    ({"hidden_size": None}, "hidden_size", "wrong type"),
    ({"hidden_size": "1536"}, "hidden_size", "wrong type"),
    ({"hidden_size": 1.5}, "hidden_size", "wrong type"),
    ({"hidden_size": True}, "hidden_size", "wrong type"),
    ({"hidden_size": {}}, "hidden_size", "wrong type"),
    ({"hidden_size": 0, "head_dim": 128}, "hidden_size", "must be at least 1"),
    ({"hidden_size": 10**12, "head_dim": 128}, "hidden_size", "must be at most 2147483648"),
    ({"hidden_size": 1537}, "head_dim", "missing"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers", "must be at most 10000"),
    ({"num_key_value_heads": 5}, "num_key_value_heads", "12 attention heads do not divide into 5 groups"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps", "wrong type"),
    ({"model_type": "gemma3_text"}, "model_type", "sliding windows with two RoPE bases, post-norms, GeGLU"),
    ({"model_type": "llama4_text"}, "model_type", "chunked attention"),
    ({"model_type": "unheard_of"}, "model_type", "is of no family that is known here"),
    ({"model_type": ["qwen2"]}, "model_type", "is of no family that is known here"),
]


@pytest.mark.parametrize(("change", "key", "says"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_said_is_named(change: Mapping[str, Any], key: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of(QWEN | change, **ABOUT)
    (problem,) = caught.value.problems
    assert problem.where == key
    assert says in str(problem)
    assert len(str(problem)) < 600


def test_every_key_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        model_of({"model_type": "qwen2", "alpha": 1, "use_mrope": True}, **ABOUT)
    named = {problem.where: problem.what for problem in caught.value.problems}
    assert {"alpha", "use_mrope"} < {*named}
    needed = {key for key, what in named.items() if what == "missing"}
    assert needed >= {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}


def test_no_key_is_both_used_and_unused() -> None:
    """Else a key that changes the model would be passed over."""
    hub = read_yaml(FOLDER / "hugging_face.yaml")
    for kind, family in TABLE["families"].items():
        rows = {**hub["common"], **hub["families"][family["hub"]]}
        assert hub["families"][family["hub"]]["model_type"] == {"is": kind}
        ignored = {*TABLE["unused"], *family.get("unused", {})} & {*rows}
        assert {key for key in ignored if not isinstance(rows[key], dict)} <= {"head_dim"}, kind
        assert kind not in TABLE["cannot"]
        assert {*family.get("only", {})} & {*family.get("unused", {})} == set()


def add(folder: Path, *words: str, config: Any = QWEN) -> tuple[int, Path]:
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    file = folder / "qwen25_1p5b.yaml"
    return main(["models", "add", str(folder), *GIVEN, f"output={file}", *words]), file


def test_the_file_that_is_written_is_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, file = add(tmp_path, "parameters=1.54B")
    assert code == 0
    text = file.read_text(encoding="utf-8")
    head, second, *_ = text.splitlines()
    assert head == "# @package _global_"
    assert second == f"# Qwen/Qwen2.5-1.5B, {COUNT:,} parameters, as given (1.54 B)."
    parts = yaml.safe_load(text)
    assert {*parts} == {"model", "training", "optimizer"}
    model = frozen(Model, parts["model"], "")
    assert model.source == "https://huggingface.co/Qwen/Qwen2.5-1.5B/blob/main/config.json"
    assert (model.num_layers, model.hidden_size, model.add_qkv_bias) == (28, 1536, True)
    assert all(isinstance(parts["optimizer"][key], float) for key in ("lr", "min_lr"))
    assert f"{COUNT:,} parameters" in capsys.readouterr().out
    assert add(tmp_path)[0] == 2
    assert "is there already" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == text


def test_the_package_keeps_its_list_of_models(tmp_path: Path) -> None:
    """A module of that name would take the place of tensorprimat.models()."""
    assert add(tmp_path)[0] == 0
    assert callable(tensorprimat.models) and "llama31_8b" in tensorprimat.models()


def test_json_has_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(tmp_path, "--json")[0] == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["parameters"] == COUNT
    assert {"key": "head_dim", "value": 128, "source": "hidden_size / num_attention_heads"} in facts["defaults"]
    assert facts["checked"] == "checked against no published count"


@pytest.mark.parametrize(
    "parameters", ["1543714304", "1,543,714,304", "1_543_714_304", "1.5B", "1.5b", "2B", "1544M", "0.002T", "1.54e9"]
)
def test_a_published_count_is_checked_to_its_digits(parameters: str, tmp_path: Path) -> None:
    assert add(tmp_path, f"parameters={parameters}")[0] == 0


INDEXES = [  # model.safetensors.index.json beside the file, changes of the file, and whether it is checked and agrees
    ({"metadata": {"total_size": 2 * COUNT}}, {}, True),
    ({"metadata": {"total_size": 4 * COUNT}}, {"torch_dtype": "float32"}, True),
    ({"metadata": {"total_size": 2 * COUNT + 2}}, {}, False),
    ({"metadata": {}}, {}, False),
    ({"metadata": 3}, {}, False),
    ({"metadata": {"total_size": "9" * 10**5}}, {}, False),
    ({"metadata": {"total_size": 1}}, {"quantization_config": {"quant_method": "fp8"}}, None),
    ({"metadata": {"total_size": 1}}, {"torch_dtype": ["bfloat16"]}, None),
]


@pytest.mark.parametrize(("index", "change", "agrees"), INDEXES, ids=lambda value: str(value)[:60])
def test_the_checkpoints_size_checks_the_count(
    index: Any, change: Any, agrees: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    code, file = add(tmp_path, config=QWEN | change)
    out, err = capsys.readouterr()
    assert (code, file.exists()) == ((2, False) if agrees is False else (0, True))
    assert ("index.json beside config.json" in out) == (agrees is True)
    assert ("checked against no published count" in out) == (agrees is None)
    assert ("metadata.total_size: is of another model" in err) == (agrees is False)
    assert len(err) < 1000
    if agrees is False:
        assert add(tmp_path, f"parameters={COUNT}", config=QWEN | change)[0] == 0, "what is typed wins"


WORDS = [
    (("parameters=1.6B",), "parameters: the model has another number"),
    (("parameters=1B",), "2B: 1,543,714,304, rounded to the digits given"),
    (("parameters=1543714305",), "1543714304"),
    (("parameters=1.5",), "a number of parameters, such as"),
    (("parameters=1,5B",), "a number of parameters, such as"),
    (("parameters=1,54",), "a number of parameters, such as"),
    (("parameters=many",), "a number of parameters, such as"),
    (("name=../mine",), "name: is given twice"),
    (("another.json",), "PATH: takes one config.json"),
    (("hf=x",), "hf: no such key"),
]


@pytest.mark.parametrize(("words", "says"), WORDS, ids=str)
def test_a_wrong_command_line_writes_nothing(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, file = add(tmp_path, *words)
    assert (code, file.exists()) == (2, False)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name: is the name of a file"),
        (("name=../mine",), "name: is the name of a file"),
        (("name=Mine",), "a small letter, then"),
        (("name=mine",), "source: no fact without a source"),
        (("name=mine", "hf_id=../x/y"), "hf_id: is no id of huggingface.co"),
        (
            ("name=mine", "source=here", "output=/no/such/folder/mine.yaml"),
            "/no/such/folder/mine.yaml: cannot be written",
        ),
    ],
    ids=str,
)
def test_what_the_file_does_not_say_must_be_given(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    assert main(["models", "add", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
    assert "mine" not in choices("model")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not valid JSON"),
        ("[]", "is not a mapping"),
        ('{"a": NaN}', "NaN is no number of JSON's"),
        ('{"a": 1, "a": 2}', "the key 'a' is in it 2 times"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a": ' + "9" * 400 + "}", "an integer of 400 digits"),
        ('{"a": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"), "model_type"),
        (" " * (hugging_face.MOST_BYTES + 1), "is larger than"),
        ('{"vocab_size": 10, "model_type": "qwen2\\u0000"}', "is of no family"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_a_file_of_a_stranger_is_refused_in_words(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, file = add(tmp_path, config=text)
    assert (code, file.exists()) == (2, False)
    assert says in capsys.readouterr().err


def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert main(["models", "add", str(tmp_path), *GIVEN]) == 2
    assert "is no regular file" in capsys.readouterr().err


def test_what_is_taken_where_a_key_is_missing_is_in_the_file_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, file = add(tmp_path, config={key: value for key, value in QWEN.items() if key != "rope_theta"})
    line = "not in config.json, by transformers 4.57.6, models/qwen2/configuration_qwen2.py: rope_theta 10000.0"
    assert code == 0
    assert line in capsys.readouterr().out and f"# {line}\n" in file.read_text(encoding="utf-8")


def test_no_file_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        assert main(["models", "add", str(path), *GIVEN]) == 2
        assert "cannot be read" in capsys.readouterr().err
