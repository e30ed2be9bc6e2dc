"""The questions of compose_cases.py about single values: YAML scalars and overrides. All texts were written for this test."""

from __future__ import annotations

from typing import Any

Asked = tuple[str, dict[str, Any]]


def plain(*texts: str) -> list[Asked]:
    return [(text, {}) for text in texts]


def but(text: str, ours: Any, because: str) -> Asked:
    return (text, {"ours": ours, "because": because})


SCALARS: list[Asked] = [
    *plain(
        "1", "0", "-7", "+7", "010", "0o10", "08", "0b101", "0x1F", "0x_1f", "32_768", "1_000_000", "1__0", "_1", "1_", "-0x10"
    ),
    *plain("1:30", "1:30:00", "-1:30", "1:60", "1:30.5", "190:20:30.15", "0:30", "01:30", "22:22"),
    *plain(
        "1e-6", "1e6", "1E+6", "1.5e3", "1.e5", "1.", ".5", "-.5", "+.5", "5.", "1_0.5", "1.5_0", "1e", "e5", "1.2.3", "1e5_0"
    ),
    *plain(
        ".inf",
        "-.inf",
        "+.INF",
        ".nan",
        ".NaN",
        "inf",
        "nan",
        "Infinity",
        "-.nan",
        "1e400",
        "-1e400",
        "1e-400",
        ".",
        "-",
        "+",
        "._1",
    ),
    *plain("true", "True", "TRUE", "tRue", "yes", "Yes", "no", "on", "On", "off", "OFF", "y", "n", "Y"),
    *plain("null", "Null", "NULL", "~", "", "nULL", "None", "none", "???", "'???'", "'null'", '"1"', "'1e-6'", "'true'"),
    *plain("2024-01-31", "2024-01-31 10:00:00", "2001-12-14t21:59:43.10-05:00", "12-31", "1.0.4"),
    *plain(
        "A100-80GB:8", '"A100-80GB:8"', "fsdp:d4p1t1", "a b", "a#b", "a #b", "http://x:80/y", "1e-6 # a comment", "-1e-6", "1e+6"
    ),
    *plain(
        "!!str 1", "!!int '5'", "!!float 1", "!!bool 'yes'", "!!null ''", "!!str", "!!int x", "!custom 1", "!!python/name:a.b x"
    ),
    *plain("[1, 1e-6, yes, 010, a]", "{a: 1, b: [x, {c: null}]}", "[]", "{}", "{a, b: 1}", "[[1], [2, 3]]", "{a: {b: }}"),
    *plain(
        "'it''s'",
        '"tab\\there"',
        '"\\u00e9"',
        "'a\\nb'",
        "|\n  one\n  two",
        ">\n  one\n  two",
        "0.0",
        "-0.0",
        "00",
        "0_",
        "=",
        "<<",
        "1_000.5",
    ),
    *plain(
        "9223372036854775807",
        "-9223372036854775808",
        "0x7fffffffffffffff",
        "1e16",
        "123456789012345678",
        "1e22",
        "0.1",
        "1e-5",
        "0.0001",
    ),
    but("! 1", "str 1", "yaml-cpp does not tell this tag from quotes, and nobody writes it"),
    but("[a, , b]", ["str a", "null", "str b"], "yaml-cpp reads nothing between commas as null"),
    but("9223372036854775808", "error", "an integer of more than 64 bits counts no memory"),
]

