"""Secrets by name and by shape, in whatever is printed or written; and nothing else."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.secret import BLOT, SECRET, blotted, in_texts, without_shapes
from parsers import Record
from parsers.cli import main as parse
from parsers.record import Stall
from parsers.storage import read, write

SHARED = Path(__file__).parents[3] / "shared"
HEX = "0123456789abcdef0123456789abcdef01234567"
SECRETS = {
    "https://me:hunter22@example.org/x": "https://[secret]@example.org/x",
    "postgres://me:pw@db:5432/x": "postgres://[secret]@db:5432/x",
    "Authorization: Bearer abcdefghijklmnop.123": "Authorization: Bearer [secret]",
    "key AKIAABCDEFGHIJKLMNOP": "key [secret]",
    "token hf_abcdefghijklmnopqrstuvwx is invalid": "token [secret] is invalid",
    "hf_token ........ hf_abcdefghijklmnopqrstuvwx": "hf_token ........ [secret]",
    f"WANDB_API_KEY={HEX}": "WANDB_API_KEY=[secret]",
    "password: hunter22": "password: [secret]",
    '{"api_key": "abcdefgh"}': '{"api_key": "[secret]"}',
    "train.py --wandb-key abcdef123456 --lr 1": "train.py --wandb-key [secret] --lr 1",
    "AccountKey=abcdefghijklmnopqrstuvwxyz012345==;x": "AccountKey=[secret];x",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "[secret]",
    "sk-proj-abcdefghij0123456789abc": "[secret]",
    "export DB_PW=hunter2": "export DB_PW=[secret]",
    "declare -x MY_TOKEN='two words'": "declare -x MY_TOKEN='[secret]'",
    "{'GITHUB_TOKEN': 'hunter22', 'A': 1}": "{'GITHUB_TOKEN': '[secret]', 'A': 1}",
    r"{\"X_KEY\": \"hunter22\"}": r"{\"X_KEY\": \"[secret]\"}",
    "X_CREDENTIALS: hunter22": "X_CREDENTIALS: [secret]",
    "DATABASE_URL=mysql:hunter22": "DATABASE_URL=[secret]",
    "password = 'correct horse; battery'": "password = '[secret]'",
    "password=a)b;c&d, lr=1": "password=[secret], lr=1",
    "Server=db;Uid=sa;Pwd=hunter22;": "Server=db;Uid=sa;Pwd=[secret];",
    "aws_session_token=FwoGZXIvYXdzEBYaDLongToken": "aws_session_token=[secret]",
    "postgres://me:p@ss@db/x mysql://me:p/ss@db:1/x": "postgres://[secret]@db/x mysql://[secret]@db:1/x",
    f"https://{HEX}@git.example.org/x.git": "https://[secret]@git.example.org/x.git",
    f"https://b.example.org/k?X-Amz-Signature={HEX}&a=1": "https://b.example.org/k?X-Amz-Signature=[secret]&a=1",
    "https://x/y?access_token=hunter22&token=hunter22#z": "https://x/y?access_token=[secret]&token=[secret]#z",
    "https://hooks.slack.com/services/T0/B0/XXXXXXXXXXXXXXXX": "https://hooks.slack.com/services/[secret]",
    '{"auths": {"nvcr.io": {"auth": "JG9hdXRodG9rZW46"}}}': '{"auths": {"nvcr.io": {"auth": "[secret]"}}}',
    "AUTHORIZATION: BEARER abcdefghijkl0123": "AUTHORIZATION: BEARER [secret]",
    "Authorization: token abcdefghijkl0123": "Authorization: token [secret]",
    "Set-Cookie: sid=0123456789; Path=/": "Set-Cookie: [secret]",
    "['--password', 'pw', '--hf-token', 'hunter22']": "['--password', '[secret]', '--hf-token', '[secret]']",
    "mysql -u root -phunter22 x": "mysql -u root -p[secret] x",
    "curl -u me:hunter22 https://x": "curl -u [secret] https://x",
    "machine x login me password hunter22": "machine x login me password [secret]",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789 xapp-1-A0123456789-0123456789": "[secret] [secret]",
    "BEGIN PGP PRIVATE KEY BLOCK-----\nlQdGBF1234567890\n-----": "BEGIN PGP PRIVATE KEY BLOCK-----[secret]-----",
    f"MIIEpAIBAAKCAQEA{'aB3/' * 12}": "[secret]",
}
HARMLESS = (
    "tokens_per_s=123456.7 num_tokens: 1234567 tokenizer_type ........ HuggingFaceTokenizer",
    "key_value_heads = 8, attention keys 128",
    "hf_token ................... None",
    "password authentication failed for user",
    "https://github.com/NVIDIA/Megatron-LM@core_v0.15.3 git@github.com:a/b",
    "http://10.0.0.1:6006/ and tcp://host:29500",
    f"commit {HEX}",
    "task-aaaaaaaaaaaaaaaaaaaaaaaaaaaa --save-interval 100000000",
    "docker run -u 1000:1000 nvcr.io:443/nvidia/nemo@sha256:0123 docker://nemo:26.02@sha256:0123",
    "http://host:8080/path@x PWD=/root OLDPWD=/x MAX_TOKENS=4096 TOKENS: 12 PASS: test_one",
    "FLOPs per token: 3.491758e+09 write KEY=VALUE accept.KEY=reason",
    "--eos-token </s> --pad-token 0 --tokenizer-key <key> HF_TOKEN=$HF_TOKEN password=${PW}",
)


@pytest.mark.parametrize(("text", "expected"), SECRETS.items())
def test_a_secret_is_known_by_its_shape(text: str, expected: str) -> None:
    assert without_shapes(text) == expected
    assert without_shapes(expected) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text: str) -> None:
    assert without_shapes(text) == text


NAMES = ("HF_TOKEN", "DB_PW", "PG_PASS", "GITHUB_PAT", "DATABASE_URL", "SSH_KEY", "MY_SECRET_1")


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_is_known_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET.search(name)
    monkeypatch.setenv(name, "correct-horse-1")
    assert blotted("with correct-horse-1 in it") == f"with {BLOT} in it"


@pytest.mark.parametrize("name", ["PATH", "TOKENIZERS_PARALLELISM", "PWD", "COMPASS", "KEYBOARD", "TOKENS_PER_STEP"])
def test_other_names_are_none(name: str) -> None:
    assert not SECRET.search(name)


def test_a_record_is_written_without_them_and_for_the_group_at_most(tmp_path: Path) -> None:
    cause = "\n".join(SECRETS)
    record = Record(id="x", name="x", provenance="measured", status="failed", cause=cause, notes=HARMLESS)
    write(record, tmp_path)
    found = read(tmp_path)
    assert found.cause == "\n".join(SECRETS.values())
    assert found.notes == HARMLESS
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) & 0o027 == 0


def test_parsing_a_log_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    lines = [f"[2026-01-01 00:00:00] iteration {i}/ 3 | consumed samples: {i} | lm loss: 1.0E+00 |" for i in (1, 2, 3)]
    log.write_text("\n".join([*lines, "ValueError: https://me:hunter22@example.org is gone"]) + "\n", encoding="utf-8")
    parse([str(log)])
    parse([str(log), "--json"])
    shown = capsys.readouterr()
    assert "hunter22" not in shown.out + shown.err
    assert BLOT in shown.out


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not here")
def test_nothing_is_blotted_out_of_real_logs() -> None:
    for path in sorted((SHARED / "logs").rglob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        text = re.sub("Signature=[^&]+", "", text)  # one has addresses that were signed
        assert without_shapes(text) == text, path


def test_the_lines_of_a_private_key_are_none_of_a_log() -> None:
    lines = ("before", "-----BEGIN RSA PRIVATE KEY-----", "MIIEp", "aB3=", "", "-----END RSA PRIVATE KEY-----", "MIIEp")
    assert in_texts(lines) == (*lines[:2], BLOT, BLOT, *lines[4:])
    assert in_texts(lines[:4]) == (*lines[:2], BLOT, BLOT)


def test_data_keep_their_form() -> None:
    key = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    data = {"moe_token_dispatcher_type": "alltoall", "api_key": 12345678, "texts": ("plain", None, {"password": "no"})}
    assert in_texts(data) is data
    secret = {
        "texts": [key, None],
        key: 1,
        "password": "correct horse",
        "HF_TOKEN": "short",
        "point": Stall(line=1, kind=key),
    }
    clean = {"texts": [BLOT, None], BLOT: 1, "password": BLOT, "HF_TOKEN": BLOT, "point": Stall(line=1, kind=BLOT)}
    assert in_texts(secret) == clean


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("image=http://bob:sword-fish@registry.io/x:1", "http://[secret]@registry.io/x:1"),
        ("+environment.STORE='postgres://bob:sword-fish@db/x'", "postgres://[secret]@db/x"),
        ("+cluster.network.PROXY='https://bob:sword-fish@h/'", "https://[secret]@h/"),
        ("cluster.container_options=['--env=FOO_TOKEN=sword-fish']", "['--env=FOO_TOKEN=[secret]']"),
        ("data=/data/hf_abcdefghijklmnopqrstuvwxyz012345", "/data/[secret]"),
        ("+framework.options.api_key=sword-fish", "[secret]"),
    ],
)
def test_a_request_has_none(override: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment("platform=cpu", "model=llama_tiny", override)
    said = str(refused.value)
    assert "looks like a secret" in said and f"found: {shown}" in said and "sword-fish" not in said, said
