"""JAAS entries: what Java makes of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.config.clients.jaas import (
    LoginModule,
    format_module,
    java_system_properties,
    parse_file,
    parse_property,
    read_file_entry,
)
from sparkmirror.config.clients.stream_tokenizer import tokens
from sparkmirror.errors import ConfigError
from tests.unit.config_files import pipe
from tests.vectors import load

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="alice" password="a b=c;d";',
         {"username": "alice", "password": "a b=c;d"}),
        (f"{PLAIN} required username='a' password='x';", {"username": "a", "password": "x"}),
        (f'{PLAIN}\n  REQUIRED\n  username = alice  // her name\n /* all */ password="x";\n',
         {"username": "alice", "password": "x"}),
        (f'{PLAIN} required a="back\\\\slash \\"quote\\" \\101\\t";',
         {"a": 'back\\slash "quote" A\t'}),
        (f"{PLAIN} required useKeyTab=true principal=a_b-c.d$e;",
         {"useKeyTab": "true", "principal": "a_b-c.d$e"}),
        (f'"{PLAIN}" required "a b"="c";', {"a b": "c"}),
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required a="1" a="2";', {"a": "2"}),
    ],
)  # fmt: skip
def test_entries(text: str, options: dict[str, str]):
    module = parse_property(text, where="here")
    assert (module.name, module.flag, dict(module.options)) == (PLAIN, "required", options)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "contains 0 login modules"),
        (f"{PLAIN} required; {PLAIN} required;", "contains 2 login modules"),
        (PLAIN, "the text ends where the control flag"),
        (f"{PLAIN} perhaps;", "not a control flag"),
        (f'{PLAIN} required username="alice"', "';' is missing after the last option"),
        (f"{PLAIN} required username;", "'=' is missing after the option username"),
        (f"{PLAIN} required password=hunter2 ;=", "the login module's class"),
        # A number is no text for Java, and a slash begins a comment.
        (f"{PLAIN} required password=12345;", "there is a bare number where the value"),
        (f"{PLAIN} required keyTab=/etc/x.keytab;", "the text ends where the value"),
        (f"{PLAIN} required\n a=b\n c=;", "line 3: there is ';' where the value"),
    ],
)
def test_syntax_errors_show_nothing_secret(text: str, what: str):
    with pytest.raises(ConfigError) as caught:
        parse_property(text, where="mm2.properties:7")
    assert what in caught.value.what
    assert caught.value.where == "mm2.properties:7"
    for secret in ("hunter2", "12345", "alice"):
        assert secret not in str(caught.value)


def test_a_forgotten_quote_does_not_show_the_password():
    with pytest.raises(ConfigError) as caught:
        parse_property(f'{PLAIN} required password=p4ss-!w0rd";', where="here")
    assert "w0rd" not in str(caught.value)


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True)
values = st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"]), max_size=40)


@given(names, st.sampled_from(["required", "optional"]), st.dictionaries(names, values))
def test_what_is_formatted_is_read_back(name: str, flag: str, options: dict[str, str]):
    module = LoginModule(name, flag, options)
    assert parse_property(format_module(module), where="here") == module


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str):
    """Neither parser fails in another way or hangs."""
    list(tokens(text, "-_$"))
    for parse in (parse_property, parse_file):
        with contextlib.suppress(ConfigError):
            parse(text, where="here")


@given(values)
def test_quoted_text_is_one_token(value: str):
    quoted = format_module(LoginModule("M", "required", {"k": value}))
    assert [token.text for token in tokens(quoted, "") if token.kind == '"'] == ["M", "k", value]


def test_a_file(tmp_path: Path):
    path = tmp_path / "jaas.conf"
    path.write_text(
        "/* broker */ KafkaServer { "
        f'{PLAIN} required user_a="x"; }};\n'
        f'KafkaClient {{\n  {PLAIN} required\n  username="${{user.home}}${{/}}x" password="y";\n}};'
    )
    system = java_system_properties(
        {"KAFKA_OPTS": f"-Xmx1g -Djava.security.auth.login.config=file:{path}", "HOME": "/h"}
    )
    module = read_file_entry(system, where="cluster A")
    assert module is not None
    assert dict(module.options) == {"username": "/h/x", "password": "y"}
    assert read_file_entry({}, where="cluster A") is None


def test_each_client_of_a_mirror_reads_a_file_that_can_be_read_only_once():
    with pipe(f"KafkaClient {{ {PLAIN} required; }};") as path:
        system = {"java.security.auth.login.config": path}
        read = [read_file_entry(system, where="cluster A") for _ in range(2)]
    assert read == [LoginModule(PLAIN, "required")] * 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Other { M required; };", "no entry (entries: Other) for KafkaClient"),
        ("KafkaClient { M required; M required; };", "2 login modules for KafkaClient"),
        ("KafkaClient { M required; }", "';' is missing after the closing brace"),
        ("KafkaClient { M required;", "the text ends where the login module"),
        ("KafkaClient { M required a='b'; };", "there is ''' where the value"),
        ('KafkaClient { M required a="${no.such}"; };', "Java system property that is not set"),
        ("A { M required; }; A { M required; };", "the entry A is defined twice"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, what: str):
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_file_entry({"java.security.auth.login.config": str(path)}, where="cluster A")
    assert what in caught.value.what
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("/no/such", "/no/such cannot be read: No such file"),
        ("file:///no/such", "/no/such cannot be read: No such file"),
        ("file://[no/such", "no/such cannot be read: it is not the URL of a file"),
    ],
)
def test_a_file_that_is_not_there(location: str, what: str):
    with pytest.raises(ConfigError) as caught:
        read_file_entry({"java.security.auth.login.config": location}, where="cluster A")
    assert what in caught.value.what


def test_both_parsers_agree_with_javas():
    """Kafka 4.3.0's JaasConfig and Java 17's JavaLoginConfig over well and badly formed texts."""
    cases = load("jaas")["cases"]
    assert sum(wanted is not None for _, wanted, _ in cases) > 100

    def outcome(module: LoginModule) -> list[object]:
        return [module.name, module.flag, dict(module.options)]

    for text, as_property, in_file in cases:
        try:
            found: list[object] | None = outcome(parse_property(text, where="here"))
        except ConfigError:
            found = None
        assert found == as_property, text
        try:
            modules = parse_file(f"KafkaClient {{ {text} }};", where="here")["KafkaClient"]
            found = outcome(modules[0]) if len(modules) == 1 else None
        except (ConfigError, KeyError):
            found = None
        assert found == in_file, text