OVERRIDES: list[Asked] = [
    *plain(
        "a=1",
        "a=-1",
        "a=+3",
        "a=1_000",
        "a=01",
        "a=0x1F",
        "a=1.",
        "a=.5",
        "a=1e-6",
        "a=1.e5",
        "a=1E+3",
        "a=1_0.5",
        "a=1e5_0",
        "a=-0",
    ),
    *plain("a=inf", "a=-inf", "a=NaN", "a=-nan", "a=INF", "a=infinite", "a=nano", "a=.inf", "a=1e400"),
    *plain("a=true", "a=TRUE", "a=False", "a=yes", "a=on", "a=null", "a=Null", "a=None", "a=~", "a=???"),
    *plain(
        "a=", "a= ", "a= x ", "a=a b", "a=1 2", "a=\t1", "a=''", 'a=""', "a='1'", 'a="[1,2]"', "a='x\\'y'", 'a="x\\\\"', "a='\\n'"
    ),
    *plain(
        "a=[]", "a=[1,2]", "a=[ 1 , 2 ]", "a=[a,'b c',null,1e-6,[x]]", "a=[1,]", "a=[,]", "a={}", "a={a:1,b:{c:2}}", "a={a:b:c}"
    ),
    *plain(
        "a={1:2}",
        "a={a:1,a:2}",
        "a={'x':1}",
        "a={a}",
        "a={true:x}",
        "a={a b:1}",
        'a=[{b:1},"c,d"]',
        "a={ a : 1 }",
        "a={a:[1,{b:x}]}",
    ),
    *plain(
        "a=b,c",
        "a=1,2",
        "a=[1],[2]",
        "a=choice(1,2)",
        "a=range(1,4)",
        "a=interval(0,1)",
        "a=glob(*)",
        "a=shuffle(1,2)",
        "a=1,",
        "a=,1",
    ),
    *plain("a=f(x)", "a=x(", "a=(x)", "a=x)", "a=1)", "a=]", "a=}", "a=[1", "a={a:1"),
    *plain(
        "a=b=c",
        "a=http://x:80/y",
        "a=a/b-c+d",
        "a=x@y",
        "a=$x",
        "a=%d",
        "a=a|b",
        "a=?",
        "a=*",
        "a=a\\,b",
        "a=\\[x\\]",
        "a=\\\\",
        "a=\\",
        "a=a\\b",
    ),
    *plain(
        "a=<path>",
        "a=~/x",
        "a=#x",
        "a=a#b",
        "a=!x",
        "a=it's",
        "a='x",
        'a="x" y',
        "a='x' ",
        "a=a;b",
        "a=a&b",
        "a=\u00e9",
        "a='\u00e9'",
        "a=`x`",
    ),
    *plain(
        "a=${b}",
        "a=${b.c}/x",
        "a=${b.${c}}",
        "a=${",
        "a=${}",
        "a=$",
        "a={b:${c}}",
        "a=[${b},${c}]",
        "a=${oc.env:X,1}",
        "a='${b.${c}}'",
    ),
    *plain("+a=1", "++a=1", "+++a=1", "~a", "~a=1", "~a=", "~~a", "+~a=1", "+a", "a", "", "+", "-a=1", "--a=1", "--a"),
    *plain(
        "a.b=1",
        "a.0.b=1",
        "a[0]=1",
        "a..b=1",
        ".a=1",
        "a.=1",
        "0=1",
        "0.a=1",
        "a.01=1",
        "$a=1",
        "a-b=1",
        "a.b-c=1",
        "a b=1",
        " a=1",
        "a =1",
    ),
    *plain(
        "a/b=c",
        "a/b/c=d",
        "a/b@p.q=c",
        "a@p=b",
        "a@=b",
        "a@_global_=b",
        "a.b/c=d",
        "a/b.c=d",
        "a@p:q=b",
        "+a@p=b",
        "++a@p=b",
        "~a@p",
        "~a/b=c",
    ),
    *plain(
        "a={b:1",
        "a=[1 2]",
        "a=1:30",
        "a=A100:8",
        "a=fsdp:d4p1t1",
        "a=megatron:(attn:d4|ffn:e2)",
        "a='megatron:(attn:d4|ffn:e2)'",
        "a=32_768",
    ),
    *plain(
        "hydra.run.dir=x",
        "hydra/launcher=x",
        "a.b.c.d=[x,y]",
        "a=2024-01-31",
        "a=1.0.4",
        "a=8192k",
        "a=null ",
        "a=true false",
        "a=- 1",
        "a=1-2",
    ),
    but("a=int('3')", "error", "Hydra's functions (casts, sweeps) are refused by name: a launch command of one job needs none"),
    but("a=str(1)", "error", "Hydra's functions (casts, sweeps) are refused by name: a launch command of one job needs none"),
    but(
        "a=sort([2,1])", "error", "Hydra's functions (casts, sweeps) are refused by name: a launch command of one job needs none"
    ),
    but("=1", "error", "Hydra takes an empty key here and fails on it later"),
    but("=", "error", "Hydra takes an empty key here and fails on it later"),
    but("a=99999999999999999999", "error", "an integer of more than 64 bits counts no memory"),
]
